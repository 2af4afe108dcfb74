"""The plugin inside the real vLLM on the CPU: ``pytest e2e/engine``, without a cluster."""

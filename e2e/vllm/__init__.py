"""The real vLLM for CPUs with a tiny model, for a cluster without a GPU: ``python -m e2e.vllm build``."""

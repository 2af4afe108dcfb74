"""vLLM replicas without a GPU."""

"""What runs in the pods of a router: vllm-router, and who tells it the ready replicas."""

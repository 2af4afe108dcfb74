"""What surrounds the engines: pods on GPUs, and what Prometheus shows of them."""

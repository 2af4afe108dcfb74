"""What the operator reads: Prometheus and the API server, turned into domain values."""

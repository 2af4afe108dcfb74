"""A real Kubernetes cluster for the demo and the end-to-end tests: ``python -m e2e.cluster --help``."""

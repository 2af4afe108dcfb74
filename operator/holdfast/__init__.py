"""Holdfast keeps the service-level objectives of LLM services on Kubernetes."""

"""The real operator at scale: a real control plane with fake nodes, a real Prometheus, one synthetic exporter."""

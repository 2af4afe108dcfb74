"""Everything that is read: Prometheus and the cluster."""

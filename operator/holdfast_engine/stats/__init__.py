"""The plugin's numbers: from the scheduler's process to the API server's, and from there to Prometheus."""

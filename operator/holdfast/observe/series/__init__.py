"""Which time series are asked of Prometheus, by which queries, and the samples of its answers."""

"""What the objects of the API server say: services, pods, nodes, benchmarks."""

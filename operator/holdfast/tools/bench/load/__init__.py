"""What a load is, who may send it, and what is kept of each request: the port of the load generators."""

"""The only writes to the API server."""

"""Stands in for a service that runs no replica: holds its requests and passes them on as soon as one serves."""

"""Which replicas are capacity, which are not, and which accelerators are in backoff."""

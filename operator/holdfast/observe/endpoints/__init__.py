"""What pods answer to a direct request: the activator, and an engine that is probed."""

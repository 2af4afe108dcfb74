"""The loop, its leader, and the services that a tick decides about."""

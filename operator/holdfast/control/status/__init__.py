"""What a service's status says, and when it is written."""

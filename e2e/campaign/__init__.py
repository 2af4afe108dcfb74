"""What takes hours: drawn faults against running services, and drawn specs for the API server and the types."""

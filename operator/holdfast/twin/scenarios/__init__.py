"""What is simulated: scenario files, the services that they declare, and their requests."""

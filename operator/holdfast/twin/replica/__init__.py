"""What one replica carries, by simulation."""

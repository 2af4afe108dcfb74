"""What Holdfast reads of a Deployment that it did not make."""

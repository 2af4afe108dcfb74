"""Open-loop load for OpenAI-compatible engines, and the one definition of a good request."""

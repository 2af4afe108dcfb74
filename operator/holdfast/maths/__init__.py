"""Statistics that know nothing of services: normal quantiles, beliefs, and lines through counts."""

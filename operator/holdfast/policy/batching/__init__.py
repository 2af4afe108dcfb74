"""Other batching limits for engines without the fast loop, tried on one replica first."""

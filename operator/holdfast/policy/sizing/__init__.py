"""How many replicas a service proposes, and the guards that bound the proposal."""

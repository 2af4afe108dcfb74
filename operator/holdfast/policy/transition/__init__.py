"""From the replicas that run to those that were allocated: what starts and what is removed now."""

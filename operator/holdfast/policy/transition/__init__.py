"""From the running to the allocated replicas: what starts and what is removed now."""

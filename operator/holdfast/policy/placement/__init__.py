"""Decide which accelerators a service may use, what each can carry and costs, and which one is best."""

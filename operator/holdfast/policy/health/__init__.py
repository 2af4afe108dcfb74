"""Classify replicas as capacity or not, and track which accelerators are in backoff."""

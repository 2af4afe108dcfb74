"""Estimates from observations of a service: arrivals, lengths, capacity, error budget, scheduled minimums."""

"""Scenarios under policies: one run, its results, and the searches that make many runs."""

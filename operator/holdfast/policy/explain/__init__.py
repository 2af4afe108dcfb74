"""Conditions and messages: what is true, why, and what to do."""

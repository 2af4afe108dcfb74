"""The loop, its leadership and the kopf handlers."""

"""Writes of a decision to the cluster, and checks that skip objects without a change."""

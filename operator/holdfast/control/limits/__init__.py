"""Batching limits: which are in force, and the annotation that brings them to engines."""

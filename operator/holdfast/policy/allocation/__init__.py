"""Who gets how many of the accelerators that several services compete for."""

"""Settings and the one place where things are built."""

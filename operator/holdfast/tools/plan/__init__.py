"""Which accelerator a load needs, and how many, by simulation."""

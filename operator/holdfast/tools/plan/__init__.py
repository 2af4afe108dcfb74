"""How many of which accelerator a load needs, by simulation."""

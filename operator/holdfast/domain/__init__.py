"""What the operator knows and decides, as frozen values without I/O."""

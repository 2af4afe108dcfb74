"""What each command takes. A parser loads nothing that computes or connects: a help must come at once."""

"""How long an engine step takes: what it computes, the formula, its fit, and what follows from it."""

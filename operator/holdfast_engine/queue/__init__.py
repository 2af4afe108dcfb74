"""Which waiting request starts next, and how fast requests start."""

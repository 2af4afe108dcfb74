"""What rendered objects are called and what they remember: written by render, read back by observe."""

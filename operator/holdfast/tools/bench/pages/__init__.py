"""Results for people: words, tables and pictures."""

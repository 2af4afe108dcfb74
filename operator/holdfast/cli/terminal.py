"""Text that others wrote, on a terminal."""

from __future__ import annotations


def printable(line: str) -> str:
    """A line for a terminal: what others wrote must move no cursor, and look like no further line."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)

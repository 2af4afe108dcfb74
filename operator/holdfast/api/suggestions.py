"""What somebody meant who misspelled a name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question `did you mean plan? ` for a name that is nearly one of these, else an empty text."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}? " if near else ""

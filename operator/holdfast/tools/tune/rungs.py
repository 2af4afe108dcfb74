"""Which numbers of sequences a ladder has."""

from __future__ import annotations

import itertools

from holdfast.twin.scenarios.inputs import BadInput

NOT_RUNGS = "give at least two numbers of sequences, each larger than the one before, such as 1,2,4,8, or no list"


def rungs(most: int) -> tuple[int, ...]:
    """Powers of two below the limit, and the limit. BadInput where that is one rung."""
    powers = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    if not powers:
        raise BadInput("--ladder up to 1 sequence: one rung compares with nothing: raise --max-num-seqs")
    return (*powers, most)


def listed(text: str) -> tuple[int, ...]:
    """Rungs as 1,2,4; none of an empty text. ValueError with the remedy for one, or for what is no ladder."""
    if not text:
        return ()
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts):
        raise ValueError(f"{text!r}: {NOT_RUNGS}")
    found = tuple(map(int, parts))
    if len(found) < 2 or found[0] < 1 or any(high <= low for low, high in itertools.pairwise(found)):
        raise ValueError(f"{text!r}: {NOT_RUNGS}")
    return found

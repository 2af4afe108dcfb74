"""Whether a status changed beyond the noise of its numbers.

Estimates from random arrivals never stand still. A number counts as changed if it moved by more than a tenth since it
was written; a percentage if its distance from 100 % did. The same holds for numbers in sentences. Counts, times and
words count as changed if they differ at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MOST_NOISE = 0.1

_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(%|ms\b|s\b|)")
_SECONDS = {"ms": 0.001, "s": 1.0}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT")


def same(old: Any, new: Any) -> bool:
    """Whether two statuses, or parts of them, are equal within the deadband."""
    if old == new:
        return True
    if isinstance(old, str) and isinstance(new, str):
        return _same_text(old, new)
    if isinstance(old, float) or isinstance(new, float):  # the API server returns 2.0 as 2
        return _is_number(old) and _is_number(new) and _close(old, new)
    if isinstance(old, Mapping) and isinstance(new, Mapping):  # after the more frequent and cheaper checks
        return old.keys() == new.keys() and all(same(value, new[name]) for name, value in old.items())
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(map(same, old, new))
    return False


def _same_text(old: str, new: str) -> bool:
    if _TIME.match(old) or _NUMBER.sub("", old) != _NUMBER.sub("", new):
        return False
    return all(map(_same_figure, _NUMBER.findall(old), _NUMBER.findall(new)))


def _same_figure(old: tuple[str, str], new: tuple[str, str]) -> bool:
    (before, unit), (after, other) = old, new
    if unit in _SECONDS and other in _SECONDS:  # such as 980ms and 1s
        return _close(float(before) * _SECONDS[unit], float(after) * _SECONDS[other])
    if unit != other:
        return False
    if unit == "%":
        return _close(100.0 - float(before), 100.0 - float(after))
    is_count = not unit and "." not in before + after
    return before == after if is_count else _close(float(before), float(after))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _close(old: float, new: float) -> bool:
    return abs(old - new) <= MOST_NOISE * max(abs(old), abs(new))

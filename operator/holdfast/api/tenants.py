"""Limits of namespaces as the administrator writes them: NAMESPACE=LIMIT, and `*` for all other namespaces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import TypeVar

ALL_OTHERS = "*"

_NAMESPACE = r"(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)"
PRIORITY_PATTERN = rf"^{_NAMESPACE}=(-?[0-9]{{1,9}}|-?1000000000)$"
SHARE_PATTERN = rf"^{_NAMESPACE}=(100([.]0+)?|[0-9]{{1,2}}([.][0-9]+)?)%$"

_WHOSE = "with the name of a namespace, or * for all other namespaces"

T = TypeVar("T")


def max_priority(text: str) -> str:
    """Check one limit of priorities, such as `team-a=10`; ValueError with the remedy otherwise."""
    remedy = f"must be NAMESPACE=PRIORITY, such as team-a=10, {_WHOSE}, and a whole number of at most 10^9 either way"
    return _checked(text, PRIORITY_PATTERN, remedy)


def namespace_share(text: str) -> str:
    """Check one share of GPUs, such as `team-a=50%`; ValueError with the remedy otherwise."""
    return _checked(text, SHARE_PATTERN, f"must be NAMESPACE=PERCENT%, such as team-a=50%, {_WHOSE}, and 0% to 100%")


def by_namespace(texts: Iterable[str], read: Callable[[str], T]) -> dict[str, T]:
    """Return checked limits by namespace; ValueError for a namespace that is named twice."""
    found: dict[str, T] = {}
    for text in texts:
        namespace, _, limit = text.partition("=")
        if namespace in found:
            raise ValueError(f"namespace {namespace} is named twice; keep one of its limits")
        found[namespace] = read(limit)
    return found


def share_of(text: str) -> Fraction:
    """Return the exact share that a percentage names, from 0 to 1."""
    return Fraction(text.removesuffix("%")) / 100


def limit_of(limits: Mapping[str, T], namespace: str) -> T | None:
    """Return the limit of a namespace; None if it has none."""
    return limits.get(namespace, limits.get(ALL_OTHERS))


def _checked(text: str, pattern: str, remedy: str) -> str:
    if re.fullmatch(pattern, text) is None:
        raise ValueError(remedy)
    return text

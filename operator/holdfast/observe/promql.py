"""Building blocks of PromQL text, independent of the metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def named(vector: str, label: str, value: str) -> str:
    """The vector with one more label."""
    return f'label_replace({vector}, "{label}", "{value}", "", "")'


def any_edge(edges_seconds: Sequence[float]) -> str:
    """Edges as Python's client, Go's client and Prometheus 3 write them: 1 is `1` or `1.0`."""
    return any_of(spelling for edge in edges_seconds for spelling in (repr(float(edge)), f"{edge:.12g}"))


def any_of(texts: Iterable[str]) -> str:
    """A regular expression that matches exactly these texts, quoted for a PromQL string.

    Dashes are not escaped: they have no meaning here, and Prometheus looks up plain alternatives without a regex.
    """
    quoted = {re.escape(text).replace(r"\-", "-") for text in texts}
    return "|".join(sorted(quoted)).replace("\\", "\\\\")


def duration(seconds: float) -> str:
    """A time in PromQL."""
    return f"{round(seconds * 1000)}ms"

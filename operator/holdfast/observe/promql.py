"""Building blocks of PromQL text, independent of the metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

OUR_MATCHER = re.compile(r'holdfast_service(?:!=""|=~"[^"]*")')
"""The matcher that selects engines that Holdfast made: all of them, or those of some services."""

_SELECTOR = rf"[\w:]*\{{[^{{}}]*{OUR_MATCHER.pattern}[^{{}}]*\}}"
_SHIFTED = r"(?:\[[^\]]*\])?(?: offset -?[0-9a-z]+)?"
_OVER_RANGES = "rate|increase|delta|changes|timestamp|[a-z]+_over_time"
_VECTOR = re.compile(rf"(?:\b(?:{_OVER_RANGES})\({_SELECTOR}{_SHIFTED}\)|{_SELECTOR}{_SHIFTED})")


def with_vectors(promql: str, written: Callable[[str], str]) -> str:
    """Rewrite each vector of engines: a selector with `OUR_MATCHER`, or the function over its range around it."""
    return _VECTOR.sub(lambda found: written(found[0]), promql)


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

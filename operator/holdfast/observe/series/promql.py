"""Building blocks of PromQL: the engines that a query reads, and text around their series."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

OURS = 'holdfast_service!=""'
"""Selects all engines that Holdfast made."""


@dataclass(frozen=True, slots=True)
class EngineSelector:
    """The engines that a query reads: those whose series fit `matchers`."""

    matchers: str = OURS

    def read(self, metric: str, *more: str, over: str = "", span: str = "", offset: str = "") -> str:
        """Return the vector of a metric, or of a function `over` it, within a span; `more` are further matchers."""
        selector = f"{metric}{{{', '.join((self.matchers, *more))}}}"
        shifted = selector + (f"[{span}]" if span else "") + (f" offset {offset}" if offset else "")
        return f"{over}({shifted})" if over else shifted

    def increase(self, metric: str, span: str, *more: str) -> str:
        """Return what a counter gained within a span."""
        return self.read(metric, *more, over="increase", span=span)

    def of(self, services: Iterable[str]) -> EngineSelector:
        """Return only the engines of these services; those of the same name in other namespaces are included."""
        return EngineSelector(f'holdfast_service=~"{any_of(services)}"')

    def also(self, *matchers: str) -> EngineSelector:
        """Return only those whose series fit these matchers too."""
        return replace(self, matchers=", ".join((self.matchers, *matchers)))


OUR_ENGINES = EngineSelector()


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

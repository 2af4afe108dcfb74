"""The /metrics of an emulated engine: vLLM 0.32's families, labels and bucket edges, rendered without a registry.

A hand-written renderer because an engine counts every token: an observation here is one bisection, and a scrape only
formats numbers behind prepared names.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.utils import floatToGoString

from holdfast.emulator.families import FAMILIES, BucketKind, Family, MetricType, bucket_edges

Labels = tuple[tuple[str, str], ...]


class BadBuckets(ValueError):
    """`--custom-histogram-buckets` that vLLM would not take."""


@dataclass(slots=True)
class Histogram:
    """Counts by bucket (the last one open) and the sum of what was observed."""

    edges: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.edges, value)] += times
        self.total += value * times


class EngineMetrics:
    """Every series of one engine; counters and gauges are set by name and extra label values."""

    def __init__(
        self,
        model_name: str,
        max_model_len: int,
        created_at: float,
        cache_labels: Mapping[str, str],
        custom_buckets: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self._model_name = model_name
        self._created = _go_float(created_at)
        self._cache_labels = dict(cache_labels)
        edges = checked_buckets(custom_buckets or {})
        self.values: dict[str, dict[str, float]] = {}
        self.histograms: dict[str, Histogram] = {}
        for family in FAMILIES:
            if family.type is MetricType.HISTOGRAM:
                kind = family.buckets or BucketKind.REQUEST_LATENCY
                own = edges.get(kind, bucket_edges(kind, max_model_len))
                self.histograms[family.name] = Histogram(own, [0] * (len(own) + 1))
            else:
                self.values[family.name] = dict.fromkeys(family.label_values, 0.0)
        self._writers = [self._writer(family) for family in FAMILIES]

    def add(self, name: str, amount: float, label_value: str = "") -> None:
        """Raise a counter."""
        self.values[name][label_value] += amount

    def set(self, name: str, value: float, label_value: str = "") -> None:
        """Set a gauge."""
        self.values[name][label_value] = value

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Observe a value in a histogram, `times` over."""
        self.histograms[name].observe(value, times)

    def render(self) -> bytes:
        """The text of /metrics."""
        lines: list[str] = []
        for write in self._writers:
            write(lines)
        lines.append("")
        return "\n".join(lines).encode()

    def _writer(self, family: Family) -> Callable[[list[str]], None]:
        if family.type is MetricType.HISTOGRAM:
            return self._histogram_writer(family)
        return self._value_writer(family)

    def _value_writer(self, family: Family) -> Callable[[list[str]], None]:
        counter = family.type is MetricType.COUNTER
        sample = f"{family.name}_total" if counter else family.name
        head = _head(sample, family.type.value, family.help)
        values = self.values[family.name]
        series = [(value, f"{sample}{self._label_text(family, value)} ") for value in family.label_values]
        created = self._created_lines(family) if counter else []

        def write(lines: list[str]) -> None:
            lines += head
            lines += [prefix + _go_float(values[value]) for value, prefix in series]
            lines += created

        return write

    def _histogram_writer(self, family: Family) -> Callable[[list[str]], None]:
        histogram = self.histograms[family.name]
        head = _head(family.name, "histogram", family.help)
        edges = [_go_float(edge) for edge in histogram.edges] + ["+Inf"]
        buckets = [f"{family.name}_bucket{self._label_text(family, '', ('le', edge))} " for edge in edges]
        labels = self._label_text(family, "")
        created = self._created_lines(family)

        def write(lines: list[str]) -> None:
            lines += head
            seen = 0
            for prefix, count in zip(buckets, histogram.counts, strict=True):
                seen += count
                lines.append(prefix + _go_float(seen))
            lines.append(f"{family.name}_count{labels} {_go_float(seen)}")
            lines.append(f"{family.name}_sum{labels} {_go_float(histogram.total)}")
            lines += created

        return write

    def _created_lines(self, family: Family) -> list[str]:
        name = f"{family.name}_created"
        series = [f"{name}{self._label_text(family, value)} {self._created}" for value in family.label_values]
        return _head(name, "gauge", family.help) + series

    def _label_text(self, family: Family, value: str, *more: tuple[str, str]) -> str:
        labels = [("model_name", self._model_name)] if family.with_model else []
        if family.with_engine:
            labels.append(("engine", "0"))
        if family.label is not None:
            labels.append((family.label, value))
        if family.name == "vllm:cache_config_info":
            labels += self._cache_labels.items()
        pairs = (f'{name}="{_escaped(text)}"' for name, text in sorted([*labels, *more]))
        return "{" + ",".join(pairs) + "}"


def checked_buckets(custom: Mapping[str, Sequence[float]]) -> dict[BucketKind, tuple[float, ...]]:
    """Edges by family as vLLM takes them: known families, ascending positive numbers."""
    known = {kind.value: kind for kind in BucketKind}
    checked = {}
    for name, edges in custom.items():
        if name not in known:
            raise BadBuckets(f"unknown family {name!r}; use one of {', '.join(known)}")
        if not isinstance(edges, (list, tuple)) or not edges:
            raise BadBuckets(f"{name}: give a list of at least one edge")
        if any(isinstance(edge, bool) or not isinstance(edge, (int, float)) for edge in edges):
            raise BadBuckets(f"{name}: edges must be numbers")
        if any(not 0 < edge < float("inf") for edge in edges) or any(b <= a for a, b in itertools.pairwise(edges)):
            raise BadBuckets(f"{name}: edges must be positive and ascending")
        checked[known[name]] = tuple(float(edge) for edge in edges)
    return checked


def _head(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]


def _go_float(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

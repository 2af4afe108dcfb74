"""Histogram edges to query: each objective, and the nearest edge below it of every known grid.

Edges are fixed when a pod starts. After an edit of an objective, or with vLLM's own buckets, no edge equals it. The
nearest edge below then gives a lower bound on the requests within the objective.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

from holdfast.domain.service import Slo
from holdfast.observe.series.queries import Edges, EdgeTier
from holdfast.rendered import buckets

# vLLM 0.33, vllm/v1/metrics/buckets.py (seconds)
VLLM_DEFAULT = Edges(
    ttft=(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640),
    tpot=(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
    e2e=(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
)
RENDERED = Edges(ttft=buckets.TTFT_SECONDS, tpot=buckets.TPOT_SECONDS, e2e=buckets.E2E_SECONDS)

MOST_TIERS = 8
"""Maximum number of distinct edge sets that are queried one by one."""


def tiers(objectives: Iterable[tuple[str, Slo]]) -> tuple[EdgeTier, ...]:
    """Return the edges of each service by its name, if a few sets suffice for all; else nothing.

    A name stands for all services with that name, in every namespace.
    """
    by_name: dict[str, set[Slo]] = defaultdict(set)
    for name, slo in objectives:
        by_name[name].add(slo)
    alike: dict[frozenset[Slo], list[str]] = defaultdict(list)
    for name, slos in sorted(by_name.items()):
        alike[frozenset(slos)].append(name)
    if len(alike) > 4 * MOST_TIERS:  # objectives that differ only in the window have the same edges
        return ()
    found: dict[Edges, list[str]] = defaultdict(list)
    for those, names in alike.items():
        found[around(those)] += names
    return tuple(EdgeTier(edges, tuple(names)) for edges, names in found.items()) if len(found) <= MOST_TIERS else ()


def around(slos: Iterable[Slo], grids: Sequence[Edges] = (RENDERED, VLLM_DEFAULT)) -> Edges:
    """Return the distinct edges that the objectives of these services need, ascending."""
    objectives = list(slos)
    return Edges(
        ttft=_needed((slo.ttft_seconds for slo in objectives), [grid.ttft for grid in grids]),
        tpot=_needed((slo.tpot_seconds for slo in objectives), [grid.tpot for grid in grids]),
        e2e=_needed((slo.e2e_seconds for slo in objectives if slo.e2e_seconds), [grid.e2e for grid in grids]),
        late_ttft=_above((slo.ttft_seconds for slo in objectives), VLLM_DEFAULT.ttft),
        late_tpot=_above((slo.tpot_seconds for slo in objectives), VLLM_DEFAULT.tpot),
    )


def _needed(objectives_seconds: Iterable[float], grids: Sequence[Sequence[float]]) -> tuple[float, ...]:
    distinct = set(objectives_seconds)
    below = (max((edge for edge in grid if edge < seconds), default=None) for seconds in distinct for grid in grids)
    return tuple(sorted(distinct | {float(edge) for edge in below if edge is not None}))


def _above(objectives_seconds: Iterable[float], grid: Sequence[float]) -> tuple[float, ...]:
    return tuple(sorted({float(grid[bisect_left(grid, each)]) for each in objectives_seconds if each <= grid[-1]}))

"""Several services on too few GPUs: what each attains by priority, beside the same loop for each of them by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from benchmarks.autoscaling.bars import Verdict
from benchmarks.autoscaling.campaign import APART, OWN, Campaign
from benchmarks.autoscaling.cases import SHARED
from benchmarks.autoscaling.journal import Row
from holdfast.domain.service import ServiceSpec

Runs = Mapping[str, Sequence[Row]]
"""Of each policy, a run for each seed."""


def shared(campaign: Campaign, seeds: Sequence[int], fast_loop: bool) -> tuple[list[str], list[Verdict]]:
    """Lines of Markdown, and the bars."""
    policies = [name for name in (*OWN, APART) if name != "holdfast" or fast_loop]
    runs = {policy: [campaign.run(SHARED, policy, seed) for seed in seeds] for policy in policies}
    specs = campaign.services(SHARED)
    return list(_told(specs, runs)), list(_judged(specs, runs))


def _told(specs: Sequence[ServiceSpec], runs: Runs) -> Iterator[str]:
    yield f"**{SHARED.title}**, attainment in %"
    yield ""
    yield f"| service | priority | objective | {' | '.join(runs)} |"
    yield "|" + "---|" * (3 + len(runs))
    for spec in specs:
        cells = [f"{100 * _attained(rows, spec.key.name):.2f}" for rows in runs.values()]
        yield f"| {spec.key.name} | {spec.priority} | {100 * spec.slo.objective:g} | {' | '.join(cells)} |"
    for name, cells in (
        ("all requests", [f"{100 * _attained(rows):.2f}" for rows in runs.values()]),
        ("GPU-hours", [f"{median(row.gpu_hours for row in rows):.2f}" for rows in runs.values()]),
        ("dollars", [f"{median(row.cost_dollars for row in rows):.2f}" for rows in runs.values()]),
        ("changes of size", [f"{median(row.scale_actions for row in rows):g}" for rows in runs.values()]),
    ):
        yield f"| {name} | | | {' | '.join(cells)} |"
    yield ""


def _judged(specs: Sequence[ServiceSpec], runs: Runs) -> Iterator[Verdict]:
    """Priorities are worth something to the first, and cost all together nothing."""
    ours = next(iter(runs.values()))
    for who, name in ((f"{specs[0].key.name}, the first in priority,", specs[0].key.name), ("all requests", None)):
        shares = _attained(ours, name), _attained(runs[APART], name)
        told = f"{100 * shares[0]:.2f} % to {100 * shares[1]:.2f} %"
        yield Verdict(f"{SHARED.title}: {who} attain more than each service by itself", shares[0] > shares[1], told)


def _attained(rows: Sequence[Row], service: str | None = None) -> float:
    """Median over seeds, of one service or of all requests."""
    return median(row.attainment if service is None else (row.by_service or {})[service] for row in rows)

"""What the comparison must show, and whether it does."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.autoscaling.cases import Case
from benchmarks.autoscaling.compare import (
    Comparison,
    Figures,
    Hindsight,
    Outcome,
    geometric_mean,
    static_ratios,
    swept_ratios,
)
from benchmarks.autoscaling.scarcity import Recovery, Scarcity

OVERLOAD_SHARE = 0.90
SHORT_SHARE = 0.90
STATIC = "static"


@dataclass(frozen=True, slots=True)
class Savings:
    """What is asked at equal attainment: shares of GPU-hours saved, and how much worse any one scenario may be."""

    with_one_knob: float
    with_its_knob: float
    most_worse: float | None


SAVINGS = Savings(0.20, 0.05, 0.03)
VARIED_SAVINGS = Savings(0.14, 0.03, None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar."""

    name: str
    met: bool | None
    """None where what was run does not tell."""
    told: str


def write(path: Path, found: Iterable[Verdict]) -> None:
    """Keep verdicts as JSON, one a line, in place of what the file held."""
    path.write_text("".join(f"{json.dumps(asdict(each))}\n" for each in found))


def read(path: Path) -> list[Verdict]:
    """Verdicts that were written down."""
    return [Verdict(**json.loads(line)) for line in path.read_text().splitlines()]


def verdicts(
    outcomes: Sequence[Outcome], comparison: Comparison, peers: Sequence[str], capacity_rps: dict[str, float]
) -> Iterator[Verdict]:
    """Every bar of scenarios on the same cluster that were run; `capacity_rps` is the largest fleet's by scenario."""
    for outcome in outcomes:
        yield from _case(outcome, capacity_rps)
    compared = [outcome for outcome in outcomes if outcome.case.compared]
    if compared and peers:
        variation = compared[0].case.variation
        yield from _savings(compared, comparison, peers, SAVINGS if variation is None else VARIED_SAVINGS)


def attained(case: Case, ours: Figures, objective: float) -> Verdict:
    """Whether Holdfast attains the objective."""
    told = f"{100 * ours.attainment:.2f} % of {100 * objective:.4g} % with {ours.gpu_hours:.2f} GPU-hours"
    return Verdict(f"{case.title}: attains the objective", ours.attainment >= objective, told)


def _case(outcome: Outcome, capacity_rps: dict[str, float]) -> Iterator[Verdict]:
    case, ours = outcome.case, outcome.holdfast
    if case.attains:
        yield attained(case, ours, outcome.objective)
    if case.oracle_factor is not None:
        ratio = ours.gpu_hours / outcome.oracle.gpu_hours
        told = f"{ratio:.2f} x, bar {case.oracle_factor:g} x; attainment {100 * ours.attainment:.2f} %"
        yield Verdict(f"{case.title}: GPU-hours over the oracle's", ratio <= case.oracle_factor, told)
    if case.scarce and outcome.shipped:
        swept = [found[1] for found in outcome.swept.values() if found is not None]
        better = [
            f"{peer.label} {100 * peer.attainment:.2f} % with {peer.gpu_hours:.2f} GPU-hours"
            for peer in (*outcome.shipped.values(), *swept)
            if peer.attainment > ours.attainment and peer.gpu_hours <= ours.gpu_hours
        ]
        told = f"{100 * ours.attainment:.2f} % with {ours.gpu_hours:.2f} GPU-hours; {'; '.join(better) or 'none does'}"
        told += f"; in hindsight {outcome.static.label} {100 * outcome.static.attainment:.2f} % with "
        told += f"{outcome.static.gpu_hours:.2f}"
        yield Verdict(f"{case.title}: no peer attains more for as little", not better, told)
    if case.window is not None and ours.window_goodput_rps is not None:
        share = ours.window_goodput_rps / capacity_rps[case.title]
        told = f"{100 * share:.0f} % of what the largest fleet carries, bar {100 * OVERLOAD_SHARE:.0f} %"
        yield Verdict(f"{case.title}: goodput in overload", share >= OVERLOAD_SHARE, told)
    if ours.scarcity is not None:
        yield from _short(case.title, ours.scarcity)


def _short(title: str, found: Scarcity) -> Iterator[Verdict]:
    name = f"{title}: goodput while capacity is short"
    if found.goodput_share is None:
        yield Verdict(name, None, "it never is")
    else:
        told = f"{100 * found.goodput_share:.0f} % of what the replicas in place carry, bar {100 * SHORT_SHARE:.0f} %"
        told += f"; short for {found.short_seconds:.0f} s"
        yield Verdict(name, found.goodput_share >= SHORT_SHARE, told)
    yield _recovered(f"{title}: recovery", found.recovery)


def _recovered(name: str, latest: Recovery | None) -> Verdict:
    if latest is None:
        return Verdict(name, None, "from nothing")
    of = f"from second {latest.began_at_seconds:.0f} on, allowed {latest.allowed_seconds:.0f} s"
    if latest.seconds is None:
        return Verdict(name, None, f"the run ends before it can be told; {of}")
    took = "not before the run ends" if latest.seconds == math.inf else f"{latest.seconds:.0f} s"
    return Verdict(name, latest.late_seconds <= 0.0, f"{took} {of}")


def _savings(
    compared: Sequence[Outcome], comparison: Comparison, peers: Sequence[str], asked: Savings
) -> Iterator[Verdict]:
    variation = compared[0].case.variation
    where = "" if variation is None else f"{variation.name}: "
    one = {peer: comparison.one_knob(compared, peer)[1] for peer in peers} | {
        STATIC: static_ratios(compared, Hindsight.NONE)
    }
    each = {peer: swept_ratios(compared, peer) for peer in peers} | {STATIC: static_ratios(compared, Hindsight.LIMITS)}
    yield _saving(f"{where}at equal attainment, one knob for all scenarios", one, asked.with_one_knob)
    name = f"{where}at equal attainment, its knob swept in each scenario"
    if all(outcome.tuned is not None for outcome in compared):
        yield _saving(f"{name}, best fixed limits", each, asked.with_its_knob)
    else:
        yield replace(_saving(f"{name}, vLLM's limits", each, asked.with_its_knob), met=None)
    if asked.most_worse is None:
        return
    shipped = {peer: comparison.ratios(compared, peer) for peer in peers}
    yield replace(_saving("at equal attainment, as shipped", shipped, asked.with_one_knob), met=None)
    best = min(one, key=lambda peer: geometric_mean(one[peer]))
    worst, ratio = min(zip(compared, one[best], strict=True), key=lambda pair: pair[1])
    told = f"{round(100 * (1.0 / ratio - 1.0)):+d} % in {worst.case.name} against {best}"
    told += f", bar +{100 * asked.most_worse:.0f} %"
    yield Verdict("never worse than the best baseline", 1.0 / ratio <= 1.0 + asked.most_worse, told)


def _saving(name: str, ratios: Mapping[str, Sequence[float]], bar: float) -> Verdict:
    best = min(ratios, key=lambda peer: geometric_mean(ratios[peer]))
    saving = 1.0 - 1.0 / geometric_mean(ratios[best])
    return Verdict(name, saving >= bar, f"{round(100 * saving)} % fewer GPU-hours than {best}, bar {100 * bar:.0f} %")

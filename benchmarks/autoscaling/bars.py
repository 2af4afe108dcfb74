"""What the comparison must show, and whether it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.autoscaling.compare import Comparison, Outcome, geometric_mean, swept_ratios

LEAST_SAVING, LEAST_SAVING_TUNED, MOST_WORSE = 0.20, 0.05, 0.03
OVERLOAD_SHARE = 0.90


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar."""

    name: str
    met: bool
    told: str


def verdicts(
    outcomes: Sequence[Outcome], comparison: Comparison, peers: Sequence[str], capacity_rps: dict[str, float]
) -> Iterator[Verdict]:
    """Every bar of the scenarios that were run; `capacity_rps` is the largest fleet's by scenario."""
    for outcome in outcomes:
        yield from _case(outcome, capacity_rps)
    compared = [outcome for outcome in outcomes if outcome.case.compared]
    if compared and peers:
        yield from _savings(compared, comparison, peers)


def _case(outcome: Outcome, capacity_rps: dict[str, float]) -> Iterator[Verdict]:
    case, ours = outcome.case, outcome.holdfast
    if case.attains:
        told = f"{100 * ours.attainment:.2f} % of {100 * outcome.target:.4g} %"
        yield Verdict(f"{case.name}: attains the objective", ours.attainment >= outcome.target, told)
    if case.oracle_factor is not None:
        ratio = ours.gpu_hours / outcome.oracle.gpu_hours
        told = f"{ratio:.2f} x, bar {case.oracle_factor:g} x; attainment {100 * ours.attainment:.2f} %"
        yield Verdict(f"{case.name}: GPU-hours over the oracle's", ratio <= case.oracle_factor, told)
    if case.window is not None and ours.window_goodput_rps is not None:
        share = ours.window_goodput_rps / capacity_rps[case.name]
        told = f"{100 * share:.0f} % of what the largest fleet carries, bar {100 * OVERLOAD_SHARE:.0f} %"
        yield Verdict(f"{case.name}: goodput in overload", share >= OVERLOAD_SHARE, told)


def _savings(compared: Sequence[Outcome], comparison: Comparison, peers: Sequence[str]) -> Iterator[Verdict]:
    static = [outcome.static_peak.gpu_hours / outcome.holdfast.gpu_hours for outcome in compared]
    one = {peer: comparison.one_knob(compared, peer)[1] for peer in peers} | {"static-peak": static}
    each = {peer: swept_ratios(compared, peer) for peer in peers} | {"static-peak": static}
    for name, ratios, bar in (
        ("one knob for all scenarios", one, LEAST_SAVING),
        ("its knob swept in each scenario", each, LEAST_SAVING_TUNED),
    ):
        best = min(ratios, key=lambda peer: geometric_mean(ratios[peer]))
        saving = 1.0 - 1.0 / geometric_mean(ratios[best])
        told = f"{100 * saving:.0f} % fewer GPU-hours than {best}, bar {100 * bar:.0f} %"
        yield Verdict(f"at equal attainment, {name}", saving >= bar, told)
    best = min(one, key=lambda peer: geometric_mean(one[peer]))
    worst, ratio = min(zip(compared, one[best], strict=True), key=lambda pair: pair[1])
    told = f"{100 * (1.0 / ratio - 1.0):+.0f} % in {worst.case.name} against {best}, bar +{100 * MOST_WORSE:.0f} %"
    yield Verdict("never worse than the best baseline", 1.0 / ratio <= 1.0 + MOST_WORSE, told)

"""The comparison in words: a table per scenario, and one over all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.autoscaling.bars import STATIC, Verdict
from benchmarks.autoscaling.campaign import knob_value
from benchmarks.autoscaling.compare import Comparison, Figures, Outcome, geometric_mean, static_ratios, swept_ratios

COLUMNS = (
    *("policy", "knob", "attainment %", "GPU-hours", "/ oracle", "$", "TTFT p99 s", "TPOT p99 ms"),
    *("at the target: knob", "GPU-hours", "with the best limits"),
)


def tell(outcomes: Sequence[Outcome], comparison: Comparison, peers: Sequence[str]) -> Iterator[str]:
    """Lines of Markdown for scenarios on the same cluster."""
    for outcome in outcomes:
        yield from _scenario(outcome)
    compared = [outcome for outcome in outcomes if outcome.case.compared]
    if compared and peers:
        yield from _overall(compared, comparison, peers)


def tell_bars(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| bar | | |"
    yield "|---|---|---|"
    for verdict in verdicts:
        met = "not judged" if verdict.met is None else "met" if verdict.met else "MISSED"
        yield f"| {verdict.name} | {verdict.told} | {met} |"


def _scenario(outcome: Outcome) -> Iterator[str]:
    limits = "" if outcome.limits is None else f", best fixed limits {outcome.limits[0]}, {outcome.limits[1]}"
    yield f"**{outcome.case.title}**, target {100 * outcome.target:.2f} %{limits}"
    yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    yield _line(outcome.oracle, outcome, "", "", "", "")
    tuned_static = "" if outcome.tuned_static is None else _hours(outcome.tuned_static)
    yield _line(outcome.static, outcome, "", "", "", tuned_static)
    for found in outcome.own.values():
        yield _line(found, outcome, "", "", "", "")
    for peer, shipped in outcome.shipped.items():
        swept = outcome.swept[peer]
        knob, hours = ("none", "") if swept is None else (f"{knob_value(peer, swept[0]):.3g}", _hours(swept[1]))
        tuned = outcome.tuned.get(peer)
        yield _line(
            shipped, outcome, f"{knob_value(peer, 0):g}", knob, hours, "" if tuned is None else _hours(tuned[1])
        )
    yield ""


def _line(found: Figures, outcome: Outcome, knob: str, swept: str, hours: str, tuned: str) -> str:
    spread = "" if found.worst == found.best else f" ({100 * found.worst:.1f}-{100 * found.best:.1f})"
    ratio = found.gpu_hours / outcome.oracle.gpu_hours
    return (
        f"| {found.label} | {knob} | {100 * found.attainment:.2f}{spread} | {_hours(found)} | {ratio:.2f} "
        f"| {found.cost_dollars:.2f} | {found.ttft_p99_seconds:.2f} | {1000 * found.tpot_p99_seconds:.0f} "
        f"| {swept} | {hours} | {tuned} |"
    )


def _hours(found: Figures) -> str:
    return f"{found.gpu_hours:.2f}"


def _overall(compared: Sequence[Outcome], comparison: Comparison, peers: Sequence[str]) -> Iterator[str]:
    names = " | ".join(outcome.case.title for outcome in compared)
    yield "GPU-hours at equal attainment, as multiples of Holdfast's; the static size's where the target is missed"
    yield ""
    yield f"| policy | knob for all | {names} | geometric mean | knob of each: geometric mean |"
    yield "|" + "---|" * (len(compared) + 4)
    for peer in peers:
        place, ratios = comparison.one_knob(compared, peer)
        yield _multiples(peer, f"{knob_value(peer, place):.3g}", ratios, swept_ratios(compared, peer))
    yield _multiples(STATIC, "", static_ratios(compared, tuned=False), static_ratios(compared, tuned=True))
    oracle = [outcome.ratio(outcome.oracle.gpu_hours) for outcome in compared]
    yield _multiples("oracle", "", oracle, oracle)
    yield ""


def _multiples(name: str, knob: str, ratios: Sequence[float], swept: Sequence[float]) -> str:
    cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"| {name} | {knob} | {cells} | {geometric_mean(ratios):.2f} | {geometric_mean(swept):.2f} |"

"""The comparison in words: a table per scenario, and one over all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.autoscaling.bars import STATIC, Verdict
from benchmarks.autoscaling.campaign import knob_value
from benchmarks.autoscaling.compare import (
    Comparison,
    Figures,
    Hindsight,
    Outcome,
    geometric_mean,
    static_ratios,
    swept_ratios,
)

COLUMNS = (
    *("policy", "knob", "attainment %", "GPU-hours", "/ oracle", "$", "TTFT p99 s", "TPOT p99 ms"),
    *("at the target: knob", "GPU-hours", "with the best limits", "and the best cap on the queue"),
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
    yield f"**{outcome.case.title}**, target {100 * outcome.target:.2f} %{_limits(outcome)}"
    yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    hindsight = outcome.tuned, outcome.capped
    yield _line(outcome.oracle, outcome, "")
    yield _line(outcome.static, outcome, "", "", "", *(_hours(tuned.static if tuned else None) for tuned in hindsight))
    for found in outcome.own.values():
        yield _line(found, outcome, "")
    for peer, shipped in outcome.shipped.items():
        swept = outcome.swept[peer]
        knob = "none" if swept is None else f"{knob_value(peer, swept[0]):.3g}"
        bests = swept, *(tuned.swept[peer] if tuned else None for tuned in hindsight)
        yield _line(
            shipped, outcome, f"{knob_value(peer, 0):g}", knob, *(_hours(best[1] if best else None) for best in bests)
        )
    yield ""


def _limits(outcome: Outcome) -> str:
    found = outcome.capped or outcome.tuned
    if found is None:
        return ""
    sequences, tokens, queued = found.limits
    return f", best fixed limits {sequences}, {tokens}" + ("" if queued is None else f", best cap {queued}")


def _line(
    found: Figures, outcome: Outcome, knob: str, swept: str = "", hours: str = "", tuned: str = "", capped: str = ""
) -> str:
    spread = "" if found.worst == found.best else f" ({100 * found.worst:.1f}-{100 * found.best:.1f})"
    ratio = found.gpu_hours / outcome.oracle.gpu_hours
    return (
        f"| {found.label} | {knob} | {100 * found.attainment:.2f}{spread} | {_hours(found)} | {ratio:.2f} "
        f"| {found.cost_dollars:.2f} | {found.ttft_p99_seconds:.2f} | {1000 * found.tpot_p99_seconds:.0f} "
        f"| {swept} | {hours} | {tuned} | {capped} |"
    )


def _hours(found: Figures | None) -> str:
    return "" if found is None else f"{found.gpu_hours:.2f}"


def _overall(compared: Sequence[Outcome], comparison: Comparison, peers: Sequence[str]) -> Iterator[str]:
    names = " | ".join(outcome.case.title for outcome in compared)
    yield "GPU-hours at equal attainment, as multiples of Holdfast's; the static size's where the target is missed"
    yield ""
    yield (
        f"| policy | knob for all | {names} | geometric mean | knob of each: geometric mean "
        "| and the best cap on the queue |"
    )
    yield "|" + "---|" * (len(compared) + 5)
    for peer in peers:
        place, ratios = comparison.one_knob(compared, peer)
        swept = [swept_ratios(compared, peer, hindsight) for hindsight in (Hindsight.LIMITS, Hindsight.CAPPED)]
        yield _multiples(peer, f"{knob_value(peer, place):.3g}", ratios, *swept)
    yield _multiples(STATIC, "", *(static_ratios(compared, hindsight) for hindsight in Hindsight))
    oracle = [outcome.ratio(outcome.oracle.gpu_hours) for outcome in compared]
    yield _multiples("oracle", "", oracle, oracle, oracle)
    yield ""


def _multiples(name: str, knob: str, ratios: Sequence[float], swept: Sequence[float], capped: Sequence[float]) -> str:
    cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
    means = " | ".join(f"{geometric_mean(each):.2f}" for each in (ratios, swept, capped))
    return f"| {name} | {knob} | {cells} | {means} |"

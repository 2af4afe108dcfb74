"""README's table of what Holdfast saves, from the runs that are written down; nothing is played.

    python benchmarks/money.py

Every bar on the whole of the scenarios or on the drawn days stands in it, met or missed, and of single scenarios every
bar that is missed. `tests/docs/test_money.py` holds README to it.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import days
from benchmarks.accidents import ACCIDENTS, STATIC, WITH
from benchmarks.autoscaling import bars
from benchmarks.autoscaling.bars import Verdict
from benchmarks.reality import Runs, misses

RESULTS = Path(__file__).parent / "results"
SCENARIOS, TEN_DAYS, PLAIN_DAY = (
    RESULTS / name for name in ("bench-f71117eb.jsonl", "days-35194d0e.jsonl", "reality-24dba4c5.jsonl")
)

SOURCES = {
    "six scenarios": (SCENARIOS, "2026-11-30"),
    "drawn days": (TEN_DAYS, "2026-11-29"),
    "a day of conversations": (PLAIN_DAY, "2026-11-30"),
}
"""Where the figures are from, and when they were made; names of files end with the commit."""

EQUAL, ORACLE = "at equal attainment, ", "with plugin: "
WORDS = {
    f"{EQUAL}as shipped": "the best of ten autoscalers of others as shipped, six scenarios",
    f"{EQUAL}one knob for all scenarios": "the best of them, one knob for all six, tuned in hindsight",
    f"{EQUAL}its knob swept in each scenario, vLLM's limits": "the best of them, a knob for each, tuned in hindsight",
    "never worse than the best baseline": "the scenario where Holdfast saves least",
    f"{ORACLE}median GPU-hours over the oracle's": "an oracle that knows all arrivals; ten drawn days, the median",
    f"{ORACLE}GPU-hours over the oracle's on the worst day": "the same, the worst day, which misses the objective",
    f"{ORACLE}objective on every day": "99 % on each of these days",
}
"""What a bar compares Holdfast with, as README says it; other bars keep their names."""


def table(scenarios: Sequence[Verdict], ten_days: Sequence[Verdict], plain_day: Verdict) -> Iterator[str]:
    """Lines of Markdown: what README has words for, in their order, then whatever else is missed."""
    known = {each.name: each for each in (*scenarios, *ten_days)}
    said = [known[name] for name in WORDS if name in known]
    rest = [each for each in scenarios if each.met is False and each.name not in WORDS]
    yield "| compared with | GPU-hours | bar |"
    yield "|---|---|---|"
    yield from map(_line, (*said, plain_day, *rest))


def _line(verdict: Verdict) -> str:
    told, _, bar = verdict.told.partition(", bar ")
    bar, _, more = bar.partition("; ")
    met = "" if verdict.met is None else f"{bar and f'{bar}, '}{'met' if verdict.met else '**missed**'}"
    return f"| {WORDS.get(verdict.name, verdict.name)} | {told}{more and f'; {more}'} | {met} |"


def plain(runs: Runs) -> Verdict:
    """A day of conversations compared with the best static size, by the means of its seeds."""
    day = ACCIDENTS["plain"]
    ours, static = runs.of(day.name, WITH), runs.of(day.name, STATIC)
    hours, others = (mean(row.gpu_hours for row in rows) for rows in (ours, static))
    bar = day.bars[WITH]
    told = f"{hours:.1f} where that takes {others:.1f}, bar {bar.hours:g}"
    return Verdict(
        "the best static size in hindsight, a day of conversations",
        not misses(bar, ours, static, (), day.objective),
        told,
    )


def sources() -> str:
    """The commit and the date of each part of the table."""
    parts = (f"{name}, {path.stem.rpartition('-')[2]} ({made})" for name, (path, made) in SOURCES.items())
    return textwrap.fill(f"Commits of Holdfast's runs: {'; '.join(parts)}.", 120)


def main() -> int:
    """Print the table and its sources."""
    ten_days = list(days.verdicts(days.read(TEN_DAYS)))
    for line in table(bars.read(SCENARIOS), ten_days, plain(Runs(PLAIN_DAY))):
        print(line)
    print(f"\n{sources()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

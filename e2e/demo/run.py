"""Everything a finished (or stopped) demo left behind, and its verdict."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib

from e2e.demo import journal
from e2e.demo.scenario import Scenario
from e2e.demo.watch import Decision, Sample
from e2e.load import records, verdict
from e2e.load.records import Record
from e2e.load.verdict import Objectives, Span, Verdict

FACTS, RECORDS, SAMPLES = "run.json", "records.jsonl", "samples.jsonl"
# The folder, in that of the run, of the same load on a service without the fast loop.
COMPARISON = "without-fast-loop"


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What is known before the load begins; `start` and `cold_start_seconds` are epoch and plain seconds."""

    service: str
    model: str
    accelerators: tuple[str, ...]
    objectives: Objectives
    scenario: Scenario
    start: float
    cold_start_seconds: float
    trace: str


@dataclasses.dataclass(frozen=True)
class Run:
    """One demo, judged as far as it went; `comparison` met the same load at the same time without the fast loop."""

    facts: Facts
    records: tuple[Record, ...]
    samples: tuple[Sample, ...]
    decisions: tuple[Decision, ...]
    comparison: Run | None = None

    @functools.cached_property
    def end(self) -> float:
        """Return the end of the load, or of what was played of it."""
        planned = self.facts.start + self.facts.scenario.duration_seconds
        return min(planned, max((record.scheduled_at + 1e-3 for record in self.records), default=self.facts.start))

    @property
    def complete(self) -> bool:
        """Whether the load was played to its end."""
        aborted = any(record.status == "aborted" for record in self.records)
        return not aborted and self.end >= self.facts.start + self.facts.scenario.duration_seconds - 10.0

    @functools.cached_property
    def verdict(self) -> Verdict:
        """Return the judgement of the whole run."""
        scenario = self.facts.scenario
        planned = self.facts.start + scenario.duration_seconds
        return verdict.judge(
            self.records,
            self.facts.objectives,
            Span(self.facts.start, planned if self.complete else self.end),
            [self.excused],
            scenario.window_seconds,
        )

    @property
    def changes(self) -> tuple[Decision, ...]:
        """Return the decisions that changed a size, in order; the report numbers these."""
        return tuple(decision for decision in self.decisions if decision.action)

    @property
    def excused(self) -> Span:
        """Return the span in which a miss is forgiven."""
        return self.facts.scenario.excused(self.facts.start, self.facts.cold_start_seconds)

    @property
    def passed(self) -> bool:
        """Whether the demo showed what it promises."""
        return self.complete and self.verdict.holds

    @property
    def lowest_share(self) -> float | None:
        """Return the attainment of the worst window that had arrivals, forgiven ones included."""
        shares = (window.attainment for window in self.verdict.windows)
        return min((share for share in shares if share is not None), default=None)

    @property
    def replicas_range(self) -> tuple[int, int, int]:
        """Return ready replicas at the start of the load, at most, and at the end."""
        ready = [sample.count("ready") for sample in self.samples if sample.at >= self.facts.start]
        return (ready[0], max(ready), ready[-1]) if ready else (0, 0, 0)


def write_facts(folder: pathlib.Path, facts: Facts) -> None:
    """Write what `read` needs beside records and samples."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FACTS).write_text(json.dumps(dataclasses.asdict(facts), indent=1), encoding="utf-8")


def read(folder: pathlib.Path) -> Run:
    """Read a run back, so that its report can be drawn again."""
    fields = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    facts = Facts(
        **fields
        | {
            "objectives": Objectives(**fields["objectives"]),
            "scenario": Scenario(**fields["scenario"]),
            "accelerators": tuple(fields["accelerators"]),
        }
    )
    samples, decisions = journal.read(folder / SAMPLES)
    beside = folder / COMPARISON
    return Run(
        facts,
        tuple(records.read(folder / RECORDS)),
        tuple(samples),
        tuple(decisions),
        read(beside) if (beside / FACTS).exists() else None,
    )

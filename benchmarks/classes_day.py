"""A day of classes on one service, against a service that keeps the tightest objective for all requests.

    python -m benchmarks.classes_day --data DIR [--seeds 1 2 3] [--oracle] [--start 0] [--hours 24]

The load is that of `diurnal` (ServeGen's m-large, lengths of Azure's conversations, Llama-3.1-70B on four A100s a
replica), and as much batch besides that 20 % of the requests are tight, 50 % have the service's own objectives and 30 %
are batch. A tight request has half of the service's TTFT and TPOT, the same objective, and priority 10: alone on a
replica, 99 % of these prompts take up to 0.72 s and a step of one decode 27 ms. `one` is the same service with the
tight bounds for all requests but batch. `--oracle` looks for the cheapest sizes known before that keep the objective of
each class: some thirty runs more. Without `--seeds` three fresh ones are drawn and printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from holdfast.cli.simulate import declare
from holdfast.twin.policies import Holdfast
from holdfast.twin.runs.oracle import ORACLE, oracle
from holdfast.twin.runs.results import summary
from holdfast.twin.runs.run import simulate
from holdfast.twin.scenarios.scenario import Scenario

LOAD = Path(__file__).parent / "scenarios" / "diurnal.yaml"
SHARES = {"tight": 0.2, "nightly": 0.3}
TIGHT = {"ttft": "1s", "tpot": "50ms", "objective": "99%"}
NIGHTLY = {"name": "nightly", "kind": "Batch"}
CLASSES, ONE = "classes", "one"
LEAST_PEAK, OF_ONE, OF_ORACLE = 20, 0.9, 1.1


@dataclass(frozen=True, slots=True)
class Day:
    """What a run was worth, and its most replicas at once."""

    result: Mapping[str, Any]
    peak: int

    @property
    def gpu_hours(self) -> float:
        """Of all replicas."""
        return float(self.result["gpu_hours"])

    @property
    def classes(self) -> Mapping[str, Any]:
        """Results by class."""
        return dict(self.result["services"]["chat"]["classes"])


def scenario_of(kind: str, start: float, hours: float) -> Scenario:
    """So many hours of the day with classes, or with the tight bounds for all requests but batch."""
    content = yaml.safe_load(LOAD.read_text(encoding="utf-8"))
    (service,) = content["services"]
    slo, workload = service["spec"]["slo"], service["workload"]
    slo["classes"] = [NIGHTLY] if kind == ONE else [{"name": "tight", **TIGHT, "priority": 10}, NIGHTLY]
    slo |= TIGHT if kind == ONE else {}
    workload["classes"] = {each["name"]: SHARES[each["name"]] for each in slo["classes"]}
    rates = workload["arrivals"]["rates"]
    # What is recorded is scaled by the highest rate that is played.
    rates |= {"start": f"{start:g}h", "peakRps": rates["peakRps"] / (1.0 - SHARES["nightly"])}
    service["spec"]["scaling"]["max"] = 100
    content["cluster"]["accelerators"]["a100"]["gpus"] = 400
    return Scenario.model_validate(content | {"name": kind, "duration": f"{hours:g}h"})


def played(name: str, kind: str, seed: int, data: Path, start: float, hours: float) -> Day:
    """The hours under Holdfast or the oracle."""
    scenario, started = scenario_of(kind, start, hours), time.monotonic()
    declared = [declare(scenario, each, LOAD, data, seed) for each in scenario.services]
    run = oracle(scenario, declared, seed) if name == ORACLE else simulate(scenario, declared, Holdfast(), seed)
    return Day(summary(run, time.monotonic() - started), max(run.sizes[0].ready))


def rows(name: str, seed: int, day: Day) -> Iterator[str]:
    """A line for each class."""
    for of_class, each in day.classes.items():
        asked = "batch" if each["objective"] is None else f"{100.0 * each['objective']:g} %"
        ttft, tpot = each["ttft_p99_seconds"] or 0.0, each["tpot_p99_seconds"] or 0.0
        met = f"{100.0 * each['attainment']:.2f} % of {asked}, TTFT p99 {ttft:.2f} s, TPOT p99 {1000.0 * tpot:.0f} ms"
        size = f"{day.gpu_hours:.2f} GPU-hours, {day.peak} replicas at most"
        yield f"{name}, seed {seed}: {of_class or 'no class'}: {met}; {size}"


def verdicts(ours: Day, one: Day, best: Day | None) -> Iterator[tuple[str, bool]]:
    """The bars of a day, and whether they are met."""
    yield f"peak of {ours.peak} replicas, bar {LEAST_PEAK}", ours.peak >= LEAST_PEAK
    for name, each in ours.classes.items():
        if each["objective"] is not None:
            met = each["attainment"] >= each["objective"]
            yield f"{name or 'no class'}: {100.0 * each['attainment']:.2f} % of {100.0 * each['objective']:g} %", met
    ratio = ours.gpu_hours / one.gpu_hours
    yield f"{ratio:.3f} x one service under the tightest objective, bar {OF_ONE:g} x", ratio <= OF_ONE
    if best is not None:
        ratio = ours.gpu_hours / best.gpu_hours
        yield f"{ratio:.3f} x the oracle's GPU-hours, bar {OF_ORACLE:g} x", ratio <= OF_ORACLE


def main() -> int:
    """Print each run and each bar; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[secrets.randbelow(10**6) for _ in range(3)])
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("--start", type=float, default=0.0)
    parser.add_argument("--hours", type=float, default=24.0)
    given = parser.parse_args()
    where = f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"seeds {given.seeds}, {given.hours:g} h from hour {given.start:g} on; {where}", flush=True)
    missed = 0
    for seed in given.seeds:
        days: dict[str, Day] = {}
        for name in (CLASSES, ONE, *([ORACLE] if given.oracle else [])):
            days[name] = played(name, ONE if name == ONE else CLASSES, seed, given.data, given.start, given.hours)
            print(*rows(name, seed, days[name]), sep="\n", flush=True)
        for text, met in verdicts(days[CLASSES], days[ONE], days.get(ORACLE)):
            missed += not met
            print(f"seed {seed}: {'met' if met else 'MISSED'}: {text}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())

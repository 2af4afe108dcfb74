"""A day of classes on one service, against a service that keeps the tightest objective for all requests.

    python -m benchmarks.classes_day --data DIR [--seeds 1 2 3] [--oracle] [--start 0] [--hours 24] [--faster 1]

The load is that of `diurnal` (ServeGen's m-large, lengths of Azure's conversations, Llama-3.1-70B on four A100s a
replica), and as much batch besides that 20 % of the requests are tight, 50 % have the service's own objectives and 30 %
are batch. `--faster 6` plays a day in four hours: the same rates, six times as soon after each other.

The bounds follow from the engine alone: what 99 % of these requests keep together on an idle replica, times 2 for tight
requests and times 4 for those of no class. Both objectives are 99 %, tight requests have priority 10. So each objective
can be met, and no run decides about it. `one` is the same service with the tight bounds for all requests but batch.

`--oracle` looks for the cheapest sizes known before that keep the objective of each class: some thirty runs more.
Without `--seeds` three fresh ones are drawn and printed.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import platform
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.drawn_days import pairs
from holdfast.cli.simulate import declare
from holdfast.twin.policies import Holdfast
from holdfast.twin.replica.capacity import Bench
from holdfast.twin.runs.oracle import ORACLE, oracle
from holdfast.twin.runs.results import summary
from holdfast.twin.runs.run import simulate
from holdfast.twin.scenarios.declared_service import Declared, engine_kind
from holdfast.twin.scenarios.scenario import Scenario
from holdfast.twin.scenarios.traces import read_rates

LOAD = Path(__file__).parent / "scenarios" / "diurnal.yaml"
RATES = "servegen/m-large_rate_10min.csv"
SHARES = {"tight": 0.2, "nightly": 0.3}
OF_LONE = {"tight": 2.0, "": 4.0}
IDLE_RPS = 0.01
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
    def attains(self) -> bool:
        """Whether each class kept its objective."""
        return all(
            each["objective"] is None or each["attainment"] >= each["objective"] for each in self.classes.values()
        )

    @property
    def classes(self) -> Mapping[str, Any]:
        """Results by class."""
        return dict(self.result["services"]["chat"]["classes"])


@dataclass(frozen=True, slots=True)
class Load:
    """What is played: hours of the recorded rates, so many times faster, and a lone request's TTFT and TPOT."""

    data: Path
    start: float
    hours: float
    faster: float
    rates: Path
    lone_seconds: tuple[float, float]

    def bounds(self, of_class: str) -> dict[str, str]:
        """Of a class, as in a spec."""
        ttft, tpot = (f"{math.ceil(1000.0 * OF_LONE[of_class] * each)}ms" for each in self.lone_seconds)
        return {"ttft": ttft, "tpot": tpot, "objective": "99%"}

    def scenario(self, kind: str) -> Scenario:
        """The day with classes, or with the tight bounds for all requests but batch."""
        content = yaml.safe_load(LOAD.read_text(encoding="utf-8"))
        (service,) = content["services"]
        slo, workload = service["spec"]["slo"], service["workload"]
        slo["classes"] = (
            [NIGHTLY] if kind == ONE else [{"name": "tight", **self.bounds("tight"), "priority": 10}, NIGHTLY]
        )
        slo |= self.bounds("tight" if kind == ONE else "")
        workload["classes"] = {each["name"]: SHARES[each["name"]] for each in slo["classes"]}
        rates, begins, lasts = workload["arrivals"]["rates"], self.start / self.faster, self.hours / self.faster
        # What is recorded is scaled by the highest rate that is played.
        peak = rates["peakRps"] / (1.0 - SHARES["nightly"])
        rates |= {"path": str(self.rates.absolute()), "start": f"{begins:g}h", "peakRps": peak}
        service["spec"]["scaling"]["max"] = 100
        content["cluster"]["accelerators"]["a100"]["gpus"] = 400
        return Scenario.model_validate(content | {"name": kind, "duration": f"{lasts:g}h"})

    def declared(self, scenario: Scenario, seed: int) -> Declared:
        """Its service and requests."""
        (entry,) = scenario.services
        return declare(scenario, entry, LOAD, self.data, seed)


def write_faster(rates: Path, faster: float, path: Path) -> None:
    """Recorded rates, so many times as soon after each other."""
    times, found = read_rates(rates)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("t_s", "rate_rps"), *zip((times / faster).tolist(), found.tolist(), strict=True)])


def lone_seconds(data: Path) -> tuple[float, float]:
    """TTFT and TPOT that 99 % of the requests keep together on an idle replica."""
    scenario = Scenario.model_validate(yaml.safe_load(LOAD.read_text(encoding="utf-8")) | {"duration": "1h"})
    declared = declare(scenario, scenario.services[0], LOAD, data, seed=0)
    (option,) = declared.spec.accelerators
    kind = engine_kind(declared, option, scenario.cluster.accelerators[option.name], admission=False)
    ttft, tpot, _ = Bench(kind, declared.spec.slo, pairs("conversations", data)).feasible(IDLE_RPS)
    return ttft, tpot


def played(name: str, load: Load, seed: int) -> Day:
    """A day under Holdfast or the oracle."""
    scenario, started = load.scenario(ONE if name == ONE else CLASSES), time.monotonic()
    declared = [load.declared(scenario, seed)]
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
    if best is not None and not best.attains:
        yield "no sizes known before were found that keep each class: there is no oracle to compare with", False
    elif best is not None:
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
    parser.add_argument("--faster", type=float, default=1.0)
    given = parser.parse_args()
    where = f"{platform.machine()}, {os.cpu_count()} cores"
    print(
        f"seeds {given.seeds}, {given.hours:g} h from hour {given.start:g} on, x {given.faster:g}; {where}", flush=True
    )
    with tempfile.TemporaryDirectory() as folder:
        rates = Path(folder) / "rates.csv"
        write_faster(given.data / RATES, given.faster, rates)
        load = Load(given.data, given.start, given.hours, given.faster, rates, lone_seconds(given.data))
        print("bounds: " + "; ".join(f"{name or 'no class'} {load.bounds(name)}" for name in OF_LONE), flush=True)
        return int(sum(missed_of(load, seed, given.oracle) for seed in given.seeds) > 0)


def missed_of(load: Load, seed: int, with_oracle: bool) -> int:
    """Play the days of a seed and print them; how many bars were missed."""
    days: dict[str, Day] = {}
    for name in (CLASSES, ONE, *([ORACLE] if with_oracle else [])):
        days[name] = played(name, load, seed)
        print(*rows(name, seed, days[name]), sep="\n", flush=True)
    judged = [*verdicts(days[CLASSES], days[ONE], days.get(ORACLE))]
    for text, met in judged:
        print(f"seed {seed}: {'met' if met else 'MISSED'}: {text}", flush=True)
    return sum(not met for _, met in judged)


if __name__ == "__main__":
    sys.exit(main())

"""The accidents of `benchmarks/reality.py`: what each changes in the scenario of the plain day, and its bars."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.cli.simulate import declare
from holdfast.twin.scenarios.declared_service import Declared
from holdfast.twin.scenarios.scenario import Scenario

WITH, SLOW, STATIC = "holdfast", "holdfast-slow", "static"
CELLS = (
    *("accident", "plugin", "seeds", "attainment % (least to most)", "worst 5 min %", "GPU-hours (static)"),
    *("largest size", "changes", "bar", "verdict"),
)
CONVERSATIONS = "azure2023/AzureLLMInferenceTrace_conv.csv"
DAY = ((0, 6.0), (40, 18.0), (80, 24.0), (120, 12.0), (125, 24.0), (150, 24.0), (200, 8.0), (240, 6.0))
"""Minutes and requests per second, in straight lines between them."""

Edits = Mapping[str, Any]
"""Dotted places of a scenario and their values; numbers are places of a list."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What is asked of the mean of all seeds: attainment (the row's objective where None), and GPU-hours.

    `seeds_below`: at most this share of the seeds may be below the objective. `of_static`: times the GPU-hours of the
    smallest static size; `of_other`: of the row with that name. `sized_only`: attainment is not judged. `named_within`
    seconds uneven load is named.
    """

    attains: float | None = None
    seeds_below: float | None = None
    of_static: float | None = None
    of_other: tuple[float, str] | None = None
    hours: float | None = None
    largest: int | None = None
    named_within: float | None = None
    sized_only: bool = False

    def told(self, objective: float) -> str:
        """The bar in words."""
        return ", ".join(self._told(objective))

    def _told(self, objective: float) -> Iterator[str]:
        if self.seeds_below is not None:
            yield f"at most {self.seeds_below:.0%} of the seeds below {100 * objective:g} %"
        elif not self.sized_only:
            yield f">= {100 * (objective if self.attains is None else self.attains):g} %"
        if self.of_static is not None:
            yield f"<= {self.of_static:g} x static"
        if self.of_other is not None:
            yield "<= {:g} x {}".format(*self.of_other)
        if self.hours is not None:
            yield f"<= {self.hours:g} GPU-hours"
        if self.largest is not None:
            yield f"size <= {self.largest}"
        if self.named_within is not None:
            yield f"named within {self.named_within:g} s"


@dataclass(frozen=True, slots=True)
class Accident:
    """One accident; edits `when_with` and `when_without` the plugin come on top."""

    name: str
    edits: Edits = field(default_factory=dict)
    bars: Mapping[str, Bar] = field(default_factory=dict)
    objective: float = 0.99
    when_with: Edits = field(default_factory=dict)

    @property
    def policies(self) -> Sequence[str]:
        """What plays it: the static size only where a bar asks for it."""
        compared = any(bar.of_static is not None for bar in self.bars.values())
        return (WITH, SLOW, STATIC) if compared else (WITH, SLOW)

    def content(self, policy: str) -> Mapping[str, Any]:
        """Its scenario under a policy, as a file says it."""
        found = plain_day()
        more = self.when_with if policy == WITH else {}
        for place, value in {"name": self.name, **self.edits, **more}.items():
            _edit(found, place.split("."), value)
        found["services"][0]["spec"]["slo"]["objective"] = f"{100 * self.objective:g}%"
        return found

    def declared(self, policy: str, data: Path, seed: int) -> tuple[Scenario, list[Declared]]:
        """Its scenario under a policy, and the services with their requests."""
        scenario = Scenario.model_validate(self.content(policy))
        return scenario, [declare(scenario, entry, Path(), data, seed) for entry in scenario.services]


def plain_day() -> dict[str, Any]:
    """Four hours in which nothing goes wrong."""
    spec = {
        "model": {"uri": "meta-llama/Llama-3.1-8B-Instruct"},
        "slo": {"ttft": "2s", "tpot": "100ms", "objective": "99%", "window": "1h"},
        "accelerators": [{"name": "l40s", "costPerHour": 1.55}],
        "scaling": {"min": 1, "max": 30},
    }
    workload = {
        "arrivals": {"poisson": steps(DAY), "ramp": True},
        "lengths": {"trace": {"path": CONVERSATIONS, "format": "azure"}},
    }
    cards = {"system": "l40s", "gpus": 30, "coldStart": "90s", "coldStartJitter": 0.2, "overhead": "1.5ms"}
    service = {"name": "chat", "spec": spec, "workload": workload, "initialReplicas": {"l40s": 3}}
    day: dict[str, Any] = {"name": "plain", "duration": "4h", "warmup": "15m", "services": [service]}
    return day | {"cluster": {"accelerators": {"l40s": cards}, "router": "random-per-connection"}}


def steps(minutes: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    """Rates by minute, as a scenario says them."""
    return [{"at": f"{60 * minute:g}s", "rps": rps} for minute, rps in minutes]


def _edit(content: Any, path: Sequence[str], value: Any) -> None:
    *outer, last = path
    for name in outer:
        content = content[int(name)] if isinstance(content, list) else content.setdefault(name, {})
    content[last] = copy.deepcopy(value)


ARRIVALS = "services.0.workload.arrivals"
REALITY = "services.0.reality"
CARDS = "cluster.accelerators.l40s"
NEVER_CLOSED = {f"{REALITY}.closeShare": 0, f"{REALITY}.idleTimeout": "300d"}
STEP = {ARRIVALS: {"poisson": steps(((0, 6), (20, 20), (40, 6)))}, "duration": "1h", "warmup": "10m"}


def bursts(period: float) -> Edits:
    """From 6 to 20 req/s for two minutes at the end of every period, in seconds."""
    starts = [number * period for number in range(int(14_400 // period))]
    rates = [pair for at in starts for pair in ((at / 60, 6.0), ((at + period - 120) / 60, 20.0))]
    return {ARRIVALS: {"poisson": steps(rates)}}


def scaled(factor: float) -> Edits:
    """The plain day with this multiple of its load."""
    return {f"{ARRIVALS}.poisson": steps([(minute, factor * rps) for minute, rps in DAY])}


def late(delay: str, scrape: str) -> Edits:
    """Samples that arrive so long after they were taken."""
    return {"cluster.reality.sampleDelay": delay, "scrapeInterval": scrape}


def cards(system: str, gpus: int = 30) -> Edits:
    """Other GPUs behind the same accelerator of the spec, whatever its label says."""
    kinds = {"system": system, "gpus": gpus, "coldStart": "90s", "coldStartJitter": 0.2, "overhead": "1.5ms"}
    return {"cluster.accelerators": {"pool": kinds}, "services.0.initialReplicas": {"pool": 3}}


def labelled(product: str) -> Edits:
    """The accelerator `pool`, whose nodes have this label."""
    option = {"name": "pool", "nodeSelector": {"nvidia.com/gpu.product": product}, "costPerHour": 1}
    return {"services.0.spec.accelerators": [option]}


def tight(ttft: str, tpot: str) -> Edits:
    """Other objectives."""
    slo = "services.0.spec.slo"
    return {f"{slo}.ttft": ttft, f"{slo}.tpot": tpot}


HOLDS = {WITH: Bar()}
ALONE = {WITH: Bar(), SLOW: Bar(seeds_below=0.1, of_static=0.95)}
LATE = {WITH: Bar(), SLOW: Bar(attains=0.98, of_static=1.0)}
STICKY = {WITH: Bar(), SLOW: Bar(attains=0.97, of_static=1.0)}
SKEWED = {WITH: Bar(), SLOW: Bar(sized_only=True, of_static=1.2, named_within=300.0)}
RETRIED = dict.fromkeys((WITH, SLOW), Bar(sized_only=True, largest=7))
REJECTS = {"services.0.spec.overload": "Reject"}
LARGE_SERVICE = {
    "cluster.accelerators": {"h100": {"system": "h100_sxm", "gpus": 400, "coldStart": "90s", "coldStartJitter": 0.2}},
    "services.0.spec.accelerators": [{"name": "h100", "costPerHour": 2.95}],
    "services.0.spec.scaling.max": 400,
    "services.0.initialReplicas": {"h100": 70},
    ARRIVALS: {"poisson": steps(((0, 1000), (15, 2000)))},
    "duration": "40m",
    "warmup": "18m",
}
L4 = {
    "services.0.spec.model.uri": "Qwen/Qwen3-8B",
    "services.0.spec.accelerators": [{"name": "h100", "costPerHour": 1}],
    "services.0.spec.scaling.max": 40,
    "services.0.initialReplicas": {"h100": 1},
    "cluster.accelerators": {"h100": {"system": "l4", "gpus": 60, "coldStart": "60s", "overhead": "1.5ms"}},
    ARRIVALS: {"poisson": steps(((0, 10),))},
    "duration": "60m",
    "warmup": "20m",
}
"""The scenario mismatch-l4: the operator believes H100 by the accelerator's name, the engines are L4s."""

_ALL = (
    Accident("plain", bars={WITH: Bar(hours=13.3), SLOW: ALONE[SLOW]}),
    Accident("cold start 315 s", {f"{CARDS}.coldStart": "315s", f"{CARDS}.coldStartJitter": 0}, ALONE),
    Accident("cold start 30 to 600 s", {f"{CARDS}.coldStart": "315s", f"{CARDS}.coldStartJitter": 0.905}, ALONE),
    Accident("scrape 30 s", {"scrapeInterval": "30s"}, ALONE),
    Accident("samples 30 s late, scrape 15 s", late("30s", "15s"), LATE),
    Accident("samples 45 s late, scrape 30 s", late("45s", "30s"), LATE),
    Accident("samples 60 s late, scrape 30 s", late("60s", "30s"), LATE),
    Accident(
        "straggler: one replica 2 x slower from minute 30",
        {"faults": [{"at": "30m", "kind": "replica-slow", "factor": 2}]},
        {WITH: Bar(of_other=(1.1, "plain"), hours=14.6), SLOW: Bar(of_static=1.0)},
    ),
    Accident("sticky: 80 % of the requests on half of the connections", {f"{REALITY}.busyHalfShare": 0.8}, STICKY),
    Accident("sticky 80 %, never closed", {f"{REALITY}.busyHalfShare": 0.8, **NEVER_CLOSED}, HOLDS),
    Accident("connections never closed", NEVER_CLOSED, SKEWED),
    Accident("8 connections, never closed", {f"{REALITY}.connections": 8, **NEVER_CLOSED}, SKEWED),
    Accident("6 to 20 req/s for 20 min", STEP, HOLDS),
    Accident(
        "the same, 4 retries (1 s x 2^k)", {**STEP, f"{REALITY}.retries": {"most": 4}}, RETRIED, when_with=REJECTS
    ),
    Accident(
        "the same, 10 retries at once",
        {**STEP, f"{REALITY}.retries": {"most": 10, "wait": "0s"}},
        RETRIED,
        when_with=REJECTS,
    ),
    Accident("steps 1.2 x the prior", {f"{CARDS}.stepFactor": 1.2}, HOLDS),
    Accident("steps 1.5 x the prior", {f"{CARDS}.stepFactor": 1.5}, HOLDS),
    Accident("bursts every 800 s", bursts(800), HOLDS, 0.95),
    Accident("bursts every 1,000 s", bursts(1000), {WITH: Bar(hours=12.3)}, 0.95),
    Accident("bursts every 1,200 s", bursts(1200), HOLDS, 0.95),
    Accident("unknown GPU (L40S)", {**cards("l40s"), **labelled("ACME-X1")}, {WITH: Bar(hours=51.0)}),
    Accident(
        "unknown GPU, half the load, 1 s / 50 ms",
        {**cards("l40s"), **labelled("ACME-X1"), **scaled(0.5), **tight("1s", "50ms")},
        HOLDS,
    ),
    Accident(
        "label MI355X, gets H100",
        {
            **cards("h100_sxm"),
            **labelled("AMD-Instinct-MI355X"),
            **scaled(0.7),
            **tight("2s", "60ms"),
            "services.0.spec.model.uri": "Qwen/Qwen3-32B",
        },
        HOLDS,
    ),
    Accident("believes H100, gets L4", L4, HOLDS, 0.95),
    Accident("H100, 4 x the load", {**cards("h100_sxm"), **labelled("NVIDIA-H100-80GB-HBM3"), **scaled(4.0)}, HOLDS),
    Accident(
        "the same, believed to be an L40S, 4 x slower",
        {**cards("h100_sxm"), **labelled("NVIDIA-L40S"), **scaled(4.0)},
        dict.fromkeys((WITH, SLOW), Bar(of_other=(1.3, "H100, 4 x the load"))),
    ),
    Accident("0.35 s and 30 ms together", tight("350ms", "30ms")),
    Accident("large: 1,000 to 2,000 req/s", LARGE_SERVICE, HOLDS),
)
ACCIDENTS: Mapping[str, Accident] = {each.name: each for each in _ALL}
"""By name, in the order of the table."""

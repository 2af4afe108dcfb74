"""Days that nobody chose: load, lengths, prefixes and cluster of a day follow from its seed alone.

Of five features a day has two to five: a swing, bursts, a change of mix, prefixes that were seen before, and a trend.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.autoscaling.cases import Case
from holdfast.cli.simulate import declare
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.arrays.timers import Floats, Integers
from holdfast.twin.replica.capacity import LengthPairs
from holdfast.twin.scenarios.declared_service import Declared
from holdfast.twin.scenarios.scenario import Scenario
from holdfast.twin.scenarios.traces import read_trace

TREE = "4e2e7b5c16bc1c22279d39ad11104bbd7c2880c4"
"""Git's hash of the tree of commit cffd1821 (`git rev-parse cffd1821^{tree}`), the last one before this file was
written. It stands here because a checkout may come without its history."""

SEEDS = tuple(int(TREE[place : place + 4], 16) for place in range(0, len(TREE), 4))
"""Ten days that nobody chose: each four digits of the hash are a seed."""

HOURS, GRID_SECONDS, EDGE_SECONDS = 24.0, 600.0, 1.0
MOST_REPLICAS = 40
SWING, PEAK, BURSTS, HEIGHT, BURST_MINUTES = (2.0, 10.0), (2.0, 6.0), (1, 6), (1.5, 4.0), (2.0, 20.0)
TREND, SHARE, PREFIX_LOW, PREFIX_HIGH = (1.25, 2.0), (0.3, 1.0), (0.0, 0.3), (0.4, 0.8)
COLD_START_SECONDS = (45.0, 240.0)
FEATURES = ("swing", "bursts", "mix", "prefix", "trend")


CARRIED_RPS = {"conversations": 5.1, "code": 1.4, "m-large": 5.0, "aibrix": 7.6}
"""Requests/s that one replica carries of each source. They set the scale of a day and nothing else; source:
`benchmarks/autoscaling/fixed_limits.py carried_rps`."""


def pairs(source: str, data: Path) -> LengthPairs:
    """Recorded prompts and answers: two traces of Azure, ServeGen's m-large, and AIBrix's bursts of five seconds."""
    if source == "aibrix":
        with (data / "aibrix/5s_lengths.csv").open(newline="") as file:
            rows = [(int(row["prompt_len"]), max(1, int(row["output_len"]))) for row in csv.DictReader(file)]
        prompts, outputs = np.array(rows, np.int64).T
        return LengthPairs(prompts, outputs)
    if source == "m-large":
        told = json.loads((data / "servegen/m-large_length_hist.json").read_text())
        return LengthPairs(_binned(told["input"]), _binned(told["output"]))
    trace = read_trace(data / f"azure2023/AzureLLMInferenceTrace_{AZURE[source]}.csv", "azure")
    return LengthPairs(trace.prompt_tokens, trace.output_tokens)


AZURE = {"conversations": "conv", "code": "code"}
BINNED = 20_000


def _binned(shares: Mapping[str, float]) -> Integers:
    """Lengths of a histogram over int(10 log2(tokens + 1)), in the middle of their bins and in no order."""
    bins = np.array([int(name) for name in shares])
    weights = np.array(list(shares.values()))
    drawn_bins = np.random.default_rng(len(bins)).choice(bins, BINNED, p=weights / weights.sum())
    return np.asarray(np.maximum(1, np.rint(2.0 ** ((drawn_bins + 0.5) / 10.0) - 1.0)), np.int64)


@dataclass(frozen=True, slots=True)
class Burst:
    """So many times the load from an hour on, for so many minutes."""

    hour: float
    minutes: float
    height: float

    @property
    def seconds(self) -> tuple[float, float]:
        """When it begins and ends."""
        return 3600.0 * self.hour, 3600.0 * self.hour + 60.0 * self.minutes


@dataclass(frozen=True, slots=True)
class Mix:
    """From an hour on, within so many minutes, this share of the requests has the lengths of another source."""

    source: str
    hour: float
    minutes: float
    share: float

    def at(self, seconds: Floats) -> Floats:
        """The share at those times."""
        passed = (seconds - 3600.0 * self.hour) / max(60.0 * self.minutes, 1.0)
        return np.asarray(self.share * np.clip(passed, 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class Prefix:
    """The cached share of prompts: it goes up and down between two shares once in so many hours."""

    low: float
    high: float
    hours: float
    phase: float

    def at(self, seconds: Floats) -> Floats:
        """The share at those times."""
        wave = 0.5 - 0.5 * np.cos(2.0 * math.pi * (seconds / 3600.0 / self.hours + self.phase))
        return np.asarray(self.low + (self.high - self.low) * wave)


@dataclass(frozen=True, slots=True)
class DrawnDay:
    """A day: its peak, in replicas without bursts, is `swing` times its trough (1 is none), at `peak_hour`.

    From end to end it grows `trend` times.
    """

    source: str
    peak: float
    swing: float
    peak_hour: float
    trend: float
    bursts: tuple[Burst, ...]
    mix: Mix | None
    prefix: Prefix | None
    cold_start_seconds: float

    @property
    def features(self) -> tuple[str, ...]:
        """What it has of the five."""
        has = (self.swing > 1.0, bool(self.bursts), self.mix is not None, self.prefix is not None, self.trend != 1.0)
        return tuple(name for name, there in zip(FEATURES, has, strict=True) if there)

    @property
    def carried_rps(self) -> float:
        """What one replica carries of the heavier of its mixes."""
        before = CARRIED_RPS[self.source]
        if self.mix is None:
            return before
        after = (1.0 - self.mix.share) / before + self.mix.share / CARRIED_RPS[self.mix.source]
        return min(before, 1.0 / after)

    def rates(self) -> list[tuple[float, float]]:
        """Seconds and requests per second, in straight lines between them."""
        grid = np.arange(0.0, 3600.0 * HOURS + 1.0, GRID_SECONDS)
        edges = [edge for burst in self.bursts for edge in burst.seconds]
        corners = [at + offset for at in edges for offset in (0.0, EDGE_SECONDS)]
        inside = [at for at in corners if 0.0 < at < 3600.0 * HOURS]
        times = np.unique(np.concatenate([grid, inside]))
        slow = self._slow(times) / self._slow(grid).max()
        rates = self.peak * self.carried_rps * slow * self._raised(times)
        return list(zip(times.tolist(), rates.tolist(), strict=True))

    def _slow(self, times: Floats) -> Floats:
        hours = times / 3600.0
        low = 1.0 / self.swing
        swing = low + (1.0 - low) * (0.5 + 0.5 * np.cos(2.0 * math.pi * (hours - self.peak_hour) / HOURS))
        return np.asarray(swing * self.trend ** (hours / HOURS))

    def _raised(self, times: Floats) -> Floats:
        """What bursts make of each moment: the highest of those that go on."""
        found = np.ones(len(times))
        for burst in self.bursts:
            begins, ends = burst.seconds
            inside = (times >= begins + EDGE_SECONDS) & (times <= ends)
            found = np.where(inside, np.maximum(found, burst.height), found)
        return found


def drawn(seed: int) -> DrawnDay:
    """The day of a seed."""
    draw = np.random.default_rng([seed, 17])
    count = int(draw.integers(2, len(FEATURES) + 1))
    chosen = {FEATURES[place] for place in draw.choice(len(FEATURES), count, replace=False)}
    source = str(draw.choice(list(CARRIED_RPS)))
    swing, trend = _log_uniform(draw, SWING), _log_uniform(draw, TREND) ** float(draw.choice([-1.0, 1.0]))
    return DrawnDay(
        source=source,
        peak=float(draw.uniform(*PEAK)),
        swing=swing if "swing" in chosen else 1.0,
        peak_hour=float(draw.uniform(0.0, HOURS)),
        trend=trend if "trend" in chosen else 1.0,
        bursts=_bursts(draw) if "bursts" in chosen else (),
        mix=_mix(draw, source) if "mix" in chosen else None,
        prefix=_prefix(draw) if "prefix" in chosen else None,
        cold_start_seconds=float(draw.uniform(*COLD_START_SECONDS)),
    )


def _log_uniform(draw: np.random.Generator, between: tuple[float, float]) -> float:
    return float(math.exp(draw.uniform(*map(math.log, between))))


def _bursts(draw: np.random.Generator) -> tuple[Burst, ...]:
    count = int(draw.integers(BURSTS[0], BURSTS[1] + 1))
    made = [
        Burst(float(draw.uniform(1.0, HOURS - 1.0)), float(draw.uniform(*BURST_MINUTES)), float(draw.uniform(*HEIGHT)))
        for _ in range(count)
    ]
    return tuple(sorted(made, key=lambda burst: burst.hour))


def _mix(draw: np.random.Generator, source: str) -> Mix:
    others = [name for name in CARRIED_RPS if name != source]
    hour, minutes = float(draw.uniform(4.0, 20.0)), float(draw.uniform(0.0, 60.0))
    return Mix(str(draw.choice(others)), hour, minutes, float(draw.uniform(*SHARE)))


def _prefix(draw: np.random.Generator) -> Prefix:
    low, high = float(draw.uniform(*PREFIX_LOW)), float(draw.uniform(*PREFIX_HIGH))
    return Prefix(low, high, float(draw.uniform(2.0, 12.0)), float(draw.random()))


def content(seed: int) -> Mapping[str, Any]:
    """The scenario of a day as far as a file can say it: without lengths and prefixes."""
    day = drawn(seed)
    rates = day.rates()
    spec = {
        "model": {"uri": "meta-llama/Llama-3.1-8B-Instruct"},
        "slo": {"ttft": "2s", "tpot": "100ms", "objective": "99%", "window": "1h"},
        "accelerators": [{"name": "l40s", "costPerHour": 1}],
        "scaling": {"min": 1, "max": MOST_REPLICAS},
    }
    workload = {
        "arrivals": {"poisson": [{"at": f"{at:.3f}s", "rps": rps} for at, rps in rates], "ramp": True},
        "lengths": {"fixed": {"promptTokens": 1, "outputTokens": 1}},  # `lived` draws them
    }
    first = math.ceil(rates[0][1] / day.carried_rps) + 1
    service = {"name": "chat", "spec": spec, "workload": workload, "initialReplicas": {"l40s": first}}
    hardware = {"system": "l40s", "gpus": MOST_REPLICAS, "coldStartJitter": 0.2}
    hardware |= {"coldStart": f"{day.cold_start_seconds:.1f}s"}
    found: dict[str, Any] = {"name": f"day {seed}", "duration": f"{HOURS:g}h", "warmup": "30m", "services": [service]}
    return found | {"cluster": {"accelerators": {"l40s": hardware}}}


@dataclass(frozen=True, slots=True)
class Day(Case):
    """A drawn day as a case of the comparison; `name` is its seed."""

    @property
    def seed(self) -> int:
        """Of the day and of its requests."""
        return int(self.name.removeprefix("day "))

    def digest(self) -> str:
        """Of everything that its requests and its cluster come from."""
        told = repr(drawn(self.seed)).encode() + json.dumps(content(self.seed), sort_keys=True).encode()
        return hashlib.sha256(told).hexdigest()[:12]

    def scenario(self) -> Scenario:
        """What a scenario file can say of it."""
        return Scenario.model_validate(content(self.seed))

    def declared(self, scenario: Scenario, data: Path, seed: int) -> Sequence[Declared]:
        """Its service with the requests of the day."""
        found = [declare(scenario, entry, Path(), data, seed) for entry in scenario.services]
        return [replace(each, workload=lived(each.workload, drawn(self.seed), data, seed)) for each in found]


def day_of(seed: int) -> Day:
    """The day of a seed."""
    return Day(f"day {seed}")


def lived(load: Workload, day: DrawnDay, data: Path, seed: int) -> Workload:
    """Requests that come at the same times, with the lengths and the cached prefixes of the day."""
    draw = np.random.default_rng([seed, 19])
    prompts, outputs = pairs(day.source, data).draw(len(load), draw)
    if day.mix is not None:
        turned = draw.random(len(load)) < day.mix.at(load.at)
        others = pairs(day.mix.source, data).draw(len(load), draw)
        prompts, outputs = np.where(turned, others, (prompts, outputs))
    shares = np.zeros(len(load)) if day.prefix is None else day.prefix.at(load.at)
    cached = np.minimum((shares * prompts).astype(np.int64), prompts - 1)
    return Workload(load.at, prompts, outputs, cached)

"""The outcome as figures, a table of bars, and JSON."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from benchmarks.scale.bench import Outcome
from benchmarks.scale.watch import Seen

CONSTANT_P99_SECONDS, VARYING_P99_SECONDS = 1.0, 2.0
CPU_SECONDS = 0.7
MEMORY_MIB = 250.0
QUERIES_PER_TICK = 12


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise, what was measured, and whether it was kept."""

    promise: str
    measured: str
    kept: bool


def bars(outcome: Outcome) -> list[Bar]:
    """All promises of the operator about its own cost."""
    size, steps = outcome.size, outcome.steps
    constant, varying = outcome.constant, outcome.varying
    limit_seconds = size.tick_seconds + 1.0
    answered = sorted(step.seconds for step in steps if step.seconds is not None)
    asked = most_queries(outcome)
    written, allowed = status_writes_per_second(varying), size.services / 60
    worst = f"worst {answered[-1]:.1f} s of {len(answered)}/{len(steps)}" if answered else "none answered"
    idle = sum(constant.written().values())
    return [
        _tick_bar("constant", [constant], CONSTANT_P99_SECONDS),
        _tick_bar("varying", [outcome.stepping, varying], VARYING_P99_SECONDS),
        *(_cpu_bar(name, seen) for name, seen in (("constant", constant), ("varying", varying))),
        Bar(
            f"RSS <= {MEMORY_MIB:g} MiB",
            f"{outcome.most_memory_mib:.0f} MiB ({outcome.creating_memory_mib:.0f} MiB while creating all)",
            outcome.most_memory_mib <= MEMORY_MIB,
        ),
        Bar(f"queries per tick <= {QUERIES_PER_TICK}", f"{asked}", asked <= QUERIES_PER_TICK),
        Bar("API writes besides the Lease at constant load = 0", f"{idle} in {constant.seconds:.0f} s", idle == 0),
        Bar(f"status writes under varying load <= {allowed:.1f}/s", f"{written:.2f}/s", written <= allowed),
        Bar(
            f"from a visible step to /scale <= {limit_seconds:g} s",
            worst,
            len(answered) == len(steps) > 0 and answered[-1] <= limit_seconds,
        ),
    ]


def _tick_bar(load: str, parts: Sequence[Seen], most_seconds: float) -> Bar:
    ticks = [tick.seconds for seen in parts for tick in seen.ticks]
    p99 = percentile(ticks, 0.99)
    return Bar(f"tick p99 at {load} load <= {most_seconds:g} s", f"{p99:.2f} s of {len(ticks)}", p99 <= most_seconds)


def _cpu_bar(load: str, seen: Seen) -> Bar:
    used = _per_tick(seen, seen.cpu_seconds)
    promise = f"CPU of the operator at {load} load <= {CPU_SECONDS:g} s a tick"
    return Bar(promise, f"{used:.2f} s", used <= CPU_SECONDS)


def table(outcome: Outcome) -> str:
    """What a person reads."""
    size = outcome.size
    lines = [
        f"{size.services} LLMServices, {size.services * size.replicas} pods, tick {size.tick_seconds:g} s, "
        f"scrapes every {size.scrape_seconds:g} s, seed {size.seed}; {machine()}",
        "set-up: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in outcome.seconds.items())
        + ("" if outcome.settled else " (NOT settled)"),
        f"{'':10} {'ticks':>5} {'p50 s':>6} {'p99 s':>6} {'metrics':>7} {'decide':>6} {'act':>5} {'CPU s/tick':>10} "
        f"{'Prometheus':>10} {'RSS MiB':>7}",
    ]  # fmt: skip
    for name, seen in (("constant", outcome.constant), ("steps", outcome.stepping), ("varying", outcome.varying)):
        lines.append(_row(name, seen))
    width = max(len(bar.promise) for bar in bars(outcome))
    lines += [f"{bar.promise:{width}}  {bar.measured:40} {'kept' if bar.kept else 'MISSED'}" for bar in bars(outcome)]
    return "\n".join(lines)


def to_json(outcome: Outcome) -> dict[str, Any]:
    """All figures."""
    size = outcome.size
    return {
        "machine": machine(),
        "services": size.services,
        "pods": size.services * size.replicas,
        "tick_seconds": size.tick_seconds,
        "scrape_seconds": size.scrape_seconds,
        "seed": size.seed,
        "seconds": {name: round(seconds, 1) for name, seconds in outcome.seconds.items()},
        "settled": outcome.settled,
        "peak_memory_mib": {
            "creating": round(outcome.creating_memory_mib),
            "since_restart": round(outcome.most_memory_mib),
        },
        "constant": figures(outcome.constant),
        "changed_at_constant_load": dict(outcome.changed_at_constant_load),
        "steps": figures(outcome.stepping),
        "varying": figures(outcome.varying),
        "step_to_scale_seconds": [None if s.seconds is None else round(s.seconds, 2) for s in outcome.steps],
        "bars": [{"promise": bar.promise, "measured": bar.measured, "kept": bar.kept} for bar in bars(outcome)],
    }


def figures(seen: Seen) -> dict[str, Any]:
    """One part of the course."""
    ticks = [tick.seconds for tick in seen.ticks]
    asked = [len(seconds) for seconds in seen.queries.values()]
    return {
        "seconds": round(seen.seconds, 1),
        "ticks": seen.tick_count,
        "tick_p50_seconds": round(percentile(ticks, 0.5), 3),
        "tick_p99_seconds": round(percentile(ticks, 0.99), 3),
        "phase_mean_seconds": {name: round(value, 3) for name, value in _phases(seen).items()},
        "cpu_seconds_per_tick": round(_per_tick(seen, seen.cpu_seconds), 3),
        "prometheus_cpu_seconds_per_tick": round(_per_tick(seen, seen.prometheus_cpu_seconds), 3),
        "queries_per_tick": {"mean": round(mean(asked), 2) if asked else None, "most": max(asked, default=0)},
        "slowest_query_seconds": round(max((max(some) for some in seen.queries.values()), default=0.0), 3),
        "memory_mib": round(max(seen.memory_mib, default=math.nan)),
        "writes": dict(seen.written()),
        "status_writes_per_second": round(status_writes_per_second(seen), 3),
    }


def machine() -> str:
    """Processor, cores and Python, as a reader needs them to compare."""
    model = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} cores shared by everything, Python {platform.python_version()}"


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank; NaN of nothing."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def most_queries(outcome: Outcome) -> int:
    """Most queries of one tick."""
    parts = (outcome.constant, outcome.stepping, outcome.varying)
    return max((len(some) for seen in parts for some in seen.queries.values()), default=0)


def status_writes_per_second(seen: Seen) -> float:
    """Statuses written per second, over the whole part."""
    count = sum(write.resource == "llmservices/status" for write in seen.writes)
    return count / seen.seconds if seen.seconds else 0.0


def _row(name: str, seen: Seen) -> str:
    ticks, phases = [tick.seconds for tick in seen.ticks], _phases(seen)
    return (
        f"{name:10} {seen.tick_count:5} {percentile(ticks, 0.5):6.2f} {percentile(ticks, 0.99):6.2f} "
        f"{phases.get('metrics', math.nan):7.2f} {phases.get('decide', math.nan):6.2f} "
        f"{phases.get('act', math.nan):5.2f} {_per_tick(seen, seen.cpu_seconds):10.2f} "
        f"{_per_tick(seen, seen.prometheus_cpu_seconds):10.2f} {max(seen.memory_mib, default=math.nan):7.0f}"
    )


def _phases(seen: Seen) -> dict[str, float]:
    names = {name for tick in seen.ticks for name in tick.phases}
    return {
        name: sum(tick.ticks * tick.phases.get(name, 0.0) for tick in seen.ticks) / max(1, seen.tick_count)
        for name in sorted(names)
    }


def _per_tick(seen: Seen, total: float) -> float:
    return total / seen.tick_count if seen.tick_count else math.nan

"""Holdfast under loads that nothing in the project was made with: two hours of each in the digital twin.

    python benchmarks/other_loads.py --data DIR [--load NAME ...] [--objective 99%] [--seed N]

Llama-3.1-8B on L40S, of which one carries about 4.5 requests per second, at most 16, cold starts of 90 s; the lengths
are those of Azure's conversations (DIR holds azure2023/). Beside it, the slow loop alone, the smallest static size that
attains as much, known in hindsight, and KEDA's recipes as llm-d ships them. Attainment in %, GPU-hours.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from holdfast.cli.simulate import declare
from holdfast.twin.policies import make_policy
from holdfast.twin.runs.peak import smallest
from holdfast.twin.runs.results import summary
from holdfast.twin.runs.run import simulate
from holdfast.twin.scenarios.declared_service import Declared
from holdfast.twin.scenarios.scenario import Scenario

SECONDS, MOST_REPLICAS = 7200, 16
BESIDE = ("holdfast-slow", "keda-slo", "keda-token")

Load = tuple[list[tuple[int, float]], bool]
"""Seconds and the requests per second from then on, or, where it is a ramp, at that moment."""


def square(low: float, high: float, period: int, lasts: int) -> Load:
    """So long at a time high, at the end of each period."""
    starts = range(0, SECONDS, period)
    return [pair for at in starts for pair in ((at, low), (at + period - lasts, high))], False


def saw(low: float, high: float, period: int) -> Load:
    """Up slowly, down at once."""
    return [pair for at in range(0, SECONDS, period) for pair in ((at, low), (at + period - 1, high))], True


def sine(low: float, high: float, period: int) -> Load:
    """Up and down."""
    wave = ((at, 0.5 - 0.5 * math.cos(2.0 * math.pi * at / period)) for at in range(0, SECONDS, 60))
    return [(at, low + (high - low) * share) for at, share in wave], True


def walk(deviation: float, every: int, seed: int = 7) -> Load:
    """A random walk of the logarithm, in steps."""
    lot, rate, found = random.Random(seed), 8.0, []
    for at in range(0, SECONDS, every):
        found.append((at, rate))
        rate = min(40.0, max(0.5, rate * math.exp(lot.gauss(0.0, deviation))))
    return found, False


LOADS: Mapping[str, Load] = {
    "3 or 14 req/s, every 6 min one of them": square(3, 14, 360, 60),
    "3 or 14 req/s, 10 min each": square(3, 14, 1200, 600),
    "3 or 14 req/s, 30 min each": square(3, 14, 3600, 1800),
    "2, every 10 min 30 for 20 s": square(2, 30, 600, 20),
    "2 to 20 in 20 min, then from 2 again": saw(2, 20, 1200),
    "4, once 40 for 5 min": ([(0, 4), (3600, 40), (3900, 4)], False),
    "2 to 24 and back in 2 h": sine(2, 24, 7200),
    "2 to 24 and back in 30 min": sine(2, 24, 1800),
    "one request in 10 s": ([(0, 0.1)], False),
    "another rate every 2 min": walk(0.5, 120),
    "another rate every 10 min": walk(0.6, 600),
    "2 to 40 in 2 h": ([(0, 2), (SECONDS, 40)], True),
    "40 to 2 in 2 h": ([(0, 40), (SECONDS, 2)], True),
}


def scenario(name: str, load: Load, objective: str) -> Scenario:
    """The load as a scenario."""
    rates, ramp = load
    arrivals = {"poisson": [{"at": f"{at}s", "rps": rps} for at, rps in rates], "ramp": ramp}
    spec = {
        "model": {"uri": "meta-llama/Llama-3.1-8B-Instruct"},
        "slo": {"ttft": "1s", "tpot": "80ms", "objective": objective, "window": "1h"},
        "accelerators": [{"name": "l40s", "costPerHour": 1.55}],
        "scaling": {"min": 1, "max": MOST_REPLICAS},
    }
    workload = {
        "arrivals": arrivals,
        "lengths": {"trace": {"path": "azure2023/AzureLLMInferenceTrace_conv.csv", "format": "azure"}},
    }
    first = {"l40s": max(1, math.ceil(rates[0][1] / 4.0))}
    cards = {"system": "l40s", "gpus": MOST_REPLICAS, "coldStart": "90s", "coldStartJitter": 0.2}
    service = {"name": "chat", "spec": spec, "workload": workload, "initialReplicas": first}
    told: dict[str, Any] = {"name": name, "duration": f"{SECONDS}s", "warmup": "2m", "services": [service]}
    return Scenario.model_validate(told | {"cluster": {"accelerators": {"l40s": cards}}})


Outcome = tuple[float, float]
"""Attainment and GPU-hours."""


def play(played: Scenario, services: Sequence[Declared], seed: int, policy: str) -> Outcome:
    """One run."""
    told = summary(simulate(played, services, make_policy(policy, {}), seed), 0.0)
    return float(told["attainment"] or 0.0), float(told["gpu_hours"])


def cell(outcome: Outcome) -> str:
    """An outcome as the table shows it."""
    attained, hours = outcome
    return f"{100.0 * attained:.1f}, {hours:.1f}"


def as_good(run: Callable[[str], Outcome], attainment: float) -> str:
    """The smallest static size that attains so much, and what it costs."""
    play = cache(lambda size: run(f"static:{size}"))
    size = smallest(lambda size: play(size)[0] >= attainment, MOST_REPLICAS)
    return f"{size}: {cell(play(size))}" if play(size)[0] >= attainment else "none"


def main() -> int:
    """Play them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--load", action="append", choices=LOADS)
    parser.add_argument("--objective", default="99%")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(f"| load | holdfast | static, as good | {' | '.join(BESIDE)} |\n|{'---|' * (3 + len(BESIDE))}")
    for name in given.load or LOADS:
        played = scenario(name, LOADS[name], given.objective)
        services = [declare(played, entry, Path(), given.data, given.seed) for entry in played.services]
        run = partial(play, played, services, given.seed)
        ours = run("holdfast")
        cells = [cell(ours), as_good(run, ours[0]), *(cell(run(policy)) for policy in BESIDE)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What it is worth that the KV cache acts: services whose answers become long, in the digital twin.

    python benchmarks/kv_cache.py [--seeds 1 2 3]

An hour of Poisson arrivals at 2 req/s, prompts of 600 and answers of 200 tokens on average; from minute 20 on, within
so many minutes, answers become so long. Llama-3.1-8B on L40S, TTFT 2 s, TPOT 100 ms, 95 %, cold starts of 90 s, one
replica at first. Holdfast is played as it is, and with a cache that never counts as demand, which is the same code.
Means of the seeds: attainment after ten minutes, GPU-hours, preemptions.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from holdfast.cli.simulate import declare
from holdfast.policy.estimate import kv_cache
from holdfast.twin.policies import make_policy
from holdfast.twin.runs.results import attainment, gpu_hours
from holdfast.twin.runs.run import simulate
from holdfast.twin.scenarios.scenario import Scenario

RPS, MINUTES, TURNS, SHORT = 2.0, 60.0, 20.0, 200.0
CASES = {
    "3,000 tokens within 10 min": (3000.0, 10.0),
    "3,000 at once": (3000.0, 0.0),
    "1,500 within 5 min": (1500.0, 5.0),
}
POLICIES = {"with plugin": "holdfast", "without": "holdfast-slow"}
PLAYED = kv_cache.FULL


def write(path: Path, tokens: float, minutes: float, seed: int) -> None:
    """Write the requests of an hour whose answers become so long."""
    draw, at = np.random.default_rng([seed, 7]), 0.0
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("arrival_seconds", "prompt_tokens", "output_tokens"))
        while (at := at + draw.exponential(1.0 / RPS)) < 60.0 * MINUTES:
            passed = at / 60.0 - TURNS
            share = min(1.0, max(0.0, passed / minutes)) if minutes else float(passed >= 0.0)
            answers = tokens if draw.random() < share else SHORT
            lengths = (draw.lognormal(math.log(600.0) - 0.18, 0.6), draw.lognormal(math.log(answers) - 0.08, 0.4))
            rows.writerow((f"{at:.3f}", *(max(2, int(length)) for length in lengths)))


def scenario() -> Scenario:
    """The service, with the requests of the file beside it."""
    spec = {
        "model": {"uri": "meta-llama/Llama-3.1-8B-Instruct"},
        "slo": {"ttft": "2s", "tpot": "100ms", "objective": "95%", "window": "1h"},
        "accelerators": [{"name": "l40s", "costPerHour": 1}],
        "scaling": {"min": 1, "max": 20},
    }
    workload = {"arrivals": {"trace": {"path": "long.csv", "format": "csv"}}}
    service = {"name": "chat", "spec": spec, "workload": workload, "initialReplicas": {"l40s": 1}}
    cluster = {"accelerators": {"l40s": {"system": "l40s", "gpus": 30, "coldStart": "90s"}}}
    content = {"name": "long answers", "duration": f"{MINUTES:g}m", "warmup": "10m", "services": [service]}
    return Scenario.model_validate(content | {"cluster": cluster})


def play(folder: Path, policy: str, seed: int) -> tuple[float, float, float]:
    """Attainment in %, GPU-hours and preemptions."""
    played = scenario()
    declared = [declare(played, entry, folder / "x.yaml", folder, seed) for entry in played.services]
    run = simulate(played, declared, make_policy(policy, {}), seed)
    service = run.services[0]
    preemptions = float(service.fleet.requests["preemptions"].sum())
    return 100.0 * attainment(run, service), gpu_hours(run), preemptions


def compared(tokens: float, minutes: float, policy: str, seeds: Sequence[int]) -> str:
    """Both ways to play the case, as cells of a table."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for full in (math.inf, PLAYED):
            kv_cache.FULL = full
            runs = []
            for seed in seeds:
                write(Path(folder) / "long.csv", tokens, minutes, seed)
                runs.append(play(Path(folder), policy, seed))
            found.append([mean(each) for each in zip(*runs, strict=True)])
    told = " | ".join(f"{good:.1f} % with {hours:.2f}, {count:,.0f} preemptions" for good, hours, count in found)
    ratios = [after / before if before else math.nan for before, after in zip(*found, strict=True)][1:]
    return f"{told} | {ratios[0]:.2f}, {ratios[1]:.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    seeds = parser.parse_args(arguments).seeds
    print(f"seeds {', '.join(map(str, seeds))}\n")
    print("| answers become | plugin | the cache does not act | it acts | GPU-hours, preemptions: with / without |")
    print("|---|---|---|---|---|")
    for name, (tokens, minutes) in CASES.items():
        for words, policy in POLICIES.items():
            print(f"| {name} | {words} | {compared(tokens, minutes, policy, seeds)} |", flush=True)


if __name__ == "__main__":
    main()

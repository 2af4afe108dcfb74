"""Holdfast with beliefs that are wrong: other accelerators and models than the spec says, in the digital twin.

    python benchmarks/mismatch.py --data DIR [--case NAME ...] [--seeds 1 2 3] [--right-queue-limit]

An hour of Poisson arrivals with the lengths of Azure's conversations (DIR holds azure2023/), TTFT 2 s, TPOT 100 ms,
95 %, of which the first 20 minutes are warm-up; one replica at first, at most 40, cold starts of 60 s. Each case is
played with the wrong belief and with the right one, which is the same code with the true label; with the plugin and
without. Bars: attainment at least the right belief's less 0.5 points, GPU-hours at most 1.3 times the right belief's.
With --right-queue-limit, stock engines have the queue limit of the right belief in any case. The twin's clock is
virtual, so the figures are the same on any machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from holdfast.cli.simulate import declare
from holdfast.render.admission import admission_tokens
from holdfast.twin.policies import make_policy
from holdfast.twin.runs.results import attainment, gpu_hours
from holdfast.twin.runs.run import simulate
from holdfast.twin.scenarios.declared_service import Declared
from holdfast.twin.scenarios.scenario import Scenario

POLICIES = {"with plugin": "holdfast", "without": "holdfast-slow"}
POINTS, TIMES = 0.5, 1.3
PRODUCT = "nvidia.com/gpu.product"
QWEN, LLAMA, LARGE = "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B"


@dataclass(frozen=True)
class Belief:
    """What a spec says: the model, and the product label of the accelerator's nodes (its name where there is none)."""

    model: str = QWEN
    name: str = "pool"
    product: str = ""


@dataclass(frozen=True)
class Case:
    """A wrong belief, the right one, and what there really is."""

    wrong: Belief
    right: Belief
    system: str
    model: str
    rps: float = 10.0
    share: float = 1.0
    slo: tuple[str, str] = ("2s", "100ms")


def labelled(product: str, model: str = QWEN) -> Belief:
    """A belief by the label of the nodes."""
    return Belief(model, product=product)


H100 = "NVIDIA-H100-80GB-HBM3"
CASES = {
    "believes H100, gets L4": Case(labelled(H100), labelled("NVIDIA-L4"), "l4", QWEN),
    "believes H100, gets L40S": Case(labelled(H100), labelled("NVIDIA-L40S"), "l40s", QWEN),
    "believes H100, gets A100": Case(labelled(H100), labelled("NVIDIA-A100-SXM4-80GB"), "a100_sxm", QWEN, rps=20.0),
    "believes L4, gets H100": Case(labelled("NVIDIA-L4"), labelled(H100), "h100_sxm", QWEN, rps=40.0),
    "unknown GPU (L40S)": Case(labelled("ACME-X1", LLAMA), labelled("NVIDIA-L40S", LLAMA), "l40s", LLAMA),
    "unknown GPU, tight (L40S)": Case(
        labelled("ACME-X1", LLAMA), labelled("NVIDIA-L40S", LLAMA), "l40s", LLAMA, 5.0, slo=("1s", "50ms")
    ),
    "unknown GPU (H100)": Case(
        labelled("ACME-X1", LARGE), labelled(H100, LARGE), "h100_sxm", LARGE, slo=("2s", "60ms")
    ),
    "label MI355X, gets H100": Case(
        labelled("AMD-Instinct-MI355X", LARGE), labelled(H100, LARGE), "h100_sxm", LARGE, slo=("2s", "60ms")
    ),
    "unknown model (Qwen3-8B)": Case(
        labelled(H100, "pvc://weights/house-model"), labelled(H100), "h100_sxm", QWEN, rps=40.0
    ),
    "unknown model (Qwen3-32B)": Case(
        labelled(H100, "pvc://weights/house-model"), labelled(H100, LARGE), "h100_sxm", LARGE, slo=("2s", "60ms")
    ),
    "FP8 under a bf16 name": Case(labelled(H100, LARGE), labelled(H100, f"{LARGE}-FP8"), "h100_sxm", f"{LARGE}-FP8"),
    "half a GPU, not said (MIG)": Case(
        labelled(H100), labelled("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb"), "h100_sxm", QWEN, rps=20.0, share=0.5
    ),
}


def scenario(name: str, case: Case, belief: Belief) -> Scenario:
    """The case as the twin plays it."""
    ttft, tpot = case.slo
    accelerator: dict[str, Any] = {"name": belief.name, "costPerHour": 1}
    if belief.product:
        accelerator["nodeSelector"] = {PRODUCT: belief.product}
    spec = {
        "model": {"uri": belief.model},
        "slo": {"ttft": ttft, "tpot": tpot, "objective": "95%", "window": "1h"},
        "accelerators": [accelerator],
        "scaling": {"min": 1, "max": 40},
    }
    workload = {
        "arrivals": {"poisson": [{"at": "0s", "rps": case.rps}]},
        "lengths": {"trace": {"path": "azure2023/AzureLLMInferenceTrace_conv.csv", "format": "azure"}},
    }
    service = {"name": "chat", "spec": spec, "workload": workload, "initialReplicas": {belief.name: 1}}
    real = {"system": case.system, "model": case.model, "share": case.share, "gpus": 60, "coldStart": "60s"}
    return Scenario.model_validate(
        {
            "name": name[:80],
            "duration": "60m",
            "warmup": "20m",
            "services": [service],
            "cluster": {"accelerators": {belief.name: real}, "router": "random-per-connection"},
        }
    )


def declared(name: str, case: Case, belief: Belief, data: Path, seed: int) -> tuple[Scenario, Declared]:
    """The case as it is declared."""
    played = scenario(name, case, belief)
    return played, declare(played, played.services[0], Path(name), data, seed)


def play(
    name: str, case: Case, belief: Belief, policy: str, data: Path, seed: int, right_limit: bool = False
) -> tuple[float, float]:
    """Attainment in % after the warm-up, and GPU-hours of the whole run."""
    (played, each), player = declared(name, case, belief, data, seed), make_policy(policy, {})
    if right_limit and player.admission:
        true = declared(name, case, case.right, data, seed)[1].service
        player.admission = False
        each = replace(each, max_num_queued_tokens=admission_tokens(true, true.spec.accelerators[0]))
    run = simulate(played, [each], player, seed)
    return 100.0 * attainment(run, run.services[0]), gpu_hours(run)


def row(name: str, case: Case, policy: str, data: Path, seeds: Sequence[int], right_limit: bool) -> str:
    """The mean of the seeds for both beliefs, and whether each seed holds the bars."""
    pairs = [
        [play(name, case, belief, policy, data, seed, right_limit) for belief in (case.right, case.wrong)]
        for seed in seeds
    ]
    (right, right_hours), (wrong, hours) = (
        [mean(each) for each in zip(*runs, strict=True)] for runs in zip(*pairs, strict=True)
    )
    points = all(run[1][0] >= run[0][0] - POINTS for run in pairs)
    times = all(run[1][1] <= TIMES * run[0][1] for run in pairs)
    missed = [bar for bar, held in (("attainment", points), ("GPU-hours", times)) if not held]
    verdicts = f"{' and '.join(missed)} missed" if missed else "met"
    told = f"{right:.2f} % with {right_hours:.2f} | {wrong:.2f} % with {hours:.2f}"
    return f"{told} | {hours / right_hours:.2f} | {verdicts}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--case", action="append", choices=sorted(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--right-queue-limit", action="store_true")
    found = parser.parse_args(arguments)
    print(
        f"seeds {', '.join(map(str, found.seeds))}; attainment after the warm-up, with GPU-hours, means of the seeds\n"
    )
    print("| case | plugin | right belief | wrong belief | GPU-hours, wrong / right | bars, each seed |")
    print("|---|---|---|---|---|---|")
    for name in found.case or CASES:
        for words, policy in POLICIES.items():
            told = row(name, CASES[name], policy, found.data, found.seeds, found.right_queue_limit)
            print(f"| {name} | {words} | {told} |", flush=True)


if __name__ == "__main__":
    main()

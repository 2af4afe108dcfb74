"""Whether the sizes that `holdfast plan` recommends hold when they are played for an hour, and whether fewer would.

    python benchmarks/plan_sizes.py [--seeds 3]

For each load the choice with vLLM's own limits is planned, then played by `holdfast simulate`'s engine room: Poisson
requests for 70 minutes, of which the last 60 count. `planned` is the recommended size, each request at the next
replica; `one less` is a replica fewer; `Service` is the size recommended behind a plain Service, which spreads
connections at random. Good shares in %, mean and least of the seeds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from holdfast.api.llmservice import LLMService
from holdfast.observe.objects.spec import to_spec
from holdfast.tools.plan.plan import offers
from holdfast.tools.plan.rows import Offer
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.policies import Static
from holdfast.twin.replica.capacity import lognormal_lengths
from holdfast.twin.runs.results import summary
from holdfast.twin.runs.run import simulate
from holdfast.twin.scenarios.declared_service import Declared
from holdfast.twin.scenarios.scenario import Scenario

WARM_UP_SECONDS, SECONDS = 600.0, 4200.0
MOST_TOKENS, MOST_GPUS = 1_000_000, 1000
SYSTEMS = {"h100": "h100_sxm", "l40s": "l40s"}


class Load(NamedTuple):
    """Requests per second of mean lengths, for a model on an accelerator, and the objectives."""

    model: str
    accelerator: str
    rate_rps: float
    prompt_tokens: float
    output_tokens: float
    ttft: str
    tpot: str
    cv: float = 1.0


LOADS = (
    Load("Qwen/Qwen3-8B", "h100", 43.0, 1155.0, 211.0, "2s", "100ms"),
    Load("Qwen/Qwen3-8B", "h100", 100.0, 1155.0, 211.0, "2s", "40ms"),
    Load("Qwen/Qwen3-8B", "h100", 50.0, 500.0, 2000.0, "5s", "100ms"),
    Load("Qwen/Qwen3-8B", "h100", 10.0, 200.0, 6000.0, "5s", "100ms"),
    Load("Qwen/Qwen3-8B", "h100", 60.0, 4000.0, 50.0, "4s", "150ms"),
    Load("meta-llama/Llama-3.1-8B-Instruct", "l40s", 25.0, 1155.0, 211.0, "2s", "80ms"),
    Load("meta-llama/Llama-3.1-8B-Instruct", "l40s", 25.0, 1155.0, 211.0, "2s", "30ms"),
    Load("meta-llama/Llama-3.1-8B-Instruct", "l40s", 10.0, 600.0, 400.0, "1s", "60ms", 2.0),
)


def declared(load: Load, replicas: int) -> tuple[Scenario, Declared]:
    """The load as a scenario with so many replicas, its requests still to be drawn."""
    spec: dict[str, Any] = {
        "model": {"uri": load.model},
        "slo": {"ttft": load.ttft, "tpot": load.tpot, "objective": "95%", "window": "1h"},
        "accelerators": [{"name": load.accelerator, "costPerHour": 1.0}],
        "scaling": {"min": 1, "max": MOST_GPUS},
    }
    workload = {
        "arrivals": {"poisson": [{"at": "0s", "rps": load.rate_rps}]},
        "lengths": {"fixed": {"promptTokens": 1, "outputTokens": 1}},
    }
    cards = {"system": SYSTEMS[load.accelerator], "gpus": MOST_GPUS, "coldStart": "30s"}
    told: dict[str, Any] = {"name": "plan", "duration": f"{SECONDS:g}s", "warmup": f"{WARM_UP_SECONDS:g}s"}
    told["services"] = [{"name": "chat", "spec": spec, "workload": workload}]
    metadata = {"name": "chat", "namespace": "simulated", "uid": "chat", "generation": 1}
    service = LLMService.parse({"metadata": metadata, "spec": spec})
    nothing = Workload(np.zeros(0), *(np.zeros(0, np.int64) for _ in range(3)))
    found = Declared(service, to_spec(service), nothing, {load.accelerator: replicas})
    return Scenario.model_validate(told | {"cluster": {"accelerators": {load.accelerator: cards}}}), found


def requests(load: Load, seed: int) -> Workload:
    """Other ones than the plan's own."""
    draw = np.random.default_rng([seed, 77])
    at = np.cumsum(draw.exponential(1.0 / load.rate_rps, round(1.2 * load.rate_rps * SECONDS)))
    at = at[at < SECONDS]
    prompts, outputs = lognormal_lengths(load.prompt_tokens, load.output_tokens, load.cv, MOST_TOKENS).draw(
        len(at), draw
    )
    return Workload(at, prompts, outputs, np.zeros(len(at), np.int64))


def attained(load: Load, seeds: int, replicas: int, router: str = "round-robin") -> str:
    """The good share of a size, played."""
    scenario, one = declared(load, replicas)
    scenario = scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"router": router})})
    shares = []
    for seed in range(1, seeds + 1):
        played = Declared(one.service, one.spec, requests(load, seed), one.initial_replicas)
        told = summary(simulate(scenario, [played], Static(replicas), seed), 0.0)
        shares.append(100.0 * float(told["attainment"] or 0.0))
    return f"{statistics.mean(shares):.1f} ({min(shares):.1f})"


def planned(load: Load) -> Offer:
    """With vLLM's own limits."""
    _, one = declared(load, 1)
    lengths = lognormal_lengths(load.prompt_tokens, load.output_tokens, load.cv, MOST_TOKENS)
    return next(each for each in offers(one.spec, load.rate_rps, lengths) if each.default_batching)


def row(load: Load, seeds: int) -> list[str]:
    """One line of the table."""
    offer = planned(load)
    what = f"{load.accelerator}, {load.rate_rps:g} x {load.prompt_tokens:g}/{load.output_tokens:g}, {load.tpot}"
    if offer.replicas is None:
        return [what, "none", *["-"] * 5]
    play = partial(attained, load, seeds)
    behind = offer.spread_replicas
    return [
        what,
        str(offer.replicas),
        f"{100.0 * (offer.load or 0.0):.0f} %",
        play(offer.replicas),
        play(offer.replicas - 1) if offer.replicas > 1 else "-",
        "-" if behind is None else str(behind),
        "-" if behind is None else play(behind, "random-per-connection"),
    ]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    print("| load | planned | loaded to | good share | one less | Service | good share |")
    print("|---|---|---|---|---|---|---|")
    for load in LOADS:
        print(f"| {' | '.join(row(load, given.seeds))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

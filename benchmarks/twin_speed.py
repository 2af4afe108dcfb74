"""How fast the twin is: a million requests over 20 replicas, on one core.

    python benchmarks/twin_speed.py [--requests 1000000] [--fast-loop] [--check]

Engines are H100s with Llama-3.1-8B; prompts 1 to 1,800 and answers 1 to 310 tokens, uniform, Poisson arrivals at 240
requests per second. With `--fast-loop` engines have the plugin. `--check` fails above 30 s of CPU or 1 GiB of memory.
Compiling, once per machine, is told apart.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import astuple

import numpy as np

from holdfast.domain.service import Slo
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.twin.arrays.fleet import ROUTERS, EngineFleet, EngineSpec, Routing, Workload
from holdfast_engine.law.arithmetic import Law
from holdfast_engine.objectives.rules import Limits, Objectives

REPLICAS, RATE_RPS = 20, 240.0
MOST_SECONDS, MOST_MIB = 30.0, 1024.0


def run(requests: int, router: str, fast_loop: bool) -> tuple[float, float]:
    """Seconds of CPU for the whole of it, and for the part that engines run."""
    started = time.process_time()
    draw = np.random.default_rng(0)
    prior = engine_prior("meta-llama/Llama-3.1-8B", "h100")
    limits = SchedulerLimits(prior.max_num_seqs_default, prior.max_num_batched_tokens_default, prior.kv_tokens)
    load = Workload(
        np.cumsum(draw.exponential(1.0 / RATE_RPS, requests)),
        draw.integers(1, 1800, requests),
        draw.integers(1, 310, requests),
        np.zeros(requests, np.int64),
    )
    told = [Limits(1, Objectives(2.0, 0.1), prior=Law(*astuple(prior.law)))] if fast_loop else []
    fleet = EngineFleet(load, [EngineSpec(prior.timer, limits)], Slo(2.0, 0.1, 0.99, 3600.0), Routing(router), told)
    for _ in range(REPLICAS):
        fleet.add()
    served = time.process_time()
    fleet.advance(np.inf)
    ended = time.process_time()
    fleet.check()
    return ended - started, ended - served


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--fast-loop", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    compiling, _ = run(10, "round-robin", options.fast_loop)
    print(f"first run, with compiling or loading what was compiled: {compiling:.1f} s")
    slowest = 0.0
    for router in ROUTERS:
        whole, engines = run(options.requests, router, options.fast_loop)
        slowest = max(slowest, whole)
        print(f"{router}: {options.requests} requests in {whole:.1f} s of CPU, {engines:.1f} s of it in the engines")
    most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    print(f"at most {most_mib:.0f} MiB of memory")
    return int(options.check and (slowest > MOST_SECONDS or most_mib > MOST_MIB))


if __name__ == "__main__":
    raise SystemExit(main())

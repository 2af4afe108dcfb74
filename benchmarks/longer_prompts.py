"""Prompts that become three times as long at a constant rate: what evidence makes of the size (designs/0021).

    python benchmarks/longer_prompts.py --data DIR [--seed 1] [--within 0] [--factor 3]

Two hours of 12 req/s of the plain day; from the second hour on a growing share of the prompts is longer, all of them
`--within` seconds later. Prints attainment and GPU-hours with the plugin and without.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.accidents import ARRIVALS, SLOW, WITH, Accident, steps
from holdfast.twin.policies import Holdfast
from holdfast.twin.runs.results import attainment, gpu_hours
from holdfast.twin.runs.run import simulate

LONGEST_TOKENS = 30_000
CASE = Accident("longer prompts", {ARRIVALS: {"poisson": steps(((0, 12.0),))}, "duration": "2h"})


def main() -> None:
    """Play both policies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", type=float, default=0.0)
    parser.add_argument("--factor", type=float, default=3.0)
    given = parser.parse_args()
    for policy in (WITH, SLOW):
        scenario, (service,) = CASE.declared(policy, given.data, given.seed)
        load, draw = service.workload, np.random.default_rng(given.seed)
        turned = draw.random(len(load)) < (load.at - 3600.0) / max(given.within, 1e-9)
        longer = np.minimum((load.prompt_tokens * given.factor).astype(np.int64), LONGEST_TOKENS)
        load = replace(load, prompt_tokens=np.where(turned, longer, load.prompt_tokens))
        run = simulate(scenario, [replace(service, workload=load)], Holdfast(policy == WITH), seed=given.seed)
        print(f"{policy}: {100 * attainment(run, run.services[0]):.2f} %, {gpu_hours(run):.1f} GPU-hours", flush=True)


if __name__ == "__main__":
    main()

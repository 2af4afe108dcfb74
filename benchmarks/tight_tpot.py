"""The plugin against stock vLLM at the same fixed size, with objectives ever closer to a decode step (designs/0026).

    python benchmarks/tight_tpot.py --data DIR [--seeds 1 2] [--load 1.0]

The plain day of `reality.py` (4 h, lengths of Azure's conversations of 2023, Llama-3.1-8B on L40S: a step of one decode
takes about 25 ms), `--load` times its arrivals. Prints the share of requests that meet both objectives.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.accidents import STATIC, WITH, Accident, scaled, tight
from holdfast.twin.policies import Static
from holdfast.twin.runs.results import attainment
from holdfast.twin.runs.run import simulate

CASES = (
    ("350ms", "30ms", 30),
    ("350ms", "30ms", 16),
    ("500ms", "40ms", 12),
    ("500ms", "40ms", 8),
    ("1s", "60ms", 6),
    ("1s", "60ms", 5),
    ("2s", "100ms", 4),
)
"""TTFT, TPOT and replicas."""


class WithPlugin(Static):
    """A fixed size whose engines have the plugin."""

    fast_loop = True


def good_share(case: tuple[str, str, int], load: float, policy: Static, seed: int, data: Path) -> float:
    """Share of the requests that met both objectives."""
    accident = Accident("tight", {**tight(*case[:2]), **scaled(load)})
    scenario, services = accident.declared(WITH if policy.fast_loop else STATIC, data, seed)
    run = simulate(scenario, services, policy, seed=seed)
    return attainment(run, run.services[0])


def main() -> None:
    """Print a row for each pair of objectives and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--load", type=float, default=1.0)
    given = parser.parse_args()
    print(f"Seeds {given.seeds}, {given.load:g} times the load\n")
    print("| TTFT, TPOT | replicas | stock, % | plugin, % | plugin / stock |\n|---|---|---|---|---|")
    for case in CASES:
        stock, plugin = (
            fmean(good_share(case, given.load, kind(case[2]), seed, given.data) for seed in given.seeds)
            for kind in (Static, WithPlugin)
        )
        told = f"{100 * stock:.1f} | {100 * plugin:.1f} | {plugin / stock:.2f}"
        print(f"| {case[0]}, {case[1]} | {case[2]} | {told} |", flush=True)


if __name__ == "__main__":
    main()

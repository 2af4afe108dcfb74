"""Whether steps should stay within the largest CUDA graph: Qwen3-8B on an H200, emulated with its launches.

    python benchmarks/graph_edge.py

The same requests with vLLM's 8,192 tokens per step and with 512, the size of the largest graph: stock vLLM, the fast
loop with that as a fixed limit (`adapt: false`), and the fast loop as it is, which chooses by the measured launches.
Loads are shares of the 44.2 good requests per second that stock vLLM carried on the real GPU (data/vllm_gpu_h200).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fastloop_emulated import CELLS, MODEL, Replica, Run
from holdfast_engine.objectives.rules import Overload

CELL = "short, TTFT 0.5 s, TPOT 30 ms, H200"
CAPACITY_RPS = 44.2
EDGE_TOKENS = 512
LOADS = (0.8, 1.0, 1.25, 1.5)


def row(name: str, runs: list[Run], rate: float) -> str:
    """One line: good requests as a share of those that came, and the medians."""
    good = fmean(run.goodput for run in runs) / rate
    ttft, tpot = (1e3 * fmean(run.median(f"{what}_seconds") for run in runs) for what in ("ttft", "tpot"))
    return f"| {rate / CAPACITY_RPS:g} C | {name} | {good:.2f} | {ttft:.0f} | {tpot:.1f} |"


def variants(replica: Replica) -> dict[str, Callable[[float, int], Run]]:
    """What is compared: a run at a rate with the requests of a seed."""
    capped = replace(replica.stock, max_num_batched_tokens=EDGE_TOKENS)
    return {
        "stock, 8192": lambda rate, seed: replica.plain(replica.stock, rate, seed),
        "stock, 512": lambda rate, seed: replica.plain(capped, rate, seed),
        "fast loop": lambda rate, seed: replica.plugin(Overload.QUEUE, rate, seed),
        "fast loop, fixed 512": lambda rate, seed: replica.plugin(Overload.QUEUE, rate, seed, EDGE_TOKENS),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1800)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    accelerator, mix, slo, _, host = CELLS[CELL]
    replica = Replica((MODEL, accelerator), mix, slo, options.requests, options.seeds, host)
    print("| offered | tokens per step | good of all | TTFT p50 ms | TPOT p50 ms |\n|---|---|---|---|---|")
    for load in LOADS:
        rate = load * CAPACITY_RPS
        for name, run in variants(replica).items():
            print(row(name, [run(rate, seed) for seed in replica.seeds], rate), flush=True)


if __name__ == "__main__":
    main()

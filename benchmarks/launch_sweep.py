"""The fast loop on every kind of engine: CUDA graphs, hosts and scheduling, in the emulator and in virtual time.

    python -m benchmarks.launch_sweep light        # never below stock vLLM at loads that it carries
    python -m benchmarks.launch_sweep overload     # a calm run first, then more than the engine carries

Qwen3-8B on an H200 with the lengths and objectives of its real run (`fastloop_emulated`), no prior given. An edge that
is unreported exists all the same: the plugin does not know it.

`light`: every graph mode, hosts 0.5 to 3 times as slow, a step ahead and synchronous, at 0.5 and 0.8 C, where C is what
this engine carries with vLLM's defaults. Bar: goodput at least 0.98 of stock's, TTFT and TPOT p50 within 5 % of them.
`overload`: hosts 0.7 to 2 times as slow, edge reported or not; 0.3 C for 900 requests, then 1.1 to 2 C. C is what the
engine carries with the limits that are best in the cells of `fastloop_emulated`. Bar: at least 0.9 C in every cell.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fastloop_emulated import CELLS, MODEL, Replica, ratios
from holdfast.enginemodel.host import ASYNCHRONOUS, SYNCHRONOUS, GraphMode
from holdfast_engine.objectives.rules import Overload

CELL = "short, TTFT 0.5 s, TPOT 30 ms, H200"
LIGHT, OVERLOADS = (0.5, 0.8), (1.1, 1.25, 1.5, 2.0)
LIGHT_HOSTS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
OVERLOAD_HOSTS = tuple(round(0.7 + 0.05 * step, 2) for step in range(27))
LEAST_GOODPUT, MOST_LATENCY, LEAST_OVERLOADED = 0.98, 1.05, 0.9
CALM, CALM_REQUESTS = 0.3, 900
BEST_TOKENS, BEST_SEQUENCES = 2048, 256


@dataclass(frozen=True)
class Engine:
    """One kind of engine: its graphs, whether it reports their edge, how slow its host is, how many steps it has."""

    mode: GraphMode = GraphMode.FULL_AND_PIECEWISE
    reported: bool = True
    host: float = 1.0
    depth: int = ASYNCHRONOUS
    requests: int = 900
    seeds: int = 1

    @cached_property
    def replica(self) -> Replica:
        """The emulated engine."""
        accelerator, mix, slo, _, _ = CELLS[CELL]
        found = Replica((MODEL, accelerator), mix, slo, self.requests, self.seeds, self.host)
        host = found.timer.host
        found.timer = found.timer.with_host(
            replace(host, depth=self.depth, graphs=replace(host.graphs, mode=self.mode))
        )
        captured = found.timer.host.graphs.captured
        found.captured = captured if self.reported else replace(captured, edge_tokens=math.inf)
        return found

    def __str__(self) -> str:
        edge = "" if self.reported else ", edge unreported"
        return f"{self.mode}{edge} | {self.host:g} | {'sync' if self.depth == SYNCHRONOUS else 'async'}"


def light_engines(hosts: Sequence[float] = LIGHT_HOSTS, requests: int = 900, seeds: int = 1) -> Iterator[Engine]:
    """All engines of the table `light`; `--enforce-eager` is the mode NONE."""
    kinds = [*((mode, True) for mode in GraphMode), (GraphMode.FULL_AND_PIECEWISE, False)]
    for mode, reported in kinds:
        for depth in (ASYNCHRONOUS, SYNCHRONOUS):
            for host in hosts:
                yield Engine(mode, reported, host, depth, requests, seeds)


def light_row(engine: Engine, load: float, best_rps: float) -> tuple[str, bool]:
    """A line of the table `light`, and whether it is held."""
    replica, rate = engine.replica, load * best_rps
    stock = [replica.plain(replica.stock, rate, seed) for seed in replica.seeds]
    goodput, ttft, tpot = ratios([replica.plugin(Overload.QUEUE, rate, seed) for seed in replica.seeds], stock)
    held = goodput >= LEAST_GOODPUT and max(ttft, tpot) <= MOST_LATENCY
    verdict = "held" if held else "**missed**"
    return f"| {engine} | {best_rps:.1f} | {load:g} C | {goodput:.3f} | {ttft:.3f} | {tpot:.3f} | {verdict} |", held


def light(engines: Iterator[Engine]) -> Iterator[tuple[str, bool]]:
    """The lines of the table `light`."""
    for engine in engines:
        best_rps = engine.replica.best_goodput(engine.replica.stock)
        for load in LIGHT:
            yield light_row(engine, load, best_rps)


def overload_row(engine: Engine, best_rps: float) -> tuple[str, bool]:
    """A line of the table `overload`: goodput at each load as a share of C, and whether all are held."""
    replica = engine.replica
    replica.calm_requests, replica.calm_rps = CALM_REQUESTS, CALM * best_rps
    shares = [
        fmean(replica.plugin(Overload.QUEUE, load * best_rps, seed).goodput for seed in replica.seeds) / best_rps
        for load in OVERLOADS
    ]
    held = min(shares) >= LEAST_OVERLOADED
    cells = " | ".join(f"{share:.2f}" for share in shares)
    return f"| {engine} | {best_rps:.1f} | {cells} | {'held' if held else '**missed**'} |", held


def overload(hosts: Sequence[float], requests: int, seeds: int) -> Iterator[tuple[str, bool]]:
    """The lines of the table `overload`."""
    for host in hosts:
        known = Engine(host=host, requests=requests, seeds=seeds)
        limits = replace(known.replica.stock, max_num_batched_tokens=BEST_TOKENS, max_num_seqs=BEST_SEQUENCES)
        best_rps = known.replica.best_goodput(limits)
        for reported in (True, False):
            yield overload_row(Engine(reported=reported, host=host, requests=requests, seeds=seeds), best_rps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("light", "overload"))
    parser.add_argument("--hosts", type=float, nargs="+", help="only these factors")
    parser.add_argument("--mode", type=GraphMode, help="only this mode (light)")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    print(f"seeds {', '.join(map(str, range(options.seeds)))}\n")
    if options.table == "light":
        print("| graphs | host | scheduling | C | offered | goodput / stock's | TTFT p50 | TPOT p50 | bar |")
        print("|---|---|---|---|---|---|---|---|---|")
        engines = light_engines(options.hosts or LIGHT_HOSTS, options.requests or 900, options.seeds)
        rows = light(engine for engine in engines if options.mode in (None, engine.mode))
    else:
        print(f"| graphs | host | scheduling | C | {' | '.join(f'{load:g} C' for load in OVERLOADS)} | bar |")
        print("|---|---|---|---|---|---|---|---|---|")
        rows = overload(options.hosts or OVERLOAD_HOSTS, options.requests or 2100, options.seeds)
    verdicts = []
    for line, held in rows:
        print(line, flush=True)
        verdicts.append(held)
    print(f"\n{sum(verdicts)} of {len(verdicts)} rows are held")


if __name__ == "__main__":
    main()

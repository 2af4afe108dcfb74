"""The table of cells of the plugin on an H100: both runs, C of both searches, and the bars.

    python benchmarks/h100_cells.py      # reads benchmarks/data/vllm_gpu_h100

Shares are of the mean of both searches for C. A cell is judged by the mean of its runs. "API server" is how busy its
process was while requests came: 1 is a thread without a pause.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.h200_data import rows_of

FOLDER = Path(__file__).with_name("data") / "vllm_gpu_h100"
LEAST = {
    "Queue": {"1.1": 0.95, "1.25": 0.95, "1.5": 0.95, "2.0": 0.9},
    "Reject": dict.fromkeys(("1.1", "1.25", "1.5", "2.0"), 0.95),
}
MOST_APART, CALM_LOSS, MOST_COST = 1.1, 0.05, 0.01

Run = Mapping[str, Any]
Cells = Mapping[str, list[Run]]


def lines_of(name: str) -> list[Run]:
    """The lines of a file of JSON."""
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


def cells() -> Cells:
    """The runs by cell, such as holdfast-Queue-1.5, in order."""
    found: dict[str, list[Run]] = {}
    for run in lines_of("runs.jsonl"):
        found.setdefault(run["notes"]["cell"], []).append(run)
    return found


def capacities() -> list[float]:
    """Good requests per second of the best step of each search."""
    steps = lines_of("staircase.jsonl")
    return [
        max(step["goodput_rps"] for step in steps if step["search"] == search)
        for search in sorted({step["search"] for step in steps})
    ]


def overload_rows(found: Cells, capacity: float) -> Iterator[str]:
    """A row for each scheduler and load above C."""
    for overload, bars in LEAST.items():
        for factor, least in bars.items():
            runs = found[f"holdfast-{overload}-{factor}"]
            share = fmean(run["goodput_rps"] for run in runs) / capacity
            good = ", ".join(f"{run['goodput_rps']:.1f} of {run['offered_rps']:.1f}" for run in runs)
            busy = ", ".join(f"{api_server_share(run):.2f}" for run in runs)
            yield f"| {overload} {factor} | {good} | {share:.2f} | {busy} | >= {least}: {verdict(share >= least)} |"


def calm_rows(found: Cells) -> Iterator[str]:
    """A row for each pair of runs at 0.8 C."""
    for stock, ours in zip(found["stock-0.8"], found["holdfast-Queue-0.8"], strict=True):
        ratios = [ours[name][1] / stock[name][1] for name in ("ttft_ms", "tpot_ms")]
        shown = " | ".join(f"{stock[name][1]:g}, {ours[name][1]:g}" for name in ("ttft_ms", "tpot_ms"))
        held = max(ratios) <= 1.0 + CALM_LOSS
        yield f"| {shown} | {ratios[0]:.2f}, {ratios[1]:.2f} | {verdict(held)} |"


def cost_rows(found: Cells) -> Iterator[str]:
    """What the plugin itself takes of the engine's thread."""
    for cell, runs in found.items():
        if not cell.startswith("holdfast"):
            continue
        spent = [gained(run, "plugin_seconds_total") for run in runs]
        steps = [1e3 * each / gained(run, "plugin_steps_total") for each, run in zip(spent, runs, strict=True)]
        shares = [each / run["took"] for each, run in zip(spent, runs, strict=True)]
        shown = " | ".join(", ".join(f"{each:.{digits}f}" for each in row) for digits, row in ((2, steps), (4, shares)))
        yield f"| {cell} | {shown} | {verdict(max(shares) <= MOST_COST)} |"


def api_server_share(run: Run) -> float:
    """Processor seconds of the API server per second of arrivals."""
    used = sum(share for name, share in run["cpu"].items() if name.startswith("python3")) * run["took"]
    return float(used / run["arrivals_end"])


def gained(run: Run, name: str) -> float:
    """What one of the plugin's counters gained in a run."""
    return float(run["plugin"][f"holdfast:{name}"])


def api_server_costs(found: Cells) -> list[float]:
    """Seconds of the API server for a request that is read, one that is refused, and a token, by least squares."""
    counts: dict[str, list[int]] = {}
    for row in rows_of(FOLDER / "requests.csv.xz"):
        refused, sums = row["status"] == "503", counts.setdefault(row["run"], [0, 0, 0])
        for place, more in enumerate((not refused, refused, int(row["tokens_received"]))):
            sums[place] += more
    runs = [run for cell in found.values() for run in cell]
    used = [api_server_share(run) * run["arrivals_end"] for run in runs]
    costs, *_ = np.linalg.lstsq(np.array([counts[run["run"]] for run in runs], float), np.array(used), rcond=None)
    return list(costs)


def verdict(held: bool) -> str:
    """Held or missed."""
    return "held" if held else "**missed**"


def main() -> None:
    found, searched = cells(), capacities()
    capacity = fmean(searched)
    agree = max(searched) <= MOST_APART * min(searched)
    print(f"C = {', '.join(f'{each:.1f}' for each in searched)}: within 10 %: {verdict(agree)}; mean {capacity:.1f}")
    print("\n| cell | good/s of offered | mean share of C | API server | bar |\n|---|---|---|---|---|")
    print(*overload_rows(found, capacity), sep="\n")
    print("\n0.8 C: stock, plugin\n\n| TTFT p50 ms | TPOT p50 ms | ratios | within 5 % |\n|---|---|---|---|")
    print(*calm_rows(found), sep="\n")
    print("\n| cell | plugin ms per step | share of the time | <= 1 % |\n|---|---|---|---|")
    print(*cost_rows(found), sep="\n")
    costs = [f"{1e3 * each:.3f}" for each in api_server_costs(found)]
    print("\nAPI server, ms for a request that is read, one that is refused, and a token:", ", ".join(costs))


if __name__ == "__main__":
    main()

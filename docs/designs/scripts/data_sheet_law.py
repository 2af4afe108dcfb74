"""Whether a step adds reading its weights to computing its tokens, or hides one behind the other.

    python docs/designs/scripts/data_sheet_law.py [--data ../shared/data]

Two laws of a data sheet are compared: one adds the two times, the other hides the shorter one. Both are compared with
all shipped step tables. With --data they are also compared with an H200, which computed lone prompts and decodes
(vllm_gpu_h200/cells.csv). Prompts of fewer than 512 tokens are left out: there the host takes longer than the GPU.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from refutable_belief import plausible_tables

from holdfast.enginemodel.catalog import find_accelerator, find_model
from holdfast.enginemodel.roofline import roofline_law
from holdfast.enginemodel.steplaw import Chunk, StepLaw, StepTimer

LEAST_PROMPT = 512
TABLE_STEPS: tuple[tuple[Sequence[Chunk], int], ...] = tuple(
    ([(chunk, 0)] if chunk else [], decodes)
    for chunk in (0, 256, 512, 1024, 2048, 8192)
    for decodes in (0, 16, 64, 256)
    if chunk or decodes
)
MEAN_KV = 1024.0


@dataclass(frozen=True)
class Hidden:
    """The same law with the shorter of reading weights and computing tokens hidden behind the longer."""

    law: StepLaw

    def step_seconds(self, chunks: Sequence[Chunk], decodes: int, mean_kv: float) -> float:
        """Seconds of a step."""
        computing = self.law.c1 * (decodes + sum(chunk for chunk, _ in chunks))
        attention = self.law.step_seconds(chunks, decodes, mean_kv) - self.law.c0 - computing
        return max(self.law.c0, computing) + attention


def measured(data: Path) -> list[tuple[str, Sequence[Chunk], int, float, float]]:
    """Name, prompt, decodes, KV tokens and measured seconds of the cells of an H200 that its GPU bounds."""
    found: list[tuple[str, Sequence[Chunk], int, float, float]] = []
    with (data / "vllm_gpu_h200" / "cells.csv").open() as file:
        for row in csv.DictReader(file):
            seconds, name = 1e-3 * float(row["measured_ms_p50"]), f"{row['kind']} {row['cell']}"
            if row["kind"] == "decode":
                decodes, kv = row["cell"].removesuffix(" (long)").split(" @")
                found.append((name, [], int(decodes), float(kv), seconds))
            elif int(row["cell"]) >= LEAST_PROMPT:
                found.append((name, [(int(row["cell"]), 0)], 0, 0.0, seconds))
    return found


def table_errors(kind: type[Hidden] | None) -> np.ndarray:
    """Logarithms of law / table over all plausible shipped tables and usual steps."""
    found = []
    for table, law, _, _ in plausible_tables():
        timer: StepTimer = kind(law) if kind else law
        found += [
            np.log(timer.step_seconds(chunks, decodes, MEAN_KV) / table.step_seconds(chunks, decodes, MEAN_KV))
            for chunks, decodes in TABLE_STEPS
        ]
    return np.array(found)


def print_cells(data: Path) -> None:
    """Print both laws' errors on the measured cells."""
    model, accelerator = find_model("Qwen/Qwen3-8B"), find_accelerator("h200")
    assert model is not None
    assert accelerator is not None
    law = roofline_law(model, accelerator)
    print(f"{'H200, measured':<24}{'ms':>8}{'added':>9}{'hidden':>9}")
    off: list[tuple[float, float]] = []
    for name, chunks, decodes, kv, seconds in measured(data):
        added, hidden = (each.step_seconds(chunks, decodes, kv) / seconds - 1.0 for each in (law, Hidden(law)))
        off.append((added, hidden))
        print(f"{name:<24}{1e3 * seconds:>8.2f}{added:>+9.0%}{hidden:>+9.0%}")
    added, hidden = np.abs(off).mean(axis=0)
    print(f"{'mean absolute error':<24}{'':>8}{added:>9.0%}{hidden:>9.0%}")


def main() -> None:
    """Print both laws' errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--quick", action="store_true", help="the same: it takes a second")
    data = parser.parse_args().data
    if data is not None:
        print_cells(data)
    for name, errors in (("added", table_errors(None)), ("hidden", table_errors(Hidden))):
        low, middle, high = np.exp(np.percentile(errors, (5, 50, 95)))
        spread = float(np.sqrt(np.mean(np.square(errors))))
        print(f"{name}: {middle:.2f} times the shipped tables, 90 % {low:.2f} to {high:.2f}, deviation {spread:.2f}")


if __name__ == "__main__":
    main()

"""The KV cache by formula against what engines reported, each predicted by the fit to the others.

    python -m benchmarks.kv_memory

Two constants are fitted, both not negative: the workspace, and the bytes of a logit (`enginemodel/memory.py`).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from holdfast.enginemodel.catalog import GIB, find_accelerator, find_model
from holdfast.enginemodel.memory import LOGIT_BYTES, WORKSPACE_BYTES, MemoryParts, engine_memory

REPORTS = Path(__file__).parent / "data" / "kv_memory" / "reports.csv"
ERROR_BAR = 0.15
"""No prediction of a row without itself may be off by more."""

Constants = tuple[float, float]
"""Bytes of workspace, and of a logit."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an engine ran with, and the tokens that it reported."""

    gpu: str
    model: str
    vllm: str
    share: float
    max_num_seqs: int
    max_num_batched_tokens: int
    graph_tokens: int
    kv_tokens: int
    known: str

    @property
    def name(self) -> str:
        """GPU, model, version and share."""
        return f"{self.gpu}, {self.model.split('/')[-1]}, vLLM {self.vllm}, {self.share:g}"

    @property
    def parts(self) -> MemoryParts:
        """By formula."""
        model, gpu = find_model(self.model), find_accelerator(self.gpu)
        assert model is not None
        assert gpu is not None
        memory = engine_memory(model, gpu, (1, 1), self.share)
        return memory.parts(self.max_num_seqs, self.max_num_batched_tokens, self.graph_tokens)

    @property
    def activation_bytes(self) -> float:
        """What the engine's activations took, if the other parts are as the formula says."""
        found = self.parts
        rest = found.usable_bytes - found.weights_bytes - found.graph_bytes
        return rest - self.kv_tokens * found.token_bytes

    @property
    def logits(self) -> float:
        """Logits of a step with all sequences."""
        model = find_model(self.model)
        assert model is not None
        return float(self.max_num_seqs * model.vocabulary)

    def error(self, constants: Constants) -> float:
        """Of the tokens that the formula says with these constants, relative to those reported."""
        workspace, logit = constants
        more = self.activation_bytes - workspace - logit * self.logits
        return more / (self.kv_tokens * self.parts.token_bytes)


def reports() -> list[Report]:
    """The rows of the file."""
    with REPORTS.open(newline="") as file:
        return [
            Report(
                row["gpu"],
                row["model"],
                row["vllm"],
                float(row["share"]),
                int(row["max_num_seqs"]),
                int(row["max_num_batched_tokens"]),
                int(row["graph_tokens"]),
                int(row["kv_tokens"]),
                row["known"],
            )
            for row in csv.DictReader(file)
        ]


def fitted(rows: Sequence[Report]) -> Constants:
    """Least squares of the activations in bytes; a constant that would be negative is 0."""
    logits, bytes_taken = np.array([each.logits for each in rows]), np.array([each.activation_bytes for each in rows])
    design = np.column_stack((np.ones(len(rows)), logits))
    workspace, logit = np.linalg.lstsq(design, bytes_taken, rcond=None)[0]
    if workspace < 0.0:
        return 0.0, max(0.0, float(logits @ bytes_taken / (logits @ logits)))
    return (float(workspace), float(logit)) if logit >= 0.0 else (max(0.0, float(bytes_taken.mean())), 0.0)


def without(row: Report, rows: Sequence[Report]) -> Constants:
    """The fit to the others. Of an old version that is the bytes of a logit alone, by its others; the workspace stays.

    Its sampler took about three times the bytes; three engines with nearly the same logits tell no two constants apart.
    """
    workspace, logit = fitted([each for each in rows if each.known != "old" and each is not row])
    if row.known != "old":
        return workspace, logit
    others = [each for each in rows if each.known == "old" and each is not row]
    taken = sum((each.activation_bytes - workspace) * each.logits for each in others)
    return workspace, taken / sum(each.logits**2 for each in others)


def main() -> None:
    """Print the table."""
    rows = reports()
    present = [each for each in rows if each.known != "old"]
    workspace, logit = fitted(present)
    print(f"fit: {workspace / GIB:.2f} GiB and {logit:.1f} bytes a logit", end="; ")
    print(f"in the code {WORKSPACE_BYTES / GIB:.2f} GiB and {LOGIT_BYTES:g}\n")
    print("| engine | known | reported | by formula | without itself |\n|---|---|---|---|---|")
    for each in rows:
        code = each.error((WORKSPACE_BYTES, LOGIT_BYTES))
        apart = each.error(without(each, rows))
        missed = " (missed)" if abs(apart) > ERROR_BAR else ""
        print(
            f"| {each.name} | {each.known} | {each.kv_tokens:,} | {100 * code:+.1f} % | {100 * apart:+.1f} %{missed} |"
        )


if __name__ == "__main__":
    main()

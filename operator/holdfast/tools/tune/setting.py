"""What is tuned: the limits that an engine runs with, and the grid of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LEAST_SEQUENCES, LEAST_TOKENS = 16, 256
"""Fewer sequences or tokens in a step than these use no accelerator well."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Active sequences, tokens per step, and the share of GPU memory; None leaves the memory as it is."""

    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float | None = None

    def within(self, started: Setting) -> bool:
        """Whether an engine that was started with those limits can be brought to these while it serves."""
        small = self.max_num_seqs <= started.max_num_seqs
        fewer = self.max_num_batched_tokens <= started.max_num_batched_tokens
        return small and fewer and self.gpu_memory_utilization == started.gpu_memory_utilization

    @property
    def flags(self) -> list[str]:
        """As vLLM takes them, one argument per item."""
        memory = self.gpu_memory_utilization
        return [
            f"--max-num-seqs={self.max_num_seqs}",
            f"--max-num-batched-tokens={self.max_num_batched_tokens}",
            *([] if memory is None else [f"--gpu-memory-utilization={memory:g}"]),
        ]

    @property
    def snippet(self) -> dict[str, Any]:
        """The part of an LLMService's spec that holds engines to these limits."""
        limits = {"maxNumSeqs": self.max_num_seqs, "maxNumBatchedTokens": self.max_num_batched_tokens}
        found: dict[str, Any] = {"batching": {"mode": "Fixed", **limits}}
        if self.gpu_memory_utilization is not None:
            found["engine"] = {"args": [f"--gpu-memory-utilization={self.gpu_memory_utilization:g}"]}
        return found

    def __str__(self) -> str:
        memory = "" if self.gpu_memory_utilization is None else f", {100 * self.gpu_memory_utilization:g} % of memory"
        return f"{self.max_num_seqs} sequences, {self.max_num_batched_tokens} tokens per step{memory}"


def grid(most: Setting) -> tuple[Setting, ...]:
    """The limits of `most` and their halves, quarters, ...; vLLM wants no fewer tokens per step than sequences."""
    return tuple(
        Setting(sequences, tokens, most.gpu_memory_utilization)
        for tokens in _halves(most.max_num_batched_tokens, LEAST_TOKENS)
        for sequences in _halves(most.max_num_seqs, LEAST_SEQUENCES)
        if sequences <= tokens
    )


def _halves(most: int, least: int) -> Iterator[int]:
    """`most`, and the powers of two below it."""
    yield most
    power = 1 << (max(most - 1, 1).bit_length() - 1)
    while power >= least:
        yield power
        power >>= 1

"""What engines and the plugin inside them report, as read back from Prometheus."""

from __future__ import annotations

import enum
from dataclasses import fields, replace

from holdfast.domain.value import value
from holdfast_engine.law.model_figures import ModelFigures


class PluginMode(enum.Enum):
    """What the plugin does in an engine; the names are those of `holdfast:plugin_info`."""

    OFF = "off"  # disabled itself: the engine behaves like stock vLLM
    WAITING = "waiting"  # no limits have reached it yet
    ACTIVE = "active"


@value
class EngineState:
    """One replica's plugin at its last scrape; None for values that it did not report."""

    pod: str
    mode: PluginMode
    limits_version: int | None = None
    active_sequences: float | None = None
    tokens_per_step: float | None = None


SAME_ACCEPTANCE = 0.05
"""Relative change of the tokens that a decode step gives a sequence, below which drafts are accepted as before."""


@value
class EngineFacts:
    """What the engines of one accelerator say of themselves; None for what none of them said.

    Of engines that differ, numbers are the least one; the other facts are those of most engines.
    """

    kv_tokens: float | None = None  # KV cache of one engine
    block_tokens: float | None = None
    accepted_drafts: float | None = None  # draft tokens accepted per decode step; None without speculation
    memory_share: float | None = None  # of the GPU that vLLM may use: gpu_memory_utilization
    kv_dtype: str | None = None  # "auto": that of the model
    dtype: str | None = None
    quantization: str | None = None  # "none": not quantized
    max_model_len: int | None = None
    parallel_gpus: int | None = None  # tensor x pipeline x data parallel: GPUs of a replica
    graph_edge_tokens: int | None = None  # of the largest CUDA graph; 0: none is captured
    speculative_tokens: int | None = None  # drafted per decode step; 0: no speculation
    model: ModelFigures | None = None  # of its config.json
    front_end: str | None = None  # what serves requests: Python, in one or several processes, or Rust
    front_end_lag_seconds: float | None = None  # None where nobody reports when answers were written

    @property
    def tokens_per_step(self) -> float:
        """Output tokens that a decode step gives a sequence: one, and the drafts that are accepted."""
        return 1.0 + (self.accepted_drafts or 0.0)

    def updated(self, new: EngineFacts | None) -> EngineFacts:
        """Return these facts, updated with the facts that engines report now. A fact that no engine reports stays, but
        for the lag: it is of now.

        The acceptance of drafts always varies a little. A small change (`SAME_ACCEPTANCE`) does not replace it.
        """
        if new is None or new == self:
            return self
        said = {each.name: found for each in fields(new) if (found := getattr(new, each.name)) is not None}
        before, now = self.accepted_drafts, new.accepted_drafts
        if before is not None and now is not None and abs(now - before) <= SAME_ACCEPTANCE * (1.0 + before):
            said["accepted_drafts"] = before
        merged = replace(self, **said | {"front_end_lag_seconds": new.front_end_lag_seconds})
        return self if merged == self else merged


@value
class StepSums:
    """Work of the engine steps of some minutes, and their total duration.

    Prompt tokens computed, decoding sequences, KV tokens read by them, attention pairs of prompt tokens: the terms of
    the step law.
    """

    steps: float = 0.0
    prefill_tokens: float = 0.0
    decodes: float = 0.0
    kv_tokens: float = 0.0
    pairs: float = 0.0
    seconds: float = 0.0


@value
class ExactCounts:
    """Requests judged by all objectives together, gained over the interval of the Traffic that contains them.

    arrived = good + all bad + withdrawn + the growth of requests not judged yet. `bad_killed` were open in an engine
    that was killed, and are counted by the next one in its container. `engine_timed` engines may have judged by the
    times at which tokens left the engine, not by those at which their bytes were written.
    """

    arrived: float = 0.0
    good: float = 0.0
    bad_ttft: float = 0.0
    bad_tpot: float = 0.0
    bad_e2e: float = 0.0
    bad_rejected: float = 0.0
    bad_error: float = 0.0
    withdrawn: float = 0.0
    good_tokens: float = 0.0
    engines: int = 0
    engine_timed: float = 0.0
    bad_killed: float = 0.0

    @property
    def late(self) -> float:
        """Requests that were served too late or too slowly."""
        return self.bad_ttft + self.bad_tpot + self.bad_e2e

    @property
    def bad(self) -> float:
        """Requests outside the objectives, for whatever cause."""
        return self.late + self.bad_rejected + self.bad_error + self.bad_killed

"""What other autoscalers are shown: gauges of single engines, and latencies, as of the newest scrape.

More than any of them has: percentiles are exact rather than read from buckets, the timer is the engine's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.domain.service import Slo
from holdfast.enginemodel.scheduler import BLOCK_TOKENS
from holdfast.enginemodel.steplaw import StepTimer
from holdfast.twin.arrays.state_arrays import Record, Records
from holdfast.twin.pods.cluster import Service

LATENCY_SECONDS = 60.0
"""Window of the percentiles, as in llm-d's recording rules."""

LONGEST_TTFT_SECONDS = 900.0
"""First tokens of older requests are not looked for."""

P90 = 90.0


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """One engine: requests, KV tokens in use, prompt tokens of requests without a first token, and which it is."""

    running: float
    waiting: float
    kv_tokens: float
    queued_tokens: float
    name: str = ""


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What every engine of the service is: its KV cache and vLLM's limits, and how long its steps take."""

    kv_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    timer: StepTimer


@dataclass(frozen=True, slots=True)
class Sight:
    """One service: `size` is what is wanted now, `ready` what serves; rates and lengths are of the last scrapes.

    `cached_share` is the share of prompt tokens that the prefix cache had; percentiles are there where they were asked
    for and anything was measured.
    """

    size: int
    ready: int
    lowest: int
    highest: int
    engines: tuple[EngineGauges, ...]
    shape: EngineShape
    slo: Slo
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    arrivals_rps: float = 0.0
    cached_share: float = 0.0
    ttft_p90_seconds: float | None = None
    tpot_p90_seconds: float | None = None

    @property
    def running(self) -> float:
        """Requests that run."""
        return sum(engine.running for engine in self.engines)

    @property
    def waiting(self) -> float:
        """Requests that wait."""
        return sum(engine.waiting for engine in self.engines)

    @property
    def queued_tokens(self) -> float:
        """Prompt tokens of requests without a first token."""
        return sum(engine.queued_tokens for engine in self.engines)

    @property
    def kv_usage(self) -> Sequence[float]:
        """Share of its KV cache that each engine uses."""
        return [engine.kv_tokens / self.shape.kv_tokens for engine in self.engines]


def gauges(record: Record, name: str = "") -> EngineGauges:
    """From an engine's record."""
    used = float(record["blocks"] - record["free_blocks"]) * BLOCK_TOKENS
    return EngineGauges(float(record["running"]), float(record["waiting"]), used, float(record["queued_tokens"]), name)


def p90_seconds(service: Service, at: float) -> tuple[float | None, float | None]:
    """TTFT and TPOT of the answers that began, or ended, in the last minute before `at`."""
    requests, since = service.fleet.requests, at - LATENCY_SECONDS
    first, last = np.searchsorted(requests["at"], [since - LONGEST_TTFT_SECONDS, at])
    near = requests[first:last]
    began = near[(near["first_at"] > since) & (near["first_at"] <= at)]
    ended = near[(near["last_at"] > since) & (near["last_at"] <= at) & (near["generated"] == near["output"])]
    ended = ended[ended["output"] > 1]
    ttft, tpot = began["first_at"] - began["at"], (ended["last_at"] - ended["first_at"]) / (ended["output"] - 1)
    return _percentile(ttft), _percentile(tpot)


def _percentile(values: Records) -> float | None:
    return float(np.percentile(values, P90)) if len(values) else None

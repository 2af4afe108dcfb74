"""NVIDIA Dynamo's planner for aggregated workers: load scaling by SLA, and its easy mode for latency.

Source: ai-dynamo 1.6.1, planner/core/load_scaling.py:24-36, 459-800, 1088-1150, planner/core/perf_model/agg.py and
planner/config/planner_config.py.
Its regressions over forward-pass metrics are given the true step times instead, every scrape instead of every 5 s.
"""

from __future__ import annotations

from abc import abstractmethod

from holdfast.domain.service import ServiceKey
from holdfast.twin.peers.peer import Peer, positive
from holdfast.twin.pods.peer_metrics import EngineGauges, Sight

MOST_CACHED = 0.95
"""No larger share of prompt tokens is taken to be cached."""


class _DynamoPlanner(Peer):
    """One replica at a time, and nothing while one starts."""

    behavior = None

    def wanted(self, key: ServiceKey, seen: Sight, now: float) -> int:
        """Replicas by the law alone."""
        if not seen.engines or seen.ready != seen.size or len(seen.engines) != seen.size:
            return seen.size
        if self.too_slow(seen):
            return seen.size + 1
        return seen.size - 1 if seen.size > 1 and self.too_fast(seen) else seen.size

    @abstractmethod
    def too_slow(self, seen: Sight) -> bool:
        """Whether one more is needed."""

    @abstractmethod
    def too_fast(self, seen: Sight) -> bool:
        """Whether one less would do."""


class DynamoSla(_DynamoPlanner):
    """Up where every worker's estimated mean TTFT, or ITL, is above its target; down where one less keeps 80 %.

    The knob is the targets' share of the objectives.
    """

    name = "dynamo-sla"
    _sensitivity = 0.80

    def __init__(self, target: float = 1.0) -> None:
        super().__init__()
        self._share = positive(self.name, "target", target)

    def too_slow(self, seen: Sight) -> bool:
        """All workers above a target."""
        ttft, tpot = self._share * seen.slo.ttft_seconds, self._share * seen.slo.tpot_seconds
        return all(ttft_seconds(seen, each) > ttft for each in seen.engines) or all(
            itl_seconds(seen, each) > tpot for each in seen.engines
        )

    def too_fast(self, seen: Sight) -> bool:
        """Every worker has room for its part of one that leaves."""
        more = seen.size / (seen.size - 1)
        return all(self._has_room(seen, each, more) for each in seen.engines)

    def _has_room(self, seen: Sight, engine: EngineGauges, more: float) -> bool:
        fuller = _times(more, engine)
        own = prefill_seconds(seen, seen.prompt_tokens, fuller)
        # Who waits will decode too.
        joined = EngineGauges(fuller.running + fuller.waiting, 0.0, fuller.kv_tokens + fuller.queued_tokens, 0.0)
        return (
            ttft_seconds(seen, fuller) - own < self._sensitivity * (self._share * seen.slo.ttft_seconds - own)
            and joined.kv_tokens < seen.shape.kv_tokens
            and itl_seconds(seen, joined) < self._sensitivity * self._share * seen.slo.tpot_seconds
        )


def _times(more: float, engine: EngineGauges) -> EngineGauges:
    return EngineGauges(
        more * engine.running, more * engine.waiting, more * engine.kv_tokens, more * engine.queued_tokens
    )


def ttft_seconds(seen: Sight, engine: EngineGauges) -> float:
    """Steps until the prompts that wait, and one more of mean length, are computed."""
    return prefill_seconds(seen, engine.queued_tokens + seen.prompt_tokens, engine)


def prefill_seconds(seen: Sight, tokens: float, engine: EngineGauges) -> float:
    """Full steps of prompt tokens that are not cached, and the remaining tokens, each step with all decodes."""
    size = seen.shape.max_num_batched_tokens
    steps, left = divmod(round(_uncached(seen) * tokens), size)
    rest = _step(seen, left, engine) if left else 0.0
    return (steps * _step(seen, size, engine) if steps else 0.0) + rest


def itl_seconds(seen: Sight, engine: EngineGauges) -> float:
    """A step with what runs, one more decode of mean length and the mean share of prompt tokens, for any queue."""
    length = engine.kv_tokens / engine.running if engine.running >= 1.0 else seen.prompt_tokens
    more = EngineGauges(engine.running + 1.0, 0.0, engine.kv_tokens + length, 0.0)
    arrivals = seen.arrivals_rps * _uncached(seen) * seen.prompt_tokens / max(1, len(seen.engines))
    prompts = min(arrivals * _step(seen, 0, more), float(seen.shape.max_num_batched_tokens))
    return _step(seen, round(prompts), more)


def _uncached(seen: Sight) -> float:
    return 1.0 - min(seen.cached_share, MOST_CACHED)


def _step(seen: Sight, prompts: int, engine: EngineGauges) -> float:
    chunks = ((prompts, 0),) if prompts > 0 else ()
    decodes = round(engine.running)
    return seen.shape.timer.step_seconds(chunks, decodes, engine.kv_tokens / max(1.0, engine.running))


class DynamoLatency(_DynamoPlanner):
    """Easy mode, latency: up where any worker's load is above 0.4 of its KV cache, down where all are below 0.1.

    The load is KV tokens in use and prompt tokens that wait (_agg_easy_decision); the rule of an empty queue is for
    workers of nothing but prefill. Prompts in prefill count twice here, by at most a step or two. The knob is the 0.4,
    the 0.1 goes along.
    """

    name = "dynamo-latency"
    _usage_up, _usage_down = 0.4, 0.1

    def __init__(self, kv: float = _usage_up) -> None:
        super().__init__()
        self._usage = positive(self.name, "kv", kv)

    def too_slow(self, seen: Sight) -> bool:
        """Any worker above the bound."""
        return any(each > self._usage for each in _loads(seen))

    def too_fast(self, seen: Sight) -> bool:
        """All workers below the lower bound."""
        least = self._usage * (self._usage_down / self._usage_up)
        return all(each < least for each in _loads(seen))


def _loads(seen: Sight) -> list[float]:
    return [(each.kv_tokens + each.queued_tokens) / seen.shape.kv_tokens for each in seen.engines]

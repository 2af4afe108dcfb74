"""Every figure's formula, once, over raw records of requests.

| figure | of a request |
|---|---|
| TTFT | first event with text - sent |
| ITL | every gap between events with text |
| TPOT | (E2E - TTFT) / (tokens - 1) |
| E2E | last event with text - sent |
| tokens/s of a user | tokens / E2E |
| 1 / TPOT | the same once the answer flows |

docs/bench.md says where other tools differ; their ITL is computed here as well. A figure that a request does not
have is NaN, never 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from holdfast.domain.benchmark import tokens_per_dollar as tokens_per_dollar  # the operator asks for it too
from holdfast.enginemodel.catalog import ModelShape
from holdfast.tools.bench.load.load_generator import LatencyBounds
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord, impossible

Floats = npt.NDArray[np.float64]
Figure = Callable[[RequestRecord], float]
"""A figure of one request; NaN where it has none."""

GOOD = "good"


class MissCause(StrEnum):
    """Why a finished request is not good."""

    TTFT = "late_ttft"
    TPOT = "late_tpot"
    E2E = "late_e2e"
    IMPOSSIBLE = "impossible_times"


def ttft_seconds(record: RequestRecord) -> float:
    """Time to first token: from sending to the first event that carries text.

    Sending includes the connection where a new one is opened, as in vLLM's `bench serve` and AIPerf. Events without
    text (the role of a chat, pings) do not count; in vLLM's client, AIPerf and LLMPerf the first chunk does.
    """
    return record.token_at[0] - record.sent_at if record.token_at else math.nan


def itl_seconds(record: RequestRecord) -> Floats:
    """Inter-token latencies: every gap between events with text, as in vLLM's `bench serve` and Inference Perf.

    One figure per gap, not one per request. An event with several tokens makes one gap, which is what a reader sees.
    """
    return np.diff(np.asarray(record.token_at, np.float64))


def itl_inference_perf_seconds(record: RequestRecord) -> Floats:
    """Inter-token latencies as Inference Perf has them: tokens that came in one event are 0 s apart.

    Which event carried how many tokens does not matter: there are (tokens - 1) gaps, and those between events are ours.

    Source: Inference Perf, reportgen/base.py (correct_streamed_response_metrics gives each token its chunk's time).
    """
    merged = max(record.output_tokens - len(record.token_at), 0) if record.token_at else 0
    return np.concatenate([itl_seconds(record), np.zeros(merged)])


def itl_llmperf_seconds(record: RequestRecord) -> float:
    """Inter-token latency as LLMPerf has it: E2E / tokens, one figure per request, which includes the TTFT.

    Source: LLMPerf, token_benchmark_ray.py (the sum of all times to a next token, the first included, by tokens).
    """
    return e2e_seconds(record) / record.output_tokens if record.output_tokens > 0 else math.nan


def e2e_seconds(record: RequestRecord) -> float:
    """End-to-end latency: from sending to the last event with text, as in vLLM's `bench serve`."""
    return record.token_at[-1] - record.sent_at if record.token_at else math.nan


def tpot_seconds(record: RequestRecord) -> float:
    """Time per output token: (E2E - TTFT) / (tokens - 1), as in vLLM's `bench serve`, AIPerf and Inference Perf.

    NaN for an answer of one token. GuideLLM divides by all tokens from sending on, so that its figure holds the TTFT.
    """
    if record.output_tokens < 2 or not record.token_at:
        return math.nan
    return (record.token_at[-1] - record.token_at[0]) / (record.output_tokens - 1)


def user_tokens_per_second(record: RequestRecord) -> float:
    """Output tokens per second that one user gets, the wait for the first one included: tokens / E2E.

    NaN where tokens or times are not known.
    """
    e2e = e2e_seconds(record)
    return record.output_tokens / e2e if e2e > 0.0 and record.output_tokens > 0 else math.nan


def interactivity(record: RequestRecord) -> float:
    """Output tokens per second that one user sees once the answer flows: 1 / TPOT (AIPerf, InferenceMAX)."""
    tpot = tpot_seconds(record)
    return 1.0 / tpot if tpot > 0.0 else math.nan


def verdict(record: RequestRecord, slo: LatencyBounds) -> str:
    """`good`, or the one cause that this request is badput for.

    Good: finished, and each bound of the SLO kept (TTFT <= a, TPOT <= b, E2E <= c). An answer of one token has no TPOT
    and cannot miss it (as in vLLM's `bench serve`). The first cause counts: how it ended, then TTFT, TPOT, E2E.
    """
    if record.outcome is not RequestOutcome.FINISHED:
        return record.outcome
    if impossible(record) or not record.token_at:
        return MissCause.IMPOSSIBLE
    bounds = (
        (MissCause.TTFT, ttft_seconds(record), slo.ttft_seconds),
        (MissCause.TPOT, tpot_seconds(record), slo.tpot_seconds),
        (MissCause.E2E, e2e_seconds(record), slo.e2e_seconds),
    )
    return next((missed for missed, seconds, bound in bounds if bound is not None and seconds > bound), GOOD)


NO_CLASSES: Mapping[str, LatencyBounds] = MappingProxyType({})


def verdicts(
    records: Iterable[RequestRecord], slo: LatencyBounds, of_classes: Mapping[str, LatencyBounds] = NO_CLASSES
) -> Counter[str]:
    """Requests by `good` and by cause of badput; they add up to ALL requests, refused and failed ones included.

    A request is judged by the bounds of its class, where it claimed one that has any.
    """
    return Counter(str(verdict(record, of_classes.get(record.slo_class, slo))) for record in records)


def attainment(counts: Mapping[str, int]) -> float:
    """Good requests / ALL requests that arrived; NaN without any.

    Inference Perf's share is over successful requests alone: there a server that refuses most looks perfect.
    """
    total = sum(counts.values())
    return counts.get(GOOD, 0) / total if total else math.nan


def timed(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """The requests that have latencies: finished, and possible on one clock."""
    return [
        record
        for record in records
        if record.outcome is RequestOutcome.FINISHED and record.token_at and not impossible(record)
    ]


def span_seconds(records: Sequence[RequestRecord]) -> float:
    """From the first sending to the last event of any request: what rates of a whole run are divided by.

    vLLM's `bench serve` divides by the same wall time of the run.
    """
    sane = [record for record in records if not impossible(record)]
    if not sane:
        return math.nan
    return max(record.ended_at for record in sane) - min(record.sent_at for record in sane)


def system_tokens_per_second(records: Sequence[RequestRecord]) -> float:
    """Output tokens of all answers / (last response - first request): what the endpoint gave over the whole run.

    Warm-up and drain are in it. NaN where no answer has a known number of tokens.

    Source: NVIDIA NIM for LLMs, benchmarking metrics, "tokens per second per system".
    """
    answered = [record for record in timed(records) if record.output_tokens > 0]
    first = min((record.sent_at for record in records if not impossible(record)), default=math.nan)
    seconds = max((record.token_at[-1] for record in answered), default=math.nan) - first
    return sum(record.output_tokens for record in answered) / seconds if seconds > 0.0 else math.nan


def tokens_within(records: Iterable[RequestRecord], begin: float, end: float) -> float:
    """Output tokens that arrived in [begin, end), of any request however it ended.

    Where events carry several tokens, each stands for an equal share of its answer's.
    """
    total = 0.0
    for record in records:
        if record.token_at and not impossible(record):
            first, last = np.searchsorted(np.asarray(record.token_at), (begin, end))
            total += (last - first) * max(record.output_tokens, 1) / len(record.token_at)
    return total


def prompt_tokens_within(records: Iterable[RequestRecord], begin: float, end: float) -> int:
    """Prompt tokens of answered requests whose first token came in [begin, end): by then the prompt was computed."""
    return sum(record.prompt_tokens for record in timed(records) if begin <= record.token_at[0] < end)


def finished_within(records: Iterable[RequestRecord], begin: float, end: float) -> list[RequestRecord]:
    """Requests whose answer was complete in [begin, end), whenever they arrived: what an endpoint carries.

    Counted by arrival, answers that overload puts off until after its end would look as if they had been in time.
    """
    return [each for each in records if each.outcome is RequestOutcome.FINISHED and begin <= each.ended_at < end]


def kv_bytes_per_token(model: ModelShape) -> float:
    """Bytes of KV cache that a token takes: 2 x layers x KV heads x head dimension x bytes of an element."""
    return model.kv_bytes_per_token


def peak_resident_tokens(records: Iterable[RequestRecord]) -> float:
    """The most tokens in the KV cache at once, seen from outside: prompts and answers so far of open answers.

    A prompt counts from its first token on and an answer until its end, so this is what an engine at least held;
    prompts that share a prefix are counted each.
    """
    changes: list[tuple[float, float]] = []
    for record in records:
        if not record.token_at or impossible(record):
            continue
        share = max(record.output_tokens, 1) / len(record.token_at)
        changes.append((record.token_at[0], record.prompt_tokens + share))
        changes += [(moment, share) for moment in record.token_at[1:]]
        changes.append((record.token_at[-1], -(record.prompt_tokens + share * len(record.token_at))))
    # What ends at a moment goes last: the token that ends an answer was in the cache with all others.
    changes.sort(key=lambda change: (change[0], -change[1]))
    return float(max(np.cumsum([tokens for _, tokens in changes]), default=0.0))


def requests_under_way(records: Iterable[RequestRecord], begin: float, end: float) -> tuple[Floats, Floats]:
    """How many requests were under way at once, seen from outside, and for how many seconds of the window each."""
    changes = [(begin, 0), (end, 0)]
    for record in records:
        if math.isfinite(record.sent_at) and math.isfinite(record.ended_at):
            changes.append((min(max(record.sent_at, begin), end), 1))
            changes.append((min(max(record.ended_at, begin), end), -1))
    moments, steps = np.array(sorted(changes)).T
    return np.cumsum(steps)[:-1], np.diff(moments)


def percentile(values: Floats, share: float) -> float:
    """Percentile with linear interpolation between neighbours (numpy's default and vLLM's); NaN of nothing."""
    return float(np.quantile(values, share)) if len(values) else math.nan

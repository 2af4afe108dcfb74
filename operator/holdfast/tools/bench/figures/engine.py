"""What the engine itself reports while it is loaded: KV cache, running and waiting requests, preemptions, work."""

from __future__ import annotations

import asyncio
import math
import re
import ssl
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from holdfast.domain.engine import StepSums
from holdfast.enginemodel.phases import GpuWork
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.tools.bench.load.load_generator import Endpoint
from holdfast_engine.law.leastsquares import TERMS, UNITS

PERIOD_SECONDS = 1.0
_VALUE = re.compile(
    r"^vllm:(kv_cache_usage_perc|gpu_cache_usage_perc|num_requests_running|num_requests_waiting|num_preemptions_total"
    r"|prefix_cache_queries_total|prefix_cache_hits_total"
    r"|estimated_flops_per_gpu_total|estimated_read_bytes_per_gpu_total|estimated_write_bytes_per_gpu_total)"
    r"(?:\{[^}\n]*\})? ([0-9.eE+-]+)$",
    re.MULTILINE,
)
_SEQUENCES = re.compile(r'^holdfast:limits\{[^}\n]*\bname="active_sequences"[^}\n]*\} ([0-9.eE+-]+)$', re.MULTILINE)
_CACHE = re.compile(r"^vllm:cache_config_info\{([^}\n]*)\}", re.MULTILINE)
_TENSOR = re.compile(r'^holdfast:engine_info\{[^}\n]*\btensor_parallel="([0-9]{1,4})"', re.MULTILINE)
_STAGES = re.compile(r'^holdfast:engine_info\{[^}\n]*\bpipeline_parallel="([0-9]{1,4})"', re.MULTILINE)
_LIMIT = re.compile(r'^holdfast:limits\{[^}\n]*\bname="tokens_per_step"[^}\n]*\} ([0-9.eE+-]+)$', re.MULTILINE)
_SUMS = re.compile(r'^holdfast:step_sums_total\{[^}\n]*\bterm="(\w+)"[^}\n]*\} ([0-9.eE+-]+)$', re.MULTILINE)
_LAW = re.compile(r'^holdfast:step_law\{[^}\n]*\bcoefficient="(c[0-4])"[^}\n]*\} ([0-9.eE+-]+)$', re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

NO_STEPS = StepSums()

FULL = 0.95
"""Share of the KV cache, or of the sequences in a step, from which on it is what binds."""


class Resource(StrEnum):
    """What an engine runs out of."""

    KV_CACHE = "kv_cache"
    SEQUENCES = "sequences"
    TOKENS_PER_STEP = "tokens_per_step"
    SEQUENCES_OR_TOKENS = "sequences_or_tokens_per_step"
    """One of the two: engines without the plugin do not tell their limits."""
    NONE = "none"
    """Nothing waits in the engine: what binds is before it, or each sequence's own speed."""


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One look at an engine's metrics; shares, requests, and what a counter stood at; on a clock that never jumps."""

    kv_usage: float
    running: float
    waiting: float
    preemptions: float
    kv_tokens: float
    gpu_flops: float = 0.0
    gpu_memory_bytes: float = 0.0
    looked_at: float = 0.0
    most_sequences: float = math.nan
    memory_share: float = math.nan
    """vLLM's share of the GPU's memory: gpu_memory_utilization."""
    kv_bytes: float = math.nan
    """Bytes of KV cache on each GPU, where they are given instead of a share."""
    tensor_gpus: int = 0
    """GPUs that share its layers, as the plugin reports; 0 where it does not."""
    stages: int = 1
    engines: int = 1
    sums: StepSums = NO_STEPS
    """Over the steps so far, as the plugin counts them."""
    tokens_per_step: float = math.nan
    law: StepLaw | None = None
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    """Counters: prompt tokens that the engine looked up in its prefix cache, and the hits."""


@dataclass(frozen=True, slots=True)
class Reported:
    """The most of each while the load went on. Behind a Service of many replicas, each look is at one of them."""

    looks: int
    peak_kv_usage: float
    kv_capacity_tokens: float
    peak_running: float
    peak_waiting: float
    preemptions: float
    work: GpuWork | None = None
    peak_sequences_share: float = math.nan
    """Running sequences / the most that the plugin allows; NaN without it."""
    memory_share: float = math.nan
    kv_bytes: float = math.nan
    tensor_gpus: int = 0
    stages: int = 1
    engines: int = 1
    sums: StepSums | None = None
    """Over the steps of the run; None without the plugin, or where it began anew."""
    tokens_per_step: float = math.nan
    law: StepLaw | None = None
    cached_share: float = math.nan
    """Of the prompt tokens, those found in the prefix cache; NaN where none was looked up, or engines began anew."""

    @property
    def binds(self) -> Resource:
        """What requests waited for first."""
        if self.preemptions or self.peak_kv_usage >= FULL:
            return Resource.KV_CACHE
        if not self.peak_waiting > 0:
            return Resource.NONE
        if math.isnan(self.peak_sequences_share):
            return Resource.SEQUENCES_OR_TOKENS
        return Resource.SEQUENCES if self.peak_sequences_share >= FULL else Resource.TOKENS_PER_STEP

    @property
    def peak_kv_tokens(self) -> float:
        """Tokens in the KV cache at the peak, as the engine says; in whole blocks, shared prefixes once."""
        return self.peak_kv_usage * self.kv_capacity_tokens


def read_sample(text: str, looked_at: float = 0.0) -> EngineSample | None:
    """What vLLM's /metrics says, sums over its engines (usage: the fullest); None where it is no vLLM's."""
    values: dict[str, list[float]] = {}
    for name, value in _VALUE.findall(text):
        with suppress(ValueError):
            values.setdefault(name, []).append(float(value))
    usage = values.get("kv_cache_usage_perc") or values.get("gpu_cache_usage_perc")
    if not usage:
        return None
    caches = [dict(_LABEL.findall(labels)) for labels in _CACHE.findall(text)]
    tensor = [int(found) for found in _TENSOR.findall(text)]
    return EngineSample(
        kv_usage=max(usage),
        running=sum(values.get("num_requests_running", [])),
        waiting=sum(values.get("num_requests_waiting", [])),
        preemptions=sum(values.get("num_preemptions_total", [])),
        kv_tokens=sum(map(_capacity, caches)) or math.nan,
        prompt_tokens=sum(values.get("prefix_cache_queries_total", [])),
        cached_tokens=sum(values.get("prefix_cache_hits_total", [])),
        gpu_flops=_mean(values.get("estimated_flops_per_gpu_total", [])),
        gpu_memory_bytes=_mean(values.get("estimated_read_bytes_per_gpu_total", []))
        + _mean(values.get("estimated_write_bytes_per_gpu_total", [])),
        looked_at=looked_at,
        most_sequences=_total(_SEQUENCES.findall(text)),
        memory_share=_least(caches, "gpu_memory_utilization"),
        kv_bytes=_least(caches, "kv_cache_memory_bytes"),
        tensor_gpus=max(tensor, default=0),
        stages=max([1, *map(int, _STAGES.findall(text))]),
        engines=max(1, len(caches)),
        **_steps(text),
    )


def reported(samples: list[EngineSample]) -> Reported | None:
    """The peaks; None without a sample."""
    if not samples:
        return None
    shares = [sample.running / sample.most_sequences for sample in samples if sample.most_sequences > 0.0]
    return Reported(
        looks=len(samples),
        peak_kv_usage=max(sample.kv_usage for sample in samples),
        kv_capacity_tokens=samples[-1].kv_tokens,
        peak_running=max(sample.running for sample in samples),
        peak_waiting=max(sample.waiting for sample in samples),
        # A counter that fell is another engine's, or of one that began anew.
        preemptions=max(0.0, samples[-1].preemptions - samples[0].preemptions),
        cached_share=_cached_share(samples[0], samples[-1]),
        work=_work(samples[0], samples[-1]),
        peak_sequences_share=max(shares, default=math.nan),
        memory_share=samples[-1].memory_share,
        kv_bytes=samples[-1].kv_bytes,
        tensor_gpus=samples[-1].tensor_gpus,
        stages=samples[-1].stages,
        engines=samples[-1].engines,
        sums=_gained(samples[0].sums, samples[-1].sums),
        tokens_per_step=samples[-1].tokens_per_step,
        law=samples[-1].law,
    )


def _cached_share(first: EngineSample, last: EngineSample) -> float:
    prompt, cached = last.prompt_tokens - first.prompt_tokens, last.cached_tokens - first.cached_tokens
    return cached / prompt if 0.0 <= cached <= prompt and prompt > 0.0 else math.nan


def _gained(first: StepSums, last: StepSums) -> StepSums | None:
    gained = [after - before for before, after in zip(astuple(first), astuple(last), strict=True)]
    sane = min(gained) >= 0.0 and math.isfinite(sum(gained))
    return StepSums(*gained) if sane and gained[0] > 0.0 else None


def _steps(text: str) -> dict[str, Any]:
    """What the plugin says of steps: sums over its engines, the mean of their limits, the first law that is fitted."""
    units, sums = dict(zip(TERMS, UNITS, strict=True)), dict.fromkeys(TERMS, 0.0)
    law: dict[str, float] = {}
    limits = _LIMIT.findall(text)
    with suppress(ValueError):
        for term, value in _SUMS.findall(text):
            sums[term] = sums.get(term, 0.0) + float(value) * units.get(term, 0.0)
        for coefficient, value in _LAW.findall(text):
            law.setdefault(coefficient, float(value))
    return {
        "sums": StepSums(*(sums[term] for term in TERMS)),
        "tokens_per_step": _total(limits) / max(1, len(limits)),
        "law": StepLaw(**law) if len(law) == 5 and 0.0 < sum(law.values()) < math.inf else None,
    }


def _work(first: EngineSample, last: EngineSample) -> GpuWork | None:
    """Between two looks; None where the engine does not count it, or began anew."""
    work = GpuWork(
        flops=last.gpu_flops - first.gpu_flops,
        memory_bytes=last.gpu_memory_bytes - first.gpu_memory_bytes,
        seconds=last.looked_at - first.looked_at,
    )
    positive = work.flops > 0.0 and work.memory_bytes > 0.0 and work.seconds > 0.0
    return work if positive and math.isfinite(work.flops + work.memory_bytes) else None


def _total(found: list[str]) -> float:
    """NaN where there is none, or one is no number."""
    try:
        return sum(map(float, found)) if found else math.nan
    except ValueError:
        return math.nan


def _mean(values: list[float]) -> float:
    """Over engines of one server, for each counts per GPU."""
    return sum(values) / len(values) if values else 0.0


def metrics_url(endpoint: Endpoint) -> str:
    """The URL of vLLM's metrics, next to its /v1."""
    parts = urlsplit(endpoint.url)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return parts._replace(path=f"{path}/metrics", query="", fragment="").geturl()


class EngineWatch:
    """Looks at /metrics once a second, for as long as it runs; an endpoint without them is left alone."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._url = metrics_url(endpoint)
        self._ca_file = endpoint.ca_file
        self._samples: list[EngineSample] = []

    @property
    def reported(self) -> Reported | None:
        """What was seen so far."""
        return reported(self._samples)

    async def run(self) -> None:
        """Until cancelled, or until an answer is no vLLM's metrics."""
        context = ssl.create_default_context(cafile=self._ca_file) if self._ca_file else True
        timeout = aiohttp.ClientTimeout(total=5.0)
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with aiohttp.ClientSession(timeout=timeout) as session:
                while True:
                    with suppress(TimeoutError):  # busy for a moment: it is asked again
                        async with session.get(self._url, ssl=context) as response:
                            sample = read_sample(await response.text(errors="replace"), time.monotonic())
                        if sample is None:
                            return
                        self._samples.append(sample)
                    await asyncio.sleep(PERIOD_SECONDS)


def _capacity(known: Mapping[str, str]) -> float:
    """Of one engine: vLLM's own count where it has one, which is right for hybrid models and data parallelism too."""
    with suppress(KeyError, ValueError):
        return float(known["kv_cache_size_tokens"])
    try:
        return float(known["num_gpu_blocks"]) * float(known["block_size"])
    except (KeyError, ValueError):
        return 0.0


def _least(caches: Iterable[Mapping[str, str]], label: str) -> float:
    """The least positive number that engines have there; NaN where none has one ("None" stands for vLLM's default)."""
    found = []
    for cache in caches:
        with suppress(KeyError, ValueError):
            found.append(float(cache[label]))
    return min((each for each in found if 0.0 < each < math.inf), default=math.nan)

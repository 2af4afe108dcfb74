"""Rows of the once-a-minute query `facts` -> what the engines of each accelerator say of themselves."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from holdfast.domain.engine import EngineFacts
from holdfast.domain.service import ServiceKey
from holdfast.observe.series.queries import ACCEPTED, CACHE_CONFIG, DRAFTS, ENGINE_INFO, LAG
from holdfast.observe.series.samples import Sample, service_key, usable
from holdfast_engine.law.model_figures import ModelFigures

Facts = tuple[tuple[str, EngineFacts], ...]
"""By accelerator, sorted."""

_MOST_TOKENS = 10**10
"""A larger KV cache is nonsense: at 1 KiB a token, the least that models need, it would take 10 TB."""
_MOST_DRAFTED = 1000
"""More draft tokens in one decode step are nonsense: vLLM drafts a handful."""
_MOST_GPUS = 1024
"""More GPUs for one replica are nonsense: the largest systems have 72 in one domain of links."""
_LONGEST_LAG_SECONDS = 3600.0
_MOST_LETTERS = 63
_MOST_SHAPE_LETTERS = 400
_WHOLE = re.compile(r"[0-9]{1,11}")  # neither "None" nor "1e5" nor "16.0": vLLM writes whole numbers as they are
_SHARE = re.compile(r"0?\.[0-9]{1,20}|1(\.0*)?")
_NOTHING_SAID = EngineFacts()


def engine_facts(samples: Iterable[Sample]) -> dict[ServiceKey, Facts]:
    """Read the facts of each accelerator whose engines say any; a label that makes no sense is an unknown fact."""
    rows: dict[ServiceKey, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.label("holdfast_accelerator") and usable(sample.value):
            rows[service_key(sample)][sample.label("holdfast_accelerator")].append(sample)
    found = {key: [(name, _facts(own)) for name, own in sorted(by.items())] for key, by in rows.items()}
    said = ((key, tuple(fact for fact in facts if fact[1] != _NOTHING_SAID)) for key, facts in found.items())
    return {key: facts for key, facts in said if facts}


def _facts(rows: Sequence[Sample]) -> EngineFacts:
    caches, infos = ([row for row in rows if row.label("metric") == metric] for metric in (CACHE_CONFIG, ENGINE_INFO))
    engines_of_pod = len({row.label("engine") for row in caches}) or 1
    return EngineFacts(
        kv_tokens=_least(_kv_tokens(row, engines_of_pod) for row in caches),
        block_tokens=_least(_whole(row.label("block_size")) for row in caches),
        accepted_drafts=_accepted_drafts(rows),
        memory_share=_least(_share(row.label("gpu_memory_utilization")) for row in caches),
        kv_dtype=_most_said(caches, "cache_dtype"),
        dtype=_most_said(infos, "dtype"),
        quantization=_most_said(infos, "quantization"),
        max_model_len=_least_whole(_whole(row.label("max_model_len")) for row in infos),
        parallel_gpus=_least_whole(_parallel_gpus(row, engines_of_pod) for row in infos),
        graph_edge_tokens=_least_whole(_whole_or_zero(row.label("graph_edge")) for row in infos),
        speculative_tokens=_least_whole(_whole_or_zero(row.label("speculative_tokens")) for row in infos),
        model=_model(infos),
        front_end=_most_said(infos, "front_end"),
        front_end_lag_seconds=_lag(rows),
    )


def _kv_tokens(row: Sample, engines_of_pod: int) -> float | None:
    """The KV cache of one engine.

    vLLM's own count comes first: it knows that layers of hybrid models differ in what they hold per token. Older
    versions tell only blocks, which they sum over the data-parallel engines of a pod.
    """
    counted = _whole(row.label("kv_cache_size_tokens"))
    blocks, block_tokens = _whole(row.label("num_gpu_blocks")), _whole(row.label("block_size"))
    if counted is None and blocks is not None and block_tokens is not None:
        counted = blocks * block_tokens / engines_of_pod
    return None if counted is None or counted > _MOST_TOKENS else counted


def _accepted_drafts(rows: Sequence[Sample]) -> float | None:
    """Accepted draft tokens per draft; unknown while nothing is drafted."""
    sums = {row.label("metric"): row.value for row in rows}
    drafts = sums.get(DRAFTS, 0.0)
    if ACCEPTED not in sums or drafts <= 0.0:
        return None
    per_draft = sums[ACCEPTED] / drafts
    return per_draft if per_draft <= _MOST_DRAFTED else None


def _lag(rows: Sequence[Sample]) -> float | None:
    """The longest of all engines, to one digit: a fact that changes all the time is none."""
    lags = (row.value for row in rows if row.label("metric") == LAG)
    return max((float(f"{seconds:.1g}") for seconds in lags if 0.0 < seconds <= _LONGEST_LAG_SECONDS), default=None)


def _parallel_gpus(row: Sample, engines_of_pod: int) -> float | None:
    tensor, pipeline = (_whole(row.label(f"{kind}_parallel")) for kind in ("tensor", "pipeline"))
    gpus = (tensor or 0.0) * (pipeline or 0.0) * engines_of_pod
    return gpus if 0.0 < gpus <= _MOST_GPUS else None


def _model(infos: Iterable[Sample]) -> ModelFigures | None:
    """The model of most engines: figures of different models are never mixed."""
    shape = "model_shape"
    said = _most_said((row for row in infos if ModelFigures.read(row.label(shape))), shape, _MOST_SHAPE_LETTERS)
    return None if said is None else ModelFigures.read(said)


def _whole(text: str) -> float | None:
    """A positive whole number."""
    return _whole_or_zero(text) or None


def _whole_or_zero(text: str) -> float | None:
    """A whole number that may be zero: no CUDA graph, no speculation."""
    return float(text) if _WHOLE.fullmatch(text) else None


def _share(text: str) -> float | None:
    """A number above 0 and up to 1."""
    return float(text) or None if _SHARE.fullmatch(text) else None


def _least(numbers: Iterable[float | None]) -> float | None:
    return min((number for number in numbers if number is not None), default=None)


def _least_whole(numbers: Iterable[float | None]) -> int | None:
    least = _least(numbers)
    return None if least is None else int(least)


def _most_said(rows: Iterable[Sample], label: str, most_letters: int = _MOST_LETTERS) -> str | None:
    """What most engines say; of as many, the first in the alphabet."""
    said: Counter[str] = Counter()
    for row in rows:
        text = row.label(label)
        if text not in ("", "None") and len(text) <= most_letters:
            said[text] += max(1, int(row.value))
    return min(said, key=lambda text: (-said[text], text), default=None)

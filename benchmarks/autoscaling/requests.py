"""Requests that no scenario file can declare: lengths that change on the way, and prefixes that were seen before."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.scenarios.scenario import Scenario
from holdfast.twin.scenarios.traces import read_trace

CODE = "azure2023/AzureLLMInferenceTrace_code.csv"
MOONCAKE = "mooncake/synthetic_trace.jsonl.gz"
BLEND_SECONDS = 600.0
HASH_TOKENS = 512


def shifted(load: Workload, scenario: Scenario, data: Path, seed: int) -> Workload:
    """Code completions instead of conversations from half time on, ever more of them within ten minutes."""
    draw = np.random.default_rng([seed, 5])
    code = read_trace(data / CODE, "azure")
    begins = 0.5 * scenario.duration - 0.5 * BLEND_SECONDS
    turned = draw.random(len(load)) < (load.at - begins) / BLEND_SECONDS
    rows = draw.integers(0, len(code), len(load))
    return replace(
        load,
        prompt_tokens=np.where(turned, code.prompt_tokens[rows], load.prompt_tokens),
        output_tokens=np.where(turned, code.output_tokens[rows], load.output_tokens),
    )


def with_prefixes(load: Workload, scenario: Scenario, data: Path, seed: int) -> Workload:
    """Mooncake's requests with the share of their prompts that an infinite cache would hold.

    Shares belong to prompt lengths of the trace: equal lengths share the mean of theirs.
    """
    shares: dict[int, list[float]] = {}
    seen: set[int] = set()
    with gzip.open(data / MOONCAKE, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            hit = 0
            while hit < len(row["hash_ids"]) and row["hash_ids"][hit] in seen:
                hit += 1
            seen.update(row["hash_ids"])
            length = int(row["input_length"])
            shares.setdefault(length, []).append(min(1.0, hit * HASH_TOKENS / length))
    means = {length: sum(found) / len(found) for length, found in shares.items()}
    cached = [int(length * means.get(int(length), 0.0)) for length in load.prompt_tokens]
    return replace(load, cached_tokens=np.minimum(np.array(cached, np.int64), load.prompt_tokens - 1))

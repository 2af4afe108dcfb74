"""The engine that a benchmark starts for itself, and the limits that it is started with."""

from __future__ import annotations

import json
from dataclasses import dataclass

from holdfast.api.llmbenchmark import Tune
from holdfast.api.llmservice import LLMService
from holdfast.rendered.names import CONTAINER

_SEQUENCES, _TOKENS = "--max-num-seqs", "--max-num-batched-tokens"


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """The engine that a run starts for itself: `template_json` is the pod template of the replicas on `accelerator`."""

    service: LLMService
    accelerator: str
    template_json: str
    tune: Tune


def largest_limits(tune: Tune) -> dict[str, int]:
    """The largest limits that a run looks for, by flag; the others are left as the replicas have them."""
    limits = {_SEQUENCES: tune.max_num_seqs, _TOKENS: tune.max_num_batched_tokens}
    return {flag: value for flag, value in limits.items() if value is not None}


def largest(engine: OwnEngine) -> tuple[int | None, int | None]:
    """Sequences and tokens per step that it is started with, None for vLLM's own defaults."""
    containers = json.loads(engine.template_json)["spec"]["containers"]
    arguments = [each for replica in containers if replica["name"] == CONTAINER for each in replica.get("args", [])]
    found = dict(each.partition("=")[::2] for each in arguments)
    found |= {flag: str(value) for flag, value in largest_limits(engine.tune).items()}
    sequences, tokens = (found.get(flag, "") for flag in (_SEQUENCES, _TOKENS))
    return int(sequences) if sequences.isdecimal() else None, int(tokens) if tokens.isdecimal() else None

"""What the scheduler tells /metrics: the fields of the file between the two processes."""

from __future__ import annotations

import enum
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from holdfast_engine.clients.clientlag import LAG_BUCKETS
from holdfast_engine.law.arithmetic import Law
from holdfast_engine.law.leastsquares import TERMS
from holdfast_engine.objectives.rules import Role

# A record costs as much as the rest of a step's bookkeeping: it is written this often, or after every longer step.
RECORD_SECONDS = 0.05
FOLDER_VARIABLE = "HOLDFAST_ENGINE_FOLDER"


class Mode(enum.IntEnum):
    """What the plugin does."""

    OFF = 0
    """Nothing: the engine is stock vLLM."""
    WAITING = 1
    """First come first served, until the operator's objectives arrive."""
    ACTIVE = 2
    """Orders, limits and counts."""


LAG_TOKENS = ("first", "last")
"""The tokens whose front-end lag is counted."""
COUNTS = (
    "arrived",
    "good",
    "bad_ttft",
    "bad_tpot",
    "bad_e2e",
    "bad_error",
    "bad_killed",
    "withdrawn",
    "handed_over",
    "received",
    "kv_expired",
    "good_tokens",
    "plugin_seconds",
    "plugin_steps",
)
GAUGES = (
    "mode",
    "unjudged",
    "waiting_front",
    "waiting_fresh",
    "waiting_late",
    "waiting_batch",
    "waiting_fresh_tokens",
    "prefill_tps",
    "step_seconds",
    "room_tokens",
    "burst_tps",
    "mean_prompt_tokens",
    "computed_share",
)
FRONT_END = ("front_end_lag", "under_way_seconds", "client_times", "reports_taken")
LAW = Law._fields
"""The numbers of the step law, in its order."""
BATCH_SUMS = ("started", "done", "prompt_tokens", "output_tokens", "started_prompt_tokens", "cached_prompt_tokens")
BATCH = ("running", *BATCH_SUMS)
"""Running batch requests, and sums over all: first tokens, finished ones with their tokens, and the prompt tokens of
those with a first token and of the prefix cache, each counted when vLLM does it. An operator leaves them out of the
demand."""
LIMITS = (
    "version",
    "ttft_seconds",
    "tpot_seconds",
    "e2e_seconds",
    "active_sequences",
    "tokens_per_step",
    "max_queued_requests",
    "max_queued_seconds",
    "reject",
    "role",
)
ROLES = {Role.PREFILL: 1.0, Role.DECODE: 2.0}
"""The numbers of `limit_role`; an engine that serves whole requests has none."""
LAGS = tuple(f"lag_{token}_{number}" for token in LAG_TOKENS for number in (*map("{:g}".format, LAG_BUCKETS), "sum"))
"""Counts of the front-end lag by bucket, and their sum."""
FIELDS: tuple[str, ...] = (
    *COUNTS,
    *GAUGES,
    *(f"law_{name}" for name in (*LAW, "error")),
    *FRONT_END,
    *LAGS,
    *(f"limit_{name}" for name in LIMITS),
    *(f"steps_{name}" for name in TERMS),
    *(f"batch_{name}" for name in BATCH),
)
"""One number each, NaN where there is none."""


_SUMS = frozenset((*COUNTS, *LAGS, *(f"steps_{name}" for name in TERMS), *(f"batch_{name}" for name in BATCH_SUMS)))


def nothing_yet() -> list[float]:
    """A record before the first step."""
    return off([0.0] * len(FIELDS))


def off(numbers: Sequence[float]) -> list[float]:
    """A record of a plugin that is off: what was counted stays, nothing else is claimed."""
    rest = {"mode": float(Mode.OFF)}
    return [number if name in _SUMS else rest.get(name, math.nan) for name, number in zip(FIELDS, numbers, strict=True)]


def folder() -> Path:
    """Where the files lie: a volume that both processes of the pod may write."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / "holdfast-engine"


def servers_folder() -> Path | None:
    """Where each of several API servers writes what it has counted; None behind a single one. vLLM makes it anew."""
    named = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    return Path(named) if named else None


def written_path() -> Path:
    """The file in which the one API server says when answers were written."""
    return folder() / "answers.written"


def stats_path(engine_index: int) -> Path:
    """The file of one engine."""
    return folder() / f"engine-{engine_index}.stats"


def identity_path(engine_index: int) -> Path:
    """The file in which an engine says what it is, once."""
    return folder() / f"engine-{engine_index}.identity"


def identity_paths() -> dict[int, Path]:
    """Those files of all engines of the pod, by engine."""
    return {int(path.stem.partition("-")[2]): path for path in folder().glob("engine-[0-9]*.identity")}

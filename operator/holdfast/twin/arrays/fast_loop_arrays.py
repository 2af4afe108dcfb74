"""The arrays of the fast loop: one record per request and per engine besides those of `state_arrays`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.twin.arrays.state_arrays import NOBODY, Record, Records, fields_of
from holdfast.twin.arrays.timers import Floats
from holdfast_engine.law.captured_graphs import CapturedGraphs
from holdfast_engine.law.steplaw import HEIGHT, WIDTH, rows_of
from holdfast_engine.objectives.rules import Limits, Overload, longest_wait_seconds

PLACE = np.dtype(
    [
        *fields_of(np.float64, "rank", "start_by"),
        *fields_of(np.int64, "left", "right", "late", "judged", "first_step", "old"),
    ]
)
"""A request: `rank` orders it within its lane, `left` and `right` are its children in the lane's heap (at the front,
`left` is the next one), after `start_by` it is late. `judged` ones are counted already. It had its first token after
`first_step` steps; `old` ones count on no steps to come."""

LOOP = np.dtype(
    [
        # The limits it got.
        *fields_of(np.float64, "ttft", "tpot", "e2e", "longest_wait", "most_queued"),
        *fields_of(np.int64, "adapts", "rejects", "most_active", "most_tokens", "stock_tokens"),
        *fields_of(np.int64, "whole_decodes", "whole_mixed"),
        # What follows from the step law.
        *fields_of(np.float64, "next_fit", "full_tps", "peak_tps", "pairs_per_prefill", "slowness"),
        *fields_of(np.int64, "active", "balanced"),
        # When a step ended last; the step planned last, how many have not ended, and how many had not then.
        *fields_of(np.float64, "updated", "last_pairs"),
        *fields_of(np.int64, "last_kv", "ran", "decoding", "free_sequences"),
        *fields_of(np.int64, "last_prefill", "last_decodes", "pending", "depth"),
        # What is expected of the next ones, once it has been asked for.
        *fields_of(np.int64, "foreseen", "next_prefill"),
        *fields_of(np.float64, "next_seconds"),
        # The pace.
        *fields_of(np.int64, "steps", "surest_steps", "starting", "paced", "ended"),
        *fields_of(np.float64, "last_step", "usual_seconds"),
        # Prompts of late.
        *fields_of(np.int64, "arrived_count", "started_count"),
        *fields_of(np.float64, "arrived_tokens", "started_tokens", "computed_tokens"),
        # The lanes: first of each, and what late requests have saved up.
        *fields_of(np.int64, "front", "fresh", "late", "fresh_tokens"),
        *fields_of(np.float64, "now", "credit"),
        # Requests in order of arrival: the newest, the next whose deadline passes, the oldest that may still wait.
        *fields_of(np.int64, "newest", "next_due", "oldest"),
    ]
)
"""An engine: times in seconds, the rest in tokens, sequences and steps; requests by number."""


def loops_of(asked: Sequence[Limits], stock: Sequence[SchedulerLimits], graphs: Sequence[CapturedGraphs]) -> Records:
    """An engine that has just started, for each kind that gets limits."""
    found = np.zeros(len(asked), LOOP)
    for number, (wanted, limits, captured) in enumerate(zip(asked, stock, graphs, strict=False)):
        _tell(found[number], wanted, limits)
        found[number]["whole_decodes"] = captured.whole_decodes
        found[number]["whole_mixed"] = captured.whole_mixed
    for name in ("next_fit", "last_step", "now"):
        found[name] = -math.inf
    for name in ("full_tps", "peak_tps", "arrived_tokens", "started_tokens", "computed_tokens"):
        found[name] = math.nan
    for name in ("front", "fresh", "late", "newest", "next_due", "oldest"):
        found[name] = NOBODY
    found["usual_seconds"] = math.inf
    return found


def _tell(loop: Record, asked: Limits, limits: SchedulerLimits) -> None:
    active = min(limits.max_num_seqs, limits.max_num_active_seqs or limits.max_num_seqs)
    tokens = limits.max_num_batched_tokens
    bounds = asked.objectives
    loop["ttft"], loop["tpot"], loop["e2e"] = bounds.ttft_seconds, bounds.tpot_seconds, bounds.e2e_seconds or math.inf
    loop["longest_wait"] = longest_wait_seconds(asked)
    loop["most_queued"] = math.nan if asked.max_queued_requests is None else asked.max_queued_requests
    loop["adapts"], loop["rejects"] = asked.adapt, asked.overload is Overload.REJECT
    loop["most_active"] = loop["active"] = loop["balanced"] = min(active, asked.active_sequences or active)
    loop["most_tokens"], loop["stock_tokens"] = min(tokens, asked.tokens_per_step or tokens), tokens
    loop["slowness"] = 1.0


def fits_of(told: Sequence[Limits], graphs: Sequence[CapturedGraphs]) -> Floats:
    """What the law is found from in an engine that has just started, for each kind: rows of `steplaw`."""
    pairs = zip(told, graphs, strict=False)
    rows = [rows_of(asked.prior, captured.assumed_edge_tokens) for asked, captured in pairs]
    return np.array(rows, float).reshape(len(told), HEIGHT, WIDTH)

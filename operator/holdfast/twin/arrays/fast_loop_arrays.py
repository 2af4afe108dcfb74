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
from holdfast_engine.objectives.rules import Limits, Overload, RequestClass, shares
from holdfast_engine.queue.order import LATE_SHARE

PLACE = np.dtype(
    [
        *fields_of(np.float64, "rank", "start_by"),
        *fields_of(np.int64, "left", "right", "turn", "first_step", "stale_after"),
        *fields_of(np.int32, "lane", "of_class", "judged", "old", "interrupted", "leaves"),
    ]
)
"""A request: `rank` orders it within its lane, then the `turn` at which it was placed there. `left` and `right` are its
children in the lane's heap (at the front, `left` is the next one), after `start_by` it is late. `judged` ones are
counted already. It had its first token after `first_step` steps; `old` ones count on no steps to come. Of batch,
`interrupted` ones left before their first token, and `leaves` says that one leaves before the next step; `stale_after`
is the next one with a token in flight."""

FRESH, BEHIND, BATCH = range(3)
"""Lanes: of requests that can be in time, of late ones, of batch."""

LANE = np.dtype(
    [
        *fields_of(np.float64, "share", "credit"),
        *fields_of(np.int64, "kind", "priority", "first", "count", "tokens", "known"),
    ]
)
"""Requests that wait behind all lanes before theirs: the `first` one, how many, and their prompt tokens. `share` of
what others take is saved up as `credit`; NaN for an equal part. A lane is `known` from its first request on until
another one becomes known while it is empty."""

CLASS = np.dtype(
    [
        *fields_of(np.float64, "ttft", "tpot", "e2e"),
        *fields_of(np.int64, "priority", "batch", "lane", "at_door"),
        # The pace.
        *fields_of(np.float64, "last_step", "usual_seconds"),
        *fields_of(np.int64, "known", "steps", "surest_steps", "paced", "ended"),
        # Requests in order of arrival: the newest, the next whose deadline passes, the oldest that may still wait.
        *fields_of(np.int64, "newest", "next_due", "oldest", "waiting"),
        *fields_of(np.float64, "good", "bad", "unfinished"),
        # The most that it may have of a minute's tokens, NaN for all, and what it had.
        *fields_of(np.float64, "most_share"),
        *fields_of(np.int64, "tokens_had"),
    ]
)
"""A class of an engine, the service's own first: bounds in seconds, its `lane`, the class that its requests have
`at_door`, the pace of its answers since it is `known`, how many of it wait in a lane other than of batch, and its
verdicts. Of batch, `unfinished` are in the engine."""

LOOP = np.dtype(
    [
        # The limits it got.
        *fields_of(np.float64, "tightest_ttft", "tightest_tpot", "longest_wait", "most_queued"),
        *fields_of(np.int64, "adapts", "rejects", "most_active", "most_tokens", "stock_tokens"),
        *fields_of(np.int64, "whole_decodes", "whole_mixed"),
        # What follows from the step law, and the TPOT of the class that bears least.
        *fields_of(np.float64, "next_fit", "full_tps", "peak_tps", "pairs_per_prefill", "slowness", "tpot"),
        *fields_of(np.int64, "active", "balanced"),
        # When a step ended last; the step planned last, how many have not ended, and how many had not then.
        *fields_of(np.float64, "updated", "last_pairs"),
        *fields_of(np.int64, "last_kv", "ran", "decoding", "free_sequences"),
        *fields_of(np.int64, "last_prefill", "last_decodes", "pending", "depth", "starting"),
        # What is expected of the next ones, once it has been asked for.
        *fields_of(np.int64, "foreseen", "next_prefill"),
        *fields_of(np.float64, "next_seconds"),
        # Prompts of late.
        *fields_of(np.int64, "arrived_count", "started_count"),
        *fields_of(np.float64, "arrived_tokens", "started_tokens", "computed_tokens"),
        # The first request of all, how many were placed in lanes, and the time of the order.
        *fields_of(np.int64, "front", "placed"),
        *fields_of(np.float64, "now"),
        # Batch: requests in the engine, how many may start, the first one that left with a token in flight, and whether
        # others lack memory.
        *fields_of(np.int64, "batch", "stale_batch", "lacks_memory"),
        *fields_of(np.float64, "batch_room"),
        # Whether a class has a share of the tokens at most, the newest second that is counted, and all tokens.
        *fields_of(np.int64, "has_max_shares", "share_second", "tokens_had"),
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
    for name in ("next_fit", "now"):
        found[name] = -math.inf
    for name in ("full_tps", "peak_tps", "arrived_tokens", "started_tokens", "computed_tokens"):
        found[name] = math.nan
    found["front"] = found["stale_batch"] = NOBODY
    found["batch_room"] = math.inf
    return found


def _tell(loop: Record, asked: Limits, limits: SchedulerLimits) -> None:
    active = min(limits.max_num_seqs, limits.max_num_active_seqs or limits.max_num_seqs)
    tokens = limits.max_num_batched_tokens
    loop["tightest_ttft"], loop["tightest_tpot"] = asked.tightest.ttft_seconds, asked.tightest.tpot_seconds
    loop["tpot"] = asked.tightest.tpot_seconds
    loop["longest_wait"] = asked.longest_wait_seconds
    loop["most_queued"] = math.nan if asked.max_queued_requests is None else asked.max_queued_requests
    loop["adapts"], loop["rejects"] = asked.adapt, asked.overload is Overload.REJECT
    loop["most_active"] = loop["active"] = loop["balanced"] = min(active, asked.active_sequences or active)
    loop["most_tokens"], loop["stock_tokens"] = min(tokens, asked.tokens_per_step or tokens), tokens
    loop["slowness"] = 1.0
    loop["has_max_shares"] = asked.has_max_shares


def lanes_of(asked: Limits) -> Records:
    """The lanes of an engine that has just started, in their order."""
    each = asked.by_name.values()
    fresh = sorted({one.priority for one in each if not one.is_batch}, reverse=True)
    batch = sorted({one.priority for one in each if one.is_batch}, reverse=True)
    found = np.zeros(len(fresh) + 1 + len(batch), LANE)
    found["kind"] = [FRESH] * len(fresh) + [BEHIND] + [BATCH] * len(batch)
    found["priority"] = [*fresh, 0, *batch]
    found["share"] = [*(shares(asked).get(priority, math.nan) for priority in fresh), LATE_SHARE, *(0.0 for _ in batch)]
    found["known"] = (found["kind"] == FRESH) & (found["priority"] == 0)
    found["first"] = NOBODY
    return found


def classes_of(asked: Limits) -> Records:
    """The classes of an engine that has just started, in the order of the limits."""
    found, lanes = np.zeros(1 + len(asked.classes), CLASS), lanes_of(asked)
    for number, each in enumerate(asked.by_name.values()):
        _declare(found[number], each, lanes)
        found[number]["at_door"] = number if asked.may_claim(each) else 0
    for name in ("newest", "next_due", "oldest"):
        found[name] = NOBODY
    found["last_step"], found["usual_seconds"] = -math.inf, math.inf
    found[0]["known"] = 1
    return found


def _declare(record: Record, declared: RequestClass, lanes: Records) -> None:
    bounds, kind = declared.objectives, BATCH if declared.is_batch else FRESH
    record["ttft"], record["tpot"] = bounds.ttft_seconds, bounds.tpot_seconds
    record["e2e"] = bounds.e2e_seconds or math.inf
    record["priority"], record["batch"] = declared.priority, declared.is_batch
    record["most_share"] = math.nan if declared.max_share is None else declared.max_share
    record["lane"] = np.flatnonzero((lanes["kind"] == kind) & (lanes["priority"] == declared.priority))[0]


def fits_of(told: Sequence[Limits], graphs: Sequence[CapturedGraphs]) -> Floats:
    """What the law is found from in an engine that has just started, for each kind: rows of `steplaw`."""
    pairs = zip(told, graphs, strict=False)
    rows = [rows_of(asked.prior, captured.assumed_edge_tokens) for asked, captured in pairs]
    return np.array(rows, float).reshape(len(told), HEIGHT, WIDTH)

"""The arrays that the compiled loop works on: one record per request and per engine."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from holdfast.twin.arrays.timers import Floats, Integers

Records = NDArray[Any]
Record = Any
"""One of them."""

NOBODY, ZERO = cast(int, np.int64(-1)), cast(int, np.int64(0))
"""No request or engine; and what counts start from. numba compiles a function once more for a literal that it gets."""

UNLIMITED = int(np.iinfo(np.int64).max)
NEVER = np.inf

COMING, WAITING, RUNNING, FINISHED, REJECTED, UNSERVED, LOST, ENTERING = range(8)
"""What a request is: still to come, in an engine, answered, refused by one, met no engine, lost with its engine, or on
its way through an API server."""

ROUND_ROBIN, RANDOM_PER_CONNECTION, LEAST_OUTSTANDING = range(3)


def fields_of(kind: type, *names: str) -> list[tuple[str, type]]:
    """Fields of one kind, for a record."""
    return [(name, kind) for name in names]


REQUEST = np.dtype(
    [
        *fields_of(np.int64, "prompt", "output", "generated", "computed", "blocks", "state", "in_flight", "emits"),
        *fields_of(np.float64, "at", "read_at", "enters_at", "began_at", "first_at", "last_at"),
        *fields_of(np.int64, "cached", "preemptions", "engine", "after", "connection", "tries"),
        *fields_of(np.float64, "draw", "tried_at"),
    ]
)
"""Times in seconds, NaN before they are known, the rest in tokens and blocks.

The API server reads a request at `read_at`, the engine has it at `enters_at` and its first token at `began_at`; its
client has the first and last token at `first_at` and `last_at`. Of the tokens `in_flight` the first comes from the step
with the number `emits`. `engine` is where a request went, `after` the one that waits behind it. `connection` and `draw`
(0..1) are what chance decides about its way. Refused requests come again: the last of `tries` was at `tried_at`, after
which servers measure; clients measure from the first one, `at`.
"""

LIMITS = ("active", "tokens", "threshold", "most_requests", "most_queued", "blocks")

COUNTS = (
    "finished",
    "rejected",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "preemptions",
    "ttft_count",
    "ttft_within",
    "ttft_sum",
    "tpot_count",
    "tpot_within",
    "tpot_sum",
    "e2e_count",
    "e2e_within",
    "prompt_sum",
    "output_sum",
)
"""What an engine counts from its start on, as its /metrics does; sums are of finished requests."""

EXACT = (
    "judged_arrived",
    "judged_good",
    "judged_bad_ttft",
    "judged_bad_tpot",
    "judged_bad_e2e",
    "judged_bad_error",
    "judged_withdrawn",
    "judged_good_tokens",
)
"""What the plugin counts of whole requests, 0 without it: counts of holdfast_engine by name."""

STEPS = ("steps", "step_prefill", "step_decodes", "step_kv", "step_pairs", "step_seconds")
"""What the plugin sums over an engine's steps, 0 without it, in the order of holdfast.domain.engine.StepSums."""

BATCH_SUMS = (
    "batch_started",
    "batch_done",
    "batch_prompt_tokens",
    "batch_output_tokens",
    "batch_started_prompt_tokens",
    "batch_cached_prompt_tokens",
)
"""What the plugin counts of batch requests, which are in COUNTS too, 0 without it."""

BATCH_NOW = ("batch_running", "batch_waiting")
"""How many batch requests ran before the last step, and how many wait."""

ENGINE = np.dtype(
    [
        *fields_of(np.float64, "due", "host_at", "gpu_at", "front_at", "enters_at"),
        *fields_of(np.int64, "ending", "launched", "ended", "stale", "first_entering", "last_entering"),
        *fields_of(np.int64, "running", "waiting", "first_waiting", "last_waiting"),
        *fields_of(np.int64, "queued_tokens", "outstanding_tokens", "free_blocks", "timer"),
        *fields_of(np.float64, "stretch"),
        *fields_of(np.int64, *LIMITS, "open", "born"),
        *fields_of(np.float64, "idle_at", "waiting_late", *COUNTS, *EXACT, *STEPS),
        *fields_of(np.float64, *BATCH_SUMS, *BATCH_NOW),
    ]
)
"""`due` is when a step ends and the next one begins, or when one begins only where the engine is not `ending`; infinite
for an idle one, since `idle_at`. Its thread, its GPU and its API server are free at `host_at`, `gpu_at` and `front_at`.

Steps are counted as they are `launched` and `ended`; what is between is in flight. `stale` requests were preempted with
a token in flight. The API server has read those from `first_entering` on; the engine has the first at `enters_at`.
`open` engines get requests; `born` counts the lives of a record, so that a connection knows a successor.
"""

HANG_SECONDS = 1e5
"""No step takes so long."""


def hang(engines: Records, now: float) -> list[bool]:
    """Of each engine, whether the step that it is in never ends."""
    due = engines["due"]
    found: list[bool] = ((due != NEVER) & (due - now > HANG_SECONDS)).tolist()
    return found


BOOK = np.dtype(
    [
        *fields_of(np.int64, "next_request", "finished", "turn", "router"),
        *fields_of(np.float64, "close_share", "keep_seconds", "ttft", "tpot", "e2e"),
    ]
)
"""One record: how far the loop is, how requests find an engine, and the objectives in seconds."""

PLAN = np.dtype(fields_of(np.int64, "chunks", "going_on", "decodes", "kv_tokens", "alike"))
"""One record: the chunks of the step just planned, those of requests that ran before it, and its decodes. After it,
so many steps do not yet end anybody's answer: they are `alike`."""

MOST_IN_FLIGHT = 2

FLIGHT = np.dtype(
    [
        *fields_of(np.float64, "done_at", "begun", "pairs"),
        *fields_of(np.int64, "sequences", "pure", "computes", "alone", "prefill", "decodes", "kv"),
    ]
)
"""A step in flight: when the GPU is done with it, for how many sequences, and whether it is one token for everybody.

The rest is the plugin's: since when it counts, and the terms of the step law. A step's number modulo MOST_IN_FLIGHT is
its place among those of its engine."""

HOST = np.dtype(
    [
        *fields_of(np.int64, "depth", "edge"),
        *fields_of(np.float64, "decodes", "prompts", "beyond", "schedule", "update", "sequence", "lead", "tail"),
        *fields_of(np.float64, "request", "prompt", "token", "transit", "reply"),
    ]
)
"""One kind of engine's host, in seconds: to launch a step of decodes, one with prompts, and one beyond the edge in
tokens; then as in enginemodel.host.Host and FrontEnd."""

CONNECTION = np.dtype(fields_of(np.int64, "engine", "born", "request"))
"""Whom a connection leads to, and the last request on it."""


RETRY = np.dtype([*fields_of(np.float64, "wait"), *fields_of(np.int64, "first", "last")])
"""One further try of refused requests: after how many seconds, and the first and last that wait for it, in order."""


class World(NamedTuple):
    """Everything the loop works on; `running` has a row of requests per engine, `finished` the order of their ends.
    `retries` are the further tries of refused requests. `plan` and `chunks` are of the step just planned, `begun` those
    who got their first token from the one just ended.

    `flights` are the steps in flight by engine, `hosts` belong to the kinds of engines as the timers do."""

    requests: Records
    engines: Records
    running: Integers
    connections: Records
    retries: Records
    book: Records
    finished: Integers
    plan: Records
    chunks: Integers
    begun: Integers
    points: Floats
    layout: Integers
    hosts: Records
    flights: Records


class Plugin(NamedTuple):
    """What the plugin adds to it (`fast_loop_arrays`): a record per request and per engine, those of its lanes and its
    classes, what laws are found from, how many steps the last answers of each class took, and the tokens that each
    had in every second of the last minute.

    Engines without the plugin have None instead: numba compiles the loop for each of the two, and for None it leaves
    out every branch that `plugin is not None` begins, and what is called there.
    """

    places: Records
    loops: Records
    lanes: Records
    classes: Records
    fits: Floats
    answers: Integers
    had: Integers

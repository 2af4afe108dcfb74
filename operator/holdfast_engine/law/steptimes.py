"""Which time belongs to which engine step, where vLLM launches steps ahead.

With asynchronous scheduling the engine's thread launches step i + 1 before it takes the results of step i. So the
interval between two results is not the time of the step that ended: launching kernels one by one keeps the thread
busy for 20 to 33 ms, and the results of a short step wait that long. What is certain:

- A step that is replayed from one CUDA graph is launched in about a millisecond. When such a step is the one launched
  ahead, or none is, the thread waited for the GPU: the step whose results came then has just ended.
- Between two such moments lies the time of the steps in between: their `window`.
- A thread that did not wait was busy with the launch: that interval is the launch's own time.

Pure functions over a row of numbers, compiled by the simulator as they stand: a `Row` is a list here, an array there.
"""

from __future__ import annotations

import math
from typing import Any

Row = Any
"""Numbers by their place, which can be set."""

DECODES, MIXED, LARGE = range(3)
"""Kinds of steps by their launch: decodes alone, with prompt tokens, and more tokens than any captured graph."""
KINDS = 3

ENDED_AT, CAME_AT, STEPS, LONGEST_LAUNCH, LAST_END, OPEN, UNCERTAIN, LAUNCHED = range(8)
WINDOW = 8
"""Where the window stands: its steps' terms (one, prefill, decodes, kv, pairs), and its seconds."""
WINDOW_SECONDS = WINDOW + 5
LARGEST_PREFILL = WINDOW + 6
LAUNCHES = WINDOW + 7
"""Where the seconds of a launch stand, by kind; 0 while unknown."""
SEEN = LAUNCHES + KINDS
"""Where it stands of how many launches they come, by kind."""
DECODES_BEFORE = SEEN + KINDS
"""Seconds of the step before, where it was decodes alone, in one CUDA graph and with no other in flight; else 0."""
PLACES = DECODES_BEFORE + 1

# A window with more steps than this holds chains of prompts, in which the GPU may have waited for the launches.
MOST_STEPS = 4
# Without a law, so many steps are a window wherever it ends.
LAWLESS_STEPS = 16
# Results that came so soon after a launch were there before: the GPU waited for the launch, not the thread for the GPU.
SHORTEST_WAIT = 0.3
# A thread was busy with a launch, and not waiting, where the GPU needed less than this share of the interval.
BUSY_SHARE = 0.5
# A thread that took so many times a launch was waiting for the GPU.
WAITING_FACTOR = 2.5
# One more launch moves the typical one by this share, up or down: a median that follows a slower host in seconds.
LAUNCH_RATE = 0.02
LEAST_LAUNCHES = 8
# A lone step that took less than so many times its launch does not tell what the GPU needed of it.
HIDDEN_FACTOR = 1.2
SMALL_PREFILL = 0.128
"""Thousands of prompt tokens that a GPU computes in a few milliseconds."""
# So many steps without a certain end are taken for all steps. Then a window counts that took so many times its
# launches.
LONG_UNCERTAIN = 64
GPU_BOUND = 2.0


def kind_of(prefill: float, decodes: float, edge_tokens: float) -> int:
    """How a step is launched; `edge_tokens` are the most for which a CUDA graph was captured."""
    if prefill + decodes > edge_tokens:
        return LARGE
    return MIXED if prefill > 0.0 else DECODES


def begin(row: Row, now: float) -> None:
    """An idle engine begins a step: what was before it says nothing of its time."""
    row[ENDED_AT], row[CAME_AT] = now, now
    row[LAST_END] = math.inf  # Two launches lie before the first results: neither is measured.
    row[OPEN], row[DECODES_BEFORE] = 0.0, 0.0


def came(
    row: Row,
    terms: Row,
    gpu_seconds: float,
    ahead: int,
    replayed: bool,
    launched_at: float,
    now: float,
    lone: int = -1,
) -> bool:
    """Results of a step came; returns whether they close a window, which then stands in `row` until the next call.

    `terms` are those of the step (one, prefill, decodes, kv, pairs); `gpu_seconds` is what the law says of it, infinite
    without a law. `ahead` is the kind of the step launched last, -1 where none is under way; `replayed` whether one
    CUDA graph holds that one; `launched_at` when its launch began. `lone` is the kind of the step that ended, where it
    was launched kernel by kernel or layer by layer while no other was in flight, else -1.
    """
    _add(row, terms)
    thread, waited = now - launched_at, ahead < 0 or replayed
    if not waited:
        waited = row[SEEN + ahead] >= LEAST_LAUNCHES and thread > WAITING_FACTOR * row[LAUNCHES + ahead]
        if not waited:
            row[LONGEST_LAUNCH] = max(row[LONGEST_LAUNCH], thread)
    seconds, lawless = now - row[CAME_AT], gpu_seconds == math.inf
    if waited:
        row[LAST_END] = now
    elif _is_busy(row, gpu_seconds, now):
        _learn(row, ahead, seconds)
    if lone >= 0:
        _take_lone(row, terms[1], gpu_seconds, lone, ahead, seconds)
    row[DECODES_BEFORE] = seconds if lone < 0 and ahead < 0 and terms[1] == 0.0 else 0.0
    row[CAME_AT] = now
    if ahead >= 0:
        row[LAUNCHED] += row[LAUNCHES + ahead]
    return _is_end(row, waited, lawless, now) and _close(row, lawless, ahead, thread, now)


def _take_lone(row: Row, prefill: float, gpu_seconds: float, kind: int, ahead: int, seconds: float) -> None:
    """A step that nothing was in flight with: its launch is part of its time, or all of it.

    Then its window does not tell what the GPU needed. Nor does that of the first prompts, before a launch is known: an
    engine that schedules ahead soon shows better ones. A launch shows where a few prompt tokens more than double the
    time of the same decodes just before; the law is not asked, because launches may be what it was found from.
    """
    if 0.0 < row[DECODES_BEFORE] < BUSY_SHARE * seconds and prefill <= SMALL_PREFILL:
        _learn(row, kind, seconds)
    if row[SEEN + kind] > 0.0:
        hidden = seconds < HIDDEN_FACTOR * row[LAUNCHES + kind]
    else:
        fast = gpu_seconds == math.inf or gpu_seconds < BUSY_SHARE * seconds
        hidden = fast and ahead >= 0 and prefill > 0.0
    if hidden:
        row[LONGEST_LAUNCH] = math.inf


def _add(row: Row, terms: Row) -> None:
    """Add a step to the window, or begin a new one with it."""
    if row[OPEN] == 0.0:
        row[OPEN], row[STEPS], row[LONGEST_LAUNCH], row[LAUNCHED] = 1.0, 1.0, 0.0, 0.0
        row[LARGEST_PREFILL] = terms[1]
        for place in range(5):  # a slice would allocate where this is compiled
            row[WINDOW + place] = terms[place]
        return
    row[STEPS] += 1.0
    row[LARGEST_PREFILL] = max(row[LARGEST_PREFILL], terms[1])
    for place in range(5):
        row[WINDOW + place] += terms[place]


def _is_end(row: Row, waited: bool, lawless: bool, now: float) -> bool:
    """Whether the window ends here: at an end that is certain, or after some steps where for long none was.

    An engine that always computes prompts may have no certain end. If its windows take far longer than their launches,
    the thread waits for the GPU in any case. Without a law long windows will do: their ends weigh little.
    """
    if waited:
        row[UNCERTAIN] = 0.0
        return True
    row[UNCERTAIN] += 1.0
    if lawless:
        return bool(row[STEPS] >= LAWLESS_STEPS)
    is_long = row[UNCERTAIN] > LONG_UNCERTAIN and row[STEPS] >= MOST_STEPS
    return bool(is_long and now - row[ENDED_AT] > GPU_BOUND * row[LAUNCHED])


def _is_busy(row: Row, gpu_seconds: float, now: float) -> bool:
    """Follow when the GPU ended the step; returns whether the thread was busy until now, and not waiting for that."""
    end = max(row[LAST_END] + gpu_seconds, row[CAME_AT])
    busy = bool(end - row[CAME_AT] < BUSY_SHARE * (now - row[CAME_AT]))
    row[LAST_END] = end if busy else now
    return busy


def _learn(row: Row, kind: int, seconds: float) -> None:
    """Count one more launch of a kind; of the first ones, which may be slow for their own reasons, the shortest."""
    place, seen = LAUNCHES + kind, row[SEEN + kind]
    if seen < LEAST_LAUNCHES:
        row[place] = min(row[place], seconds) if seen > 0.0 else seconds
    elif seconds > row[place]:
        row[place] *= 1.0 + LAUNCH_RATE
    else:
        row[place] *= 1.0 - LAUNCH_RATE
    row[SEEN + kind] = seen + 1.0


def _close(row: Row, lawless: bool, ahead: int, thread: float, now: float) -> bool:
    """End the window; returns whether its time is that of its steps."""
    row[WINDOW_SECONDS] = now - row[ENDED_AT]
    row[ENDED_AT], row[OPEN] = now, 0.0
    if not 0.0 < row[WINDOW_SECONDS] < math.inf:
        return False
    longest = row[LONGEST_LAUNCH]
    waited = thread >= SHORTEST_WAIT * longest or (ahead < 0 and longest < math.inf)
    return bool(waited and (lawless or row[STEPS] <= MOST_STEPS))

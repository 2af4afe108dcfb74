"""vLLM's scheduler loop for many engines at once, on arrays: `enginemodel.scheduler.Scheduler`, step for step.

That class says what a step is and stays the one to read and to change. Here is the same loop without an object per
request, so that millions of requests take seconds; the tests hold the two to the same times, to the last bit. What the
plugin adds is in `fastloop`.
"""

from __future__ import annotations

from holdfast.enginemodel.scheduler import BLOCK_TOKENS
from holdfast.twin import fast_loop, queue_lanes
from holdfast.twin.compiled import compiled, inner
from holdfast.twin.state_arrays import (
    FINISHED,
    LEAST_OUTSTANDING,
    NEVER,
    NOBODY,
    REJECTED,
    ROUND_ROBIN,
    RUNNING,
    UNLIMITED,
    UNSERVED,
    WAITING,
    Record,
    Records,
    World,
)
from holdfast.twin.timers import step_seconds


@compiled
def run_until(world: World, until: float) -> None:
    """Bring in every request that comes by then, and end every step that ends before."""
    book, requests = world.book[0], world.requests
    number = book["next_request"]
    while number < len(requests) and requests[number]["at"] <= until:
        if book["router"] == LEAST_OUTSTANDING:
            _advance_all(world, requests[number]["at"])
        engine = route(world, number)
        if engine == NOBODY:
            requests[number]["state"] = UNSERVED
        else:
            _advance(world, engine, requests[number]["at"])
            _arrive(world, number, engine)
        number += 1
    book["next_request"] = number
    _advance_all(world, until)


@inner
def _advance_all(world: World, until: float) -> None:
    for number in range(len(world.engines)):
        if world.engines[number]["due"] < until:
            _advance(world, number, until)


@inner
def _advance(world: World, number: int, until: float) -> None:
    """End the steps that end before a time: a step that ends at that very moment does not see who comes then."""
    engine = world.engines[number]
    while engine["due"] < until:
        now = engine["due"]
        if engine["busy"]:
            _end_step(world, number, now)
        if engine["running"] + engine["waiting"] > 0:
            engine["due"] = now + engine["stretch"] * _begin_step(world, number, now)
            engine["busy"] = 1
            if engine["waiting"] == 0 and not world.book[0]["plugin"]:
                _decode_on(world, number, until)
        else:
            engine["due"] = NEVER
            engine["busy"] = 0
            engine["idle_at"] = now


@compiled
def route(world: World, number: int) -> int:
    """The engine that gets a request, NOBODY where none is open."""
    engines, book = world.engines, world.book[0]
    opened = 0
    for engine in engines:
        opened += engine["open"]
    if opened == 0:
        return NOBODY
    if book["router"] == LEAST_OUTSTANDING:
        return _least_outstanding(engines)
    if book["router"] == ROUND_ROBIN:
        book["turn"] += 1
        return _nth_open(engines, book["turn"] % opened)
    request, share = world.requests[number], book["close_share"]
    kept, draw = world.connections[request["connection"]], request["draw"]
    idle, kept["request"] = _idle(world, kept["request"], request["at"]), number
    if kept["engine"] != NOBODY and draw >= share and idle <= book["keep_seconds"]:
        engine = engines[kept["engine"]]
        if engine["open"] and engine["born"] == kept["born"]:
            return int(kept["engine"])
    # What the first question leaves of the draw answers the second.
    left = draw / share if draw < share else (draw - share) / (1.0 - share)
    kept["engine"] = _nth_open(engines, min(int(left * opened), opened - 1))
    kept["born"] = engines[kept["engine"]]["born"]
    return int(kept["engine"])


@inner
def _idle(world: World, last: int, now: float) -> float:
    """Seconds since the end of the last answer on a connection."""
    if last == NOBODY or world.requests[last]["state"] != FINISHED:
        return 0.0
    return float(now - world.requests[last]["last_at"])


@inner
def _nth_open(engines: Records, wanted: int) -> int:
    for number in range(len(engines)):
        if engines[number]["open"]:
            if wanted == 0:
                return number
            wanted -= 1
    return NOBODY


@inner
def _least_outstanding(engines: Records) -> int:
    best, least = NOBODY, UNLIMITED
    for number in range(len(engines)):
        if engines[number]["open"] and engines[number]["outstanding_tokens"] < least:
            best, least = number, engines[number]["outstanding_tokens"]
    return best


@inner
def _arrive(world: World, number: int, where: int) -> None:
    """Queue a request, or refuse it as the API server does: at once."""
    request, engine = world.requests[number], world.engines[where]
    request["engine"] = where
    if world.book[0]["plugin"] and fast_loop.sends_away(world.loops[where], engine, world.fits[where]):
        # The headers of a stream go out before it waits: its client comes over another connection next time.
        world.connections[request["connection"]]["engine"] = NOBODY
    if _refuses(world, where, number):
        request["state"] = REJECTED
        engine["rejected"] += 1
        return
    request["state"] = WAITING
    engine["queued_tokens"] += request["prompt"]
    engine["outstanding_tokens"] += request["prompt"]
    if world.book[0]["plugin"]:
        fast_loop.arrive(world, where, number)
    else:
        _append(world, where, number)
    engine["waiting"] += 1
    if engine["due"] == NEVER:
        engine["due"] = request["at"]


@inner
def _refuses(world: World, where: int, number: int) -> bool:
    """Whether a cap, the plugin or the size of the KV cache keeps a request out."""
    engine, request = world.engines[where], world.requests[number]
    if engine["running"] + engine["waiting"] >= engine["most_requests"]:
        return True
    if engine["queued_tokens"] >= engine["most_queued"]:
        return True
    if world.book[0]["plugin"] and fast_loop.refuses(world.loops[where], engine, world.fits[where], request["prompt"]):
        return True
    return bool(blocks_of(request["prompt"] + request["output"]) > engine["blocks"])


@inner
def _append(world: World, where: int, number: int) -> None:
    """Let a request wait behind all others."""
    engine = world.engines[where]
    if engine["waiting"] == 0:
        engine["first_waiting"] = number
    else:
        world.requests[engine["last_waiting"]]["after"] = number
    engine["last_waiting"] = number


@inner
def _begin_step(world: World, where: int, now: float) -> float:
    """Begin a step with what the plugin has to do with it; returns the seconds it takes."""
    loop, engine, plugin = world.loops[where], world.engines[where], world.book[0]["plugin"]
    if plugin:
        row = world.running[where, : engine["running"]]
        fast_loop.before_step(loop, engine, world.fits[where], row, world.places, world.requests, now)
    seconds = _begin(world, where)
    if plugin:
        fast_loop.scheduled(loop, engine, world.fits[where], world.chunks, world.plan[0], now)
    return seconds


@inner
def _end_step(world: World, where: int, now: float) -> None:
    """End a step with what the plugin has to do with it."""
    loop, engine, book = world.loops[where], world.engines[where], world.book[0]
    if book["plugin"]:
        fast_loop.step_ended(loop, engine, world.fits[where], now)
    finished = int(book["finished"])
    began = _complete(world, where, now)
    if book["plugin"]:
        fast_loop.answers_began(loop, world.places, world.begun[:began])
        ended = world.finished[finished : book["finished"]]
        fast_loop.answers_ended(loop, engine, world.answers[where], world.places, world.requests, ended, now)
        fast_loop.updated(loop, engine, world.fits[where], world.places, world.requests, now)


@inner
def _begin(world: World, where: int) -> float:
    """Plan a step and take its blocks, as `Scheduler.step`; returns the seconds it takes."""
    engine, row, chunks, plan = world.engines[where], world.running[where], world.chunks, world.plan[0]
    budget, threshold = engine["tokens"], engine["threshold"]
    count = decodes = kv_tokens = preempted = position = 0
    alike = UNLIMITED
    while position < engine["running"] and budget > 0:
        number = row[position]
        request = world.requests[number]
        computed = request["computed"]
        tokens = min(request["prompt"] + request["generated"] - computed, threshold, budget)
        wanted = blocks_of(computed + tokens) - request["blocks"]
        victim = NOBODY
        while wanted > engine["free_blocks"] and victim != number:
            victim = _preempt_last(world, where)
            preempted += 1
        if victim == number:
            break
        if wanted > 0:
            request["blocks"] += wanted
            engine["free_blocks"] -= wanted
        if tokens == 1 and request["generated"] > 0 and computed >= request["prompt"]:
            decodes += 1
            kv_tokens += computed + 1
        else:
            chunks[count, 0], chunks[count, 1] = tokens, computed
            count += 1
        alike = min(alike, request["output"] - request["generated"] - 1)
        request["computed"] = computed + tokens
        budget -= tokens
        position += 1
    plan["going_on"], plan["decodes"], plan["kv_tokens"], plan["alike"] = count, decodes, kv_tokens, alike
    if preempted == 0:
        count = _start_waiting(world, where, budget, count)
    plan["chunks"] = count
    engine["preemptions"] += preempted
    mean_kv = kv_tokens / decodes if decodes else 0.0
    return step_seconds(world.points, world.layout[engine["timer"]], chunks, count, decodes, mean_kv)


@inner
def _decode_on(world: World, where: int, until: float) -> None:
    """Where nobody waits: end the step just begun, and begin and end those that follow and are alike, all but the last.

    They are alike while all decode, no answer ends and blocks are left for everybody. Times add up as step by step.
    """
    engine, timer = world.engines[where], world.layout[world.engines[where]["timer"]]
    running, kv_tokens = engine["running"], world.plan[0]["kv_tokens"]
    most, taken = _steps_alike(engine, world.plan[0]), 0
    while taken < most and engine["due"] < until:
        kv_tokens += running
        seconds = step_seconds(world.points, timer, world.chunks, 0, running, kv_tokens / running)
        engine["due"] += engine["stretch"] * seconds
        taken += 1
    if taken > 0:
        _decoded(world, where, taken)


@inner
def _steps_alike(engine: Record, plan: Record) -> int:
    """Steps that may follow the one just planned with nothing but one token more for each sequence."""
    running = engine["running"]
    # Where a chunk has room for a single token, what looks like a decode may be a part of a prompt.
    if plan["chunks"] > 0 or plan["decodes"] < running or engine["threshold"] == 1 or engine["tokens"] <= running:
        return 0
    # Wherever in their last blocks they are, so many tokens of each fit into what is free.
    fitting = engine["free_blocks"] // running * BLOCK_TOKENS
    return int(min(plan["alike"], fitting))


@inner
def _decoded(world: World, where: int, steps: int) -> None:
    """Give every running sequence a token for each of these steps, and the blocks that it takes."""
    engine, row = world.engines[where], world.running[where]
    for position in range(engine["running"]):
        request = world.requests[row[position]]
        request["generated"] += steps
        request["computed"] += steps
        wanted = blocks_of(request["computed"]) - request["blocks"]
        request["blocks"] += wanted
        engine["free_blocks"] -= wanted
    engine["output_tokens"] += steps * engine["running"]


@inner
def _start_waiting(world: World, where: int, budget: int, count: int) -> int:
    """First chunks of waiting requests until one does not fit; returns how many chunks the step then has."""
    engine, chunks = world.engines[where], world.chunks
    while engine["waiting"] > 0 and budget > 0:
        number = _admit_head(world, where)
        if number == NOBODY:
            break
        request = world.requests[number]
        computed = request["computed"]
        tokens = min(request["prompt"] + request["generated"] - computed, engine["threshold"], budget)
        request["blocks"] = blocks_of(computed + tokens)
        engine["free_blocks"] -= request["blocks"]
        chunks[count, 0], chunks[count, 1] = tokens, computed
        count += 1
        request["computed"] = computed + tokens
        budget -= tokens
    return count


@inner
def _preempt_last(world: World, where: int) -> int:
    """Send the youngest running request back to the head of the queue, without its KV cache."""
    engine = world.engines[where]
    engine["running"] -= 1
    number = int(world.running[where, engine["running"]])
    request = world.requests[number]
    engine["free_blocks"] += request["blocks"]
    request["blocks"] = 0
    request["computed"] = 0
    request["cached"] = 0
    request["preemptions"] += 1
    request["state"] = WAITING
    if world.book[0]["plugin"]:
        queue_lanes.put_first(world.loops[where], world.places[number], number)
    else:
        _prepend(world, where, number)
    engine["waiting"] += 1
    return number


@inner
def _prepend(world: World, where: int, number: int) -> None:
    """Let a request wait before all others."""
    engine = world.engines[where]
    world.requests[number]["after"] = engine["first_waiting"]
    if engine["waiting"] == 0:
        engine["last_waiting"] = number
    engine["first_waiting"] = number


@inner
def _admit_head(world: World, where: int) -> int:
    """Start the first waiting request if a slot and blocks for all its tokens are free, else NOBODY."""
    engine = world.engines[where]
    if engine["running"] >= engine["active"]:
        return NOBODY
    plugin = world.book[0]["plugin"]
    number = int(engine["first_waiting"])
    if plugin:
        number = queue_lanes.head(world.loops[where], engine, world.places, world.requests)
    request = world.requests[number]
    if blocks_of(request["prompt"] + request["generated"]) > engine["free_blocks"]:
        return NOBODY
    if plugin:
        queue_lanes.take(world.loops[where], engine, world.places, number, request["prompt"])
    else:
        engine["first_waiting"] = request["after"]
    engine["waiting"] -= 1
    world.running[where, engine["running"]] = number
    engine["running"] += 1
    request["state"] = RUNNING
    cached = max(0, min(request["cached"], request["prompt"] - 1)) // BLOCK_TOKENS * BLOCK_TOKENS
    request["computed"] = cached
    if request["preemptions"] == 0:
        engine["cached_tokens"] += cached
        if plugin:
            fast_loop.admitted(world.loops[where], request)
    return number


@inner
def _complete(world: World, where: int, now: float) -> int:
    """Apply a step that ended, as `Scheduler.complete`: whoever has all tokens computed gets another one.

    Returns how many got their first one; `world.begun` holds them.
    """
    engine, row = world.engines[where], world.running[where]
    kept = emitted = began = 0
    for position in range(engine["running"]):
        number = row[position]
        request = world.requests[number]
        if request["computed"] == request["prompt"] + request["generated"]:
            emitted += 1
            if request["generated"] == 0:
                start_answer(world, where, number, now)
                world.begun[began] = number
                began += 1
            request["generated"] += 1
            if request["generated"] >= request["output"]:
                finish(world, where, number, now)
                continue
        row[kept] = number
        kept += 1
    engine["output_tokens"] += emitted
    engine["running"] = kept
    return began


@compiled
def start_answer(world: World, where: int, number: int, now: float) -> None:
    """Count a first token."""
    request, engine = world.requests[number], world.engines[where]
    request["first_at"] = now
    engine["queued_tokens"] -= request["prompt"]
    engine["prompt_tokens"] += request["prompt"]
    engine["ttft_count"] += 1
    engine["ttft_within"] += now - request["at"] <= world.book[0]["ttft"]


@compiled
def finish(world: World, where: int, number: int, now: float) -> None:
    """Free what a request held, and count it."""
    request, engine, book = world.requests[number], world.engines[where], world.book[0]
    request["last_at"] = now
    request["state"] = FINISHED
    engine["free_blocks"] += request["blocks"]
    request["blocks"] = 0
    engine["outstanding_tokens"] -= request["prompt"]
    gaps = request["generated"] - 1
    tpot = (now - request["first_at"]) / gaps if gaps else 0.0
    engine["finished"] += 1
    engine["prompt_sum"] += request["prompt"]
    engine["output_sum"] += request["generated"]
    engine["tpot_count"] += 1
    engine["tpot_within"] += tpot <= book["tpot"]
    engine["tpot_sum"] += tpot
    engine["e2e_count"] += 1
    engine["e2e_within"] += now - request["at"] <= book["e2e"]
    world.finished[book["finished"]] = number
    book["finished"] += 1


@inner
def blocks_of(tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // BLOCK_TOKENS)

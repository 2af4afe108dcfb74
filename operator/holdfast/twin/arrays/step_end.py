"""What a step that ended brings, on arrays: `enginemodel.scheduler.Scheduler.complete`, in its order."""

from __future__ import annotations

from holdfast.twin.arrays import queue_lanes
from holdfast.twin.arrays.compiled import compiled, inner
from holdfast.twin.arrays.state_arrays import FINISHED, NOBODY, ZERO, Plugin, World


@inner
def complete(world: World, plugin: Plugin | None, where: int, now: float) -> int:
    """Apply a step that ended, as `Scheduler.complete`: who gets a token from it gets it, in the order of the step.

    Returns how many got their first one; `world.begun` holds them.
    """
    engine, row = world.engines[where], world.running[where]
    host = world.hosts[engine["timer"]]
    written_from = max(now, engine["front_at"])
    kept = emitted = began = ZERO
    for position in range(engine["running"]):
        number = row[position]
        request = world.requests[number]
        if request["in_flight"] > 0 and request["emits"] == engine["ended"]:
            emitted += 1
            seen_at = written_from + host["token"] * emitted + host["reply"]
            if request["generated"] == 0:
                world.begun[began] = number
                began += 1
            if _emit(world, where, number, now, seen_at):
                continue
        row[kept] = number
        kept += 1
    engine["running"] = kept
    if engine["stale"] > 0:
        emitted, began = _emit_stale(world, plugin, where, now, emitted, began, written_from)
    if plugin is not None:
        emitted, began = _emit_stale_batch(world, plugin, where, now, emitted, began, written_from)
    engine["front_at"] = written_from + host["token"] * emitted
    engine["output_tokens"] += emitted
    return began


@inner
def _emit(world: World, where: int, number: int, now: float, seen_at: float) -> bool:
    """Give a request a token; whether it was the last one."""
    request = world.requests[number]
    if request["generated"] == 0:
        start_answer(world, where, number, now, seen_at)
    request["generated"] += 1
    request["in_flight"] -= 1
    request["emits"] += 1
    if request["generated"] < request["output"]:
        return False
    finish(world, where, number, seen_at)
    return True


@inner
def _emit_stale(
    world: World, plugin: Plugin | None, where: int, now: float, emitted: int, began: int, written_from: float
) -> tuple[int, int]:
    """Give those who were preempted since the step was launched the token that they have from it.

    They stand before all others in the queue. Returns how many tokens, and first ones, the step then gave.
    """
    engine, host = world.engines[where], world.hosts[world.engines[where]["timer"]]
    before, number = NOBODY, int(engine["first_waiting"] if plugin is None else plugin.loops[where]["front"])
    for _ in range(engine["stale"]):
        request = world.requests[number]
        following = int(request["after"] if plugin is None else plugin.places[number]["left"])
        gone = False
        if request["in_flight"] > 0:
            emitted += 1
            if request["generated"] == 0:
                world.begun[began] = number
                began += 1
            gone = _emit(world, where, number, now, written_from + host["token"] * emitted + host["reply"])
        if gone:
            _leave_queue(world, plugin, where, before, number, following)
        else:
            before = number
        number = following
    engine["stale"] = 0
    return emitted, began


@inner
def _emit_stale_batch(
    world: World, plugin: Plugin, where: int, now: float, emitted: int, began: int, written_from: float
) -> tuple[int, int]:
    """The same for batch, which waits behind all others."""
    engine, loop, host = world.engines[where], plugin.loops[where], world.hosts[world.engines[where]["timer"]]
    number = int(loop["stale_batch"])
    while number != NOBODY:
        request, place = world.requests[number], plugin.places[number]
        if request["in_flight"] > 0:
            emitted += 1
            if request["generated"] == 0:
                world.begun[began] = number
                began += 1
            if _emit(world, where, number, now, written_from + host["token"] * emitted + host["reply"]):
                engine["waiting"] -= 1
                queue_lanes.leave(engine, plugin.lanes[where], plugin.classes[where], place, request["prompt"])
        number = int(place["stale_after"])
    loop["stale_batch"] = NOBODY
    return emitted, began


@inner
def _leave_queue(world: World, plugin: Plugin | None, where: int, before: int, number: int, following: int) -> None:
    """Take a request out of the queue that was preempted, and finished all the same."""
    engine = world.engines[where]
    engine["waiting"] -= 1
    if plugin is not None:
        if before == NOBODY:
            plugin.loops[where]["front"] = following
        else:
            plugin.places[before]["left"] = following
        return
    if before == NOBODY:
        engine["first_waiting"] = following
    else:
        world.requests[before]["after"] = following
    if engine["last_waiting"] == number:
        engine["last_waiting"] = before


@compiled
def start_answer(world: World, where: int, number: int, now: float, seen_at: float) -> None:
    """Count a first token, which the client sees later than the engine has it."""
    request, engine = world.requests[number], world.engines[where]
    request["began_at"], request["first_at"] = now, seen_at
    engine["queued_tokens"] -= request["prompt"]
    engine["prompt_tokens"] += request["prompt"]
    engine["ttft_count"] += 1
    engine["ttft_sum"] += seen_at - request["tried_at"]
    engine["ttft_within"] += seen_at - request["tried_at"] <= world.book[0]["ttft"]


@compiled
def finish(world: World, where: int, number: int, seen_at: float) -> None:
    """Free what a request held, and count it as its client sees it."""
    request, engine, book = world.requests[number], world.engines[where], world.book[0]
    request["last_at"] = seen_at
    request["state"] = FINISHED
    engine["free_blocks"] += request["blocks"]
    request["blocks"] = 0
    engine["outstanding_tokens"] -= request["prompt"]
    gaps = request["generated"] - 1
    tpot = (seen_at - request["first_at"]) / gaps if gaps else 0.0
    engine["finished"] += 1
    engine["prompt_sum"] += request["prompt"]
    engine["output_sum"] += request["generated"]
    engine["tpot_count"] += 1
    engine["tpot_within"] += tpot <= book["tpot"]
    engine["tpot_sum"] += tpot
    engine["e2e_count"] += 1
    engine["e2e_within"] += seen_at - request["tried_at"] <= book["e2e"]
    world.finished[book["finished"]] = number
    book["finished"] += 1

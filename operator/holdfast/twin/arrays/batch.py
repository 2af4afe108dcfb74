"""Which batch requests leave before a step, on arrays: `FastLoop.give_way` and what it asks of the queue."""

from __future__ import annotations

from holdfast.twin.arrays import fast_loop, queue_lanes
from holdfast.twin.arrays.compiled import inner
from holdfast.twin.arrays.state_arrays import NOBODY, Plugin, World
from holdfast.twin.arrays.step_plan import put_back
from holdfast_engine.queue import batch


@inner
def give_way(world: World, plugin: Plugin, where: int) -> None:
    """Preempt batch where other requests cannot start, put the rest of it last, and say how much of it may start."""
    loop, engine = plugin.loops[where], world.engines[where]
    loop["stale_batch"] = NOBODY
    if loop["batch"] == 0:
        return
    running = int(engine["running"])
    first = _put_last(world, plugin, where)
    urgent = int(engine["waiting"] - engine["batch_waiting"])
    leaving = _choose(world, plugin, where, first, urgent) if urgent > 0 and first < running else 0
    engine["batch_running"] = float(running - first - leaving)
    kv_usage = 1.0 - engine["free_blocks"] / engine["blocks"]
    loop["batch_room"] = 0.0 if leaving else float(batch.room(loop["balanced"], running, urgent, kv_usage))
    if leaving:
        _send_back(world, plugin, where, first)


@inner
def _put_last(world: World, plugin: Plugin, where: int) -> int:
    """Put running batch requests behind the others, which vLLM preempts last; returns the place of the first one."""
    row, classes, places = world.running[where], plugin.classes[where], plugin.places
    running, moved, kept = int(world.engines[where]["running"]), 0, 0
    for position in range(running):
        number = row[position]
        if classes[places[number]["of_class"]]["batch"]:
            world.begun[moved] = number
            moved += 1
        else:
            row[kept] = number
            kept += 1
    for position in range(moved):
        row[kept + position] = world.begun[position]
        places[world.begun[position]]["leaves"] = 0
    return kept


@inner
def _choose(world: World, plugin: Plugin, where: int, first: int, urgent: int) -> int:
    """Choose who leaves, as `batch.leaving`: first who computes a prompt, second the newest; returns how many."""
    loop, engine, row = plugin.loops[where], world.engines[where], world.running[where]
    fresh = queue_lanes.fresh_tokens(plugin.lanes[where])
    pressed = fast_loop.is_pressed(loop, plugin.fits[where], fresh)
    sequences, tokens = fast_loop.lacking(loop, engine, urgent, fresh)
    found, freed = 0, 0
    for position in range(first, int(engine["running"])):
        request = world.requests[row[position]]
        # What is in flight is computed, and not yet an answer.
        if pressed or request["prompt"] + request["generated"] - 1 - request["computed"] > 0:
            plugin.places[row[position]]["leaves"] = 1
            found += 1
            freed += request["computed"]
    for position in range(int(engine["running"]) - 1, first - 1, -1):
        if found >= sequences and freed >= tokens:
            break
        place = plugin.places[row[position]]
        if not place["leaves"]:
            place["leaves"] = 2
            found += 1
            freed += world.requests[row[position]]["computed"]
    return found


@inner
def _send_back(world: World, plugin: Plugin, where: int, first: int) -> None:
    """Let them wait, in the order of `batch.leaving`: of two with one arrival time the first put back starts first."""
    loop, engine, row, kept = plugin.loops[where], world.engines[where], world.running[where], first
    running = int(engine["running"])
    for turn in range(1, 3):
        for position in range(running - 1, first - 1, -1):
            number = row[position]
            place, request = plugin.places[number], world.requests[number]
            if place["leaves"] != turn:
                continue
            if request["generated"] == 0 and not place["interrupted"]:
                place["interrupted"] = 1
                loop["starting"] -= 1
            put_back(world, plugin, where, number)
            engine["preemptions"] += 1
    for position in range(first, running):
        if not plugin.places[row[position]]["leaves"]:
            row[kept] = row[position]
            kept += 1
    engine["running"] = kept

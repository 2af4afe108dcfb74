"""vLLM's engine loop for many engines at once, on arrays: `enginemodel.pipeline.Pipeline`, event for event.

That class and `enginemodel.scheduler.Scheduler` say what a step is and stay those to read and to change. Here is the
same loop without an object per request, so that millions of requests take seconds; the tests hold the two to the same
times, to the last bit. What the plugin adds is in `fast_loop`.
"""

from __future__ import annotations

from holdfast.enginemodel import host as host_arithmetic
from holdfast.enginemodel.scheduler import BLOCK_TOKENS
from holdfast.twin.arrays import batch, fast_loop
from holdfast.twin.arrays.arrivals import enter, next_try, read, route, try_again
from holdfast.twin.arrays.compiled import compile_with, compiled, inner
from holdfast.twin.arrays.state_arrays import LEAST_OUTSTANDING, MOST_IN_FLIGHT, NEVER, NOBODY, UNSERVED, Plugin, World
from holdfast.twin.arrays.step_end import complete
from holdfast.twin.arrays.step_plan import blocks_of, plan_step
from holdfast.twin.arrays.timers import decode_seconds, step_seconds

compile_with(host_arithmetic)


@compiled
def run_until(world: World, plugin: Plugin | None, until: float) -> None:
    """Bring in every request that comes by then, and end every step that ends before."""
    requests = world.requests
    number = next_try(world, until)
    while number != NOBODY:
        at = requests[number]["tried_at"]
        if world.book[0]["router"] == LEAST_OUTSTANDING:
            _advance(world, plugin, 0, len(world.engines), at)
        engine = route(world, number)
        if engine == NOBODY:
            requests[number]["state"] = UNSERVED
            try_again(world, number, at)
        else:
            _advance(world, plugin, engine, engine + 1, at)
            read(world, plugin, number, engine)
        number = next_try(world, until)
    _advance(world, plugin, 0, len(world.engines), until)


@inner
def _advance(world: World, plugin: Plugin | None, first: int, end: int, until: float) -> None:
    """Do what is due at these engines before `until`; a request that comes at `until` comes first."""
    for number in range(first, end):
        engine = world.engines[number]
        while True:
            if engine["enters_at"] <= engine["due"] and engine["enters_at"] < until:
                enter(world, plugin, number)
            elif engine["due"] < until:
                _turn(world, plugin, number, engine["due"], until)
            else:
                break


@inner
def _turn(world: World, plugin: Plugin | None, number: int, now: float, until: float) -> None:
    """End a step where one is due to end, then begin one where anything can be computed, as `Pipeline` does."""
    engine = world.engines[number]
    if engine["ending"]:
        _end_step(world, plugin, number, now)
    launched = False
    engine["host_at"] = now
    if engine["running"] + engine["waiting"] > 0:
        launched = _begin_step(world, plugin, number, now)
    _look_ahead(world, number, launched, now)
    if launched and engine["ending"] and engine["waiting"] == 0 and plugin is None:
        _decode_on(world, number, min(until, engine["enters_at"]))


@inner
def _look_ahead(world: World, number: int, launched: bool, now: float) -> None:
    """Say what is due next."""
    engine = world.engines[number]
    in_flight, host = engine["launched"] - engine["ended"], world.hosts[engine["timer"]]
    engine["ending"] = 1
    if launched and engine["running"] + engine["waiting"] > 0 and in_flight < host["depth"]:
        engine["ending"] = 0
        engine["due"] = engine["host_at"]
    elif in_flight > 0:
        oldest = world.flights[number, (engine["ended"] + 1) % MOST_IN_FLIGHT]
        taking = host["update"] + host["sequence"] * oldest["sequences"]
        engine["due"] = max(engine["host_at"], oldest["done_at"]) + engine["stretch"] * taking
    else:
        engine["ending"] = 0
        engine["due"] = NEVER
        engine["idle_at"] = now


@inner
def _begin_step(world: World, plugin: Plugin | None, where: int, now: float) -> bool:
    """Plan a step with what the plugin has to do with it, and launch it; whether it computes anything, or is alone."""
    engine = world.engines[where]
    if plugin is not None:
        batch.give_way(world, plugin, where)
        row, lanes, classes = world.running[where, : engine["running"]], plugin.lanes[where], plugin.classes[where]
        loop, fits, places = plugin.loops[where], plugin.fits[where], plugin.places
        fast_loop.before_step(loop, engine, lanes, classes, fits, row, places, world.requests, now)
    plan_step(world, plugin, where)
    plan, flight = world.plan[0], world.flights[where, (engine["launched"] + 1) % MOST_IN_FLIGHT]
    empty = plan["chunks"] + plan["decodes"] == 0
    if empty and engine["launched"] > engine["ended"]:
        return False
    flight["computes"] = 0
    if plugin is not None:
        fast_loop.scheduled(plugin.loops[where], engine, flight, plugin.fits[where], world.chunks, plan, now)
    _launch(world, where, now)
    return True


@inner
def _launch(world: World, where: int, now: float) -> None:
    """Launch the step just planned, as `Pipeline`."""
    engine, plan, count = world.engines[where], world.plan[0], world.plan[0]["chunks"]
    decodes, host, stretch = plan["decodes"], world.hosts[engine["timer"]], engine["stretch"]
    tokens = decodes
    for each in range(count):
        tokens += world.chunks[each, 0]
    launch_at = now + stretch * (host["schedule"] + host["sequence"] * (decodes + count))
    launch = host["prompts"] if count else host["decodes"]
    if tokens > host["edge"]:
        launch = host["beyond"]
    engine["host_at"] = launch_at + stretch * launch
    mean_kv = plan["kv_tokens"] / decodes if decodes else 0.0
    seconds = step_seconds(world.points, world.layout[engine["timer"]], world.chunks, count, decodes, mean_kv)
    lead, tail = stretch * host["lead"], stretch * host["tail"]
    engine["gpu_at"] = host_arithmetic.done_at(
        launch_at, engine["host_at"], engine["gpu_at"], stretch * seconds, lead, tail
    )
    engine["launched"] += 1
    flight = world.flights[where, engine["launched"] % MOST_IN_FLIGHT]
    flight["done_at"], flight["sequences"] = engine["gpu_at"], decodes + count
    # Where a chunk has room for a single token, what looks like a decode may be a part of a prompt.
    flight["pure"] = count == 0 and decodes == engine["running"] and engine["threshold"] > 1


@inner
def _end_step(world: World, plugin: Plugin | None, where: int, now: float) -> None:
    """End a step with what the plugin has to do with it."""
    engine, book = world.engines[where], world.book[0]
    engine["ended"] += 1
    if plugin is not None:
        flight = world.flights[where, engine["ended"] % MOST_IN_FLIGHT]
        newest = world.flights[where, engine["launched"] % MOST_IN_FLIGHT]
        classes, fits = plugin.classes[where], plugin.fits[where]
        fast_loop.step_ended(plugin.loops[where], engine, classes, flight, newest, fits, now)
    finished = int(book["finished"])
    began = complete(world, plugin, where, now)
    if plugin is not None:
        loop, ended = plugin.loops[where], world.finished[finished : book["finished"]]
        lanes, classes, answers = plugin.lanes[where], plugin.classes[where], plugin.answers[where]
        places, requests = plugin.places, world.requests
        fast_loop.answers_began(loop, engine, classes, places, requests, world.begun[:began])
        had = plugin.had[where]
        fast_loop.answers_ended(loop, engine, classes, answers, had, places, requests, ended, now)
        fast_loop.updated(loop, engine, lanes, classes, plugin.fits[where], places, requests, now)


@inner
def _decode_on(world: World, where: int, until: float) -> None:
    """Where nobody waits: end the oldest step, begin the next one, and go on so while all are alike.

    They are alike while all decode, no answer ends and blocks are left for everybody. Times add up as step by step.
    """
    engine, running = world.engines[where], world.engines[where]["running"]
    most = _steps_alike(world, where)
    if most <= 0 or not engine["due"] < until:
        return
    host, timer, stretch = world.hosts[engine["timer"]], world.layout[engine["timer"]], engine["stretch"]
    scheduling = stretch * (host["schedule"] + host["sequence"] * running)
    launching = stretch * (host["decodes"] if running <= host["edge"] else host["beyond"])
    taking = stretch * (host["update"] + host["sequence"] * running)
    lead, tail, writing = stretch * host["lead"], stretch * host["tail"], host["token"] * running
    kv_tokens, taken, ahead, front_at = world.plan[0]["kv_tokens"], 0, host["depth"] > 1, engine["front_at"]
    due, gpu_at, host_at = engine["due"], engine["gpu_at"], engine["host_at"]
    while taken < most and due < until:
        kv_tokens += running
        front_at = max(due, front_at) + writing
        seconds = decode_seconds(world.points, timer, running, kv_tokens / running)
        launch_at = due + scheduling
        host_at = launch_at + launching
        before = gpu_at
        gpu_at = host_arithmetic.done_at(launch_at, host_at, gpu_at, stretch * seconds, lead, tail)
        due = max(host_at, before if ahead else gpu_at) + taking
        taken += 1
        newest = world.flights[where, (engine["launched"] + taken) % MOST_IN_FLIGHT]
        newest["done_at"], newest["sequences"], newest["pure"] = gpu_at, running, 1
    engine["due"], engine["gpu_at"], engine["host_at"], engine["front_at"] = due, gpu_at, host_at, front_at
    _decoded(world, where, taken)


@inner
def _steps_alike(world: World, where: int) -> int:
    """Steps that may follow those in flight with nothing but one token more for each sequence."""
    engine, plan = world.engines[where], world.plan[0]
    running = engine["running"]
    if running == 0 or engine["tokens"] <= running:
        return 0
    for step in range(engine["ended"] + 1, engine["launched"] + 1):
        if not world.flights[where, step % MOST_IN_FLIGHT]["pure"]:
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
        request["emits"] += steps
        wanted = blocks_of(request["computed"]) - request["blocks"]
        request["blocks"] += wanted
        engine["free_blocks"] -= wanted
    engine["launched"] += steps
    engine["ended"] += steps
    engine["output_tokens"] += steps * engine["running"]

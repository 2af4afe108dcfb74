"""What the next step of an engine computes, on arrays: `enginemodel.scheduler.Scheduler.step`, in its order."""

from __future__ import annotations

from holdfast.enginemodel.scheduler import BLOCK_TOKENS
from holdfast.twin.arrays import fast_loop, queue_lanes
from holdfast.twin.arrays.compiled import inner
from holdfast.twin.arrays.state_arrays import NOBODY, RUNNING, UNLIMITED, WAITING, Plugin, Record, World


@inner
def plan_step(world: World, plugin: Plugin | None, where: int) -> None:
    """Plan a step and take its blocks, as `Scheduler.step`."""
    engine, row, chunks, plan = world.engines[where], world.running[where], world.chunks, world.plan[0]
    engine["stale"] = 0
    budget, threshold = engine["tokens"], engine["threshold"]
    count = decodes = kv_tokens = preempted = position = 0
    alike = UNLIMITED
    while position < engine["running"] and budget > 0:
        number = row[position]
        request = world.requests[number]
        computed, answered = request["computed"], request["generated"] + request["in_flight"]
        if answered >= request["output"]:
            position += 1  # the last token is in flight
            continue
        tokens = min(request["prompt"] + answered - computed, threshold, budget)
        wanted = blocks_of(computed + tokens) - request["blocks"]
        victim = NOBODY
        while wanted > engine["free_blocks"] and victim != number:
            victim = _preempt_last(world, plugin, where)
            preempted += 1
        if victim == number:
            break
        if wanted > 0:
            request["blocks"] += wanted
            engine["free_blocks"] -= wanted
        if tokens == 1 and answered > 0 and computed >= request["prompt"]:
            decodes += 1
            kv_tokens += computed + 1
        else:
            chunks[count, 0], chunks[count, 1] = tokens, computed
            count += 1
        alike = min(alike, request["output"] - answered - 1)
        _computes(request, computed + tokens, engine["launched"] + 1)
        budget -= tokens
        position += 1
    plan["going_on"], plan["decodes"], plan["kv_tokens"], plan["alike"] = count, decodes, kv_tokens, alike
    if preempted == 0:
        count = _start_waiting(world, plugin, where, budget, count)
    plan["chunks"] = count
    engine["preemptions"] += preempted


@inner
def _computes(request: Record, computed: int, step: int) -> None:
    """Count tokens as computed by a step, which gives the request another one where they are all there are."""
    request["computed"] = computed
    if computed == request["prompt"] + request["generated"] + request["in_flight"]:
        if request["in_flight"] == 0:
            request["emits"] = step
        request["in_flight"] += 1


@inner
def _start_waiting(world: World, plugin: Plugin | None, where: int, budget: int, count: int) -> int:
    """First chunks of waiting requests until one does not fit; returns how many chunks the step then has."""
    engine, chunks = world.engines[where], world.chunks
    while budget > 0 and (engine["waiting"] > 0 if plugin is None else _may_start(plugin, engine, where)):
        number = _admit_head(world, plugin, where)
        if number == NOBODY:
            break
        request = world.requests[number]
        computed = request["computed"]
        tokens = min(request["prompt"] + request["generated"] - computed, engine["threshold"], budget)
        request["blocks"] = blocks_of(computed + tokens)
        engine["free_blocks"] -= request["blocks"]
        chunks[count, 0], chunks[count, 1] = tokens, computed
        count += 1
        _computes(request, computed + tokens, engine["launched"] + 1)
        budget -= tokens
    return count


@inner
def _may_start(plugin: Plugin, engine: Record, where: int) -> bool:
    return queue_lanes.may_start(plugin.loops[where], engine)


@inner
def _preempt_last(world: World, plugin: Plugin | None, where: int) -> int:
    """Send the youngest running request back to the queue, without its KV cache."""
    engine = world.engines[where]
    engine["running"] -= 1
    number = int(world.running[where, engine["running"]])
    put_back(world, plugin, where, number)
    return number


@inner
def put_back(world: World, plugin: Plugin | None, where: int, number: int) -> None:
    """Let a request wait that runs no longer: before all others, or as batch."""
    engine, request = world.engines[where], world.requests[number]
    engine["free_blocks"] += request["blocks"]
    request["blocks"] = 0
    request["computed"] = 0
    request["cached"] = 0
    request["preemptions"] += 1
    request["state"] = WAITING
    engine["waiting"] += 1
    if plugin is None:
        engine["stale"] += 1
        _prepend(world, where, number)
        return
    loop, place, classes = plugin.loops[where], plugin.places[number], plugin.classes[where]
    if classes[place["of_class"]]["batch"]:
        place["stale_after"] = loop["stale_batch"]
        loop["stale_batch"] = number
        fast_loop.wait_as_batch(place, request)
        queue_lanes.put(loop, engine, plugin.lanes[where], classes, plugin.places, number, request["prompt"])
    else:
        engine["stale"] += 1
        queue_lanes.put_first(loop, place, number)


@inner
def _prepend(world: World, where: int, number: int) -> None:
    """Let a request wait before all others."""
    engine = world.engines[where]
    world.requests[number]["after"] = engine["first_waiting"]
    if engine["waiting"] == 0:
        engine["last_waiting"] = number
    engine["first_waiting"] = number


@inner
def _admit_head(world: World, plugin: Plugin | None, where: int) -> int:
    """Start the first waiting request if a slot and blocks for all its tokens are free, else NOBODY."""
    engine = world.engines[where]
    if engine["running"] >= engine["active"]:
        return NOBODY
    number = int(engine["first_waiting"])
    if plugin is not None:
        lanes, classes = plugin.lanes[where], plugin.classes[where]
        number = queue_lanes.head(plugin.loops[where], engine, lanes, classes, plugin.places, world.requests)
    request = world.requests[number]
    if blocks_of(request["prompt"] + request["generated"]) > engine["free_blocks"]:
        return NOBODY
    if plugin is not None:
        lanes, classes = plugin.lanes[where], plugin.classes[where]
        queue_lanes.take(plugin.loops[where], engine, lanes, classes, plugin.places, number, request["prompt"])
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
    if plugin is not None:
        place = plugin.places[number]
        own = plugin.classes[where, place["of_class"]]
        fast_loop.admitted(plugin.loops[where], engine, own, place, request)
    return number


@inner
def blocks_of(tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // BLOCK_TOKENS)

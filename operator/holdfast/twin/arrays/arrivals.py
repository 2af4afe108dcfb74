"""How requests find an engine, pass its API server and join its queue, on arrays."""

from __future__ import annotations

from holdfast.twin.arrays import fast_loop
from holdfast.twin.arrays.compiled import compiled, inner
from holdfast.twin.arrays.state_arrays import (
    ENTERING,
    FINISHED,
    LEAST_OUTSTANDING,
    NEVER,
    NOBODY,
    REJECTED,
    ROUND_ROBIN,
    UNLIMITED,
    WAITING,
    Plugin,
    Record,
    Records,
    World,
)
from holdfast.twin.arrays.step_plan import blocks_of

GOLDEN = 0.6180339887498949
"""What is added to a request's draw before each further try (modulo 1): evenly spread, whatever the first draw was."""


@inner
def next_try(world: World, until: float) -> int:
    """Take the request that comes next by then, for the first time or again; NOBODY where none does."""
    book, requests, soonest, line = world.book[0], world.requests, until, NOBODY
    for place in range(len(world.retries)):
        first = world.retries[place]["first"]
        if first != NOBODY and requests[first]["tried_at"] <= soonest:
            soonest, line = requests[first]["tried_at"], place
    number = int(book["next_request"])
    if number < len(requests) and requests[number]["at"] <= soonest:
        book["next_request"] = number + 1
        return number
    if line == NOBODY:
        return NOBODY
    number = int(world.retries[line]["first"])
    request = world.requests[number]
    world.retries[line]["first"] = request["after"]
    request["after"] = NOBODY
    request["draw"] = (request["draw"] + GOLDEN) % 1.0
    return number


@inner
def try_again(world: World, number: int, now: float) -> None:
    """Let a refused request come again where a try is left. Each try waits equally long, so that nobody overtakes.

    That holds as long as requests are refused in the order of time, as without an API server of the engine's own.
    """
    request = world.requests[number]
    place = int(request["tries"])
    if place >= len(world.retries):
        return
    retry = world.retries[place]
    request["tries"] = place + 1
    request["tried_at"] = now + retry["wait"]
    request["after"] = NOBODY
    if retry["first"] == NOBODY:
        retry["first"] = number
    else:
        world.requests[retry["last"]]["after"] = number
    retry["last"] = number


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
    idle, kept["request"] = _idle(world, kept["request"], request["tried_at"]), number
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
def read(world: World, plugin: Plugin | None, number: int, where: int) -> None:
    """Let the API server of an engine read a request, as `FrontDesk.read`."""
    request, engine = world.requests[number], world.engines[where]
    host, now = world.hosts[engine["timer"]], request["tried_at"]
    request["engine"] = where
    request["read_at"] = max(now, engine["front_at"])
    engine["front_at"] = request["read_at"] + (host["request"] + host["prompt"] * request["prompt"])
    request["enters_at"] = engine["front_at"] + host["transit"]
    if request["enters_at"] <= now and engine["enters_at"] == NEVER:
        _arrive(world, plugin, number, where, now)
        return
    request["state"] = ENTERING
    if engine["enters_at"] == NEVER:
        engine["first_entering"], engine["enters_at"] = number, request["enters_at"]
    else:
        world.requests[engine["last_entering"]]["after"] = number
    engine["last_entering"] = number


@inner
def enter(world: World, plugin: Plugin | None, where: int) -> None:
    """Let the first request that was read reach its engine."""
    engine = world.engines[where]
    number = int(engine["first_entering"])
    request = world.requests[number]
    engine["first_entering"], request["after"] = request["after"], NOBODY
    engine["enters_at"] = NEVER
    if engine["last_entering"] != number:
        engine["enters_at"] = world.requests[engine["first_entering"]]["enters_at"]
    _arrive(world, plugin, number, where, request["enters_at"])


@inner
def _arrive(world: World, plugin: Plugin | None, number: int, where: int, now: float) -> None:
    """Queue a request, or refuse it as the API server does: at once."""
    request, engine = world.requests[number], world.engines[where]
    if plugin is not None:
        lanes, classes = plugin.lanes[where], plugin.classes[where]
        if fast_loop.sends_away(plugin.loops[where], engine, lanes, classes, plugin.fits[where]):
            # The headers of a stream go out before it waits: its client comes over another connection next time.
            world.connections[request["connection"]]["engine"] = NOBODY
    if _refuses(world, plugin, where, number):
        _count_refused(engine, plugin, where, number)
        request["state"] = REJECTED
        try_again(world, number, now)
        return
    request["state"] = WAITING
    engine["queued_tokens"] += request["prompt"]
    engine["outstanding_tokens"] += request["prompt"]
    if plugin is not None:
        fast_loop.arrive(world, plugin, where, number, now)
    else:
        _append(world, where, number)
    engine["waiting"] += 1
    if engine["due"] == NEVER:
        engine["due"] = now


@inner
def _count_refused(engine: Record, plugin: Plugin | None, where: int, number: int) -> None:
    """Count a request that was turned away, with its class; batch is in no count but that of its class."""
    if plugin is None:
        engine["rejected"] += 1
        return
    own = plugin.classes[where, _at_door(plugin, where, number)]
    own["bad"] += 1.0
    engine["rejected"] += 1 - own["batch"]


@inner
def _at_door(plugin: Plugin, where: int, number: int) -> int:
    """The number of a request's class there: nobody has read yet which adapter it is for."""
    return int(plugin.classes[where, plugin.places[number]["of_class"]]["at_door"])


@inner
def _refuses(world: World, plugin: Plugin | None, where: int, number: int) -> bool:
    """Whether a cap, the plugin or the size of the KV cache keeps a request out."""
    engine, request = world.engines[where], world.requests[number]
    if engine["running"] + engine["waiting"] >= engine["most_requests"]:
        return True
    if engine["queued_tokens"] >= engine["most_queued"]:
        return True
    if plugin is not None:
        lanes, classes, fits = plugin.lanes[where], plugin.classes[where], plugin.fits[where]
        own = classes[_at_door(plugin, where, number)]
        if fast_loop.refuses(plugin.loops[where], engine, lanes, classes, own, fits, request["prompt"]):
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

"""The order of waiting requests on arrays: `holdfast_engine.queue.order.DeadlineOrder`, operation by operation.

Lanes are heaps in which a request knows its children: their order is total, so whatever their shape, the same one is
first. Requests that were aborted stay until they are first.
"""

from __future__ import annotations

from holdfast.twin.arrays.compiled import inner
from holdfast.twin.arrays.state_arrays import NOBODY, WAITING, Record, Records
from holdfast_engine.queue.order import LATE_SHARE


@inner
def put(loop: Record, places: Records, number: int, prompt: int) -> None:
    """Append a request that has its rank."""
    places[number]["left"] = places[number]["right"] = NOBODY
    loop["fresh"] = _merged(places, loop["fresh"], number)
    loop["fresh_tokens"] += prompt


@inner
def put_first(loop: Record, place: Record, number: int) -> None:
    """Put a request before all others."""
    place["left"] = loop["front"]
    loop["front"] = number


@inner
def head(loop: Record, engine: Record, places: Records, requests: Records) -> int:
    """The request that starts next; there must be one."""
    if loop["front"] != NOBODY:
        return int(loop["front"])
    settle(loop, engine, places, requests)
    late = loop["late"]
    if late != NOBODY and (loop["fresh"] == NOBODY or loop["credit"] >= requests[late]["prompt"]):
        return int(late)
    return int(loop["fresh"])


@inner
def take(loop: Record, engine: Record, places: Records, number: int, prompt: int) -> None:
    """Take out a request, the one that starts next."""
    place = places[number]
    if loop["front"] == number:
        loop["front"] = place["left"]
        return
    if engine["waiting_late"] > 0.0:
        loop["credit"] = max(0.0, loop["credit"] + (-float(prompt) if place["late"] else LATE_SHARE * prompt))
    leave(loop, engine, place, prompt)
    rest = _merged(places, place["left"], place["right"])
    if place["late"]:
        loop["late"] = rest
    else:
        loop["fresh"] = rest


@inner
def leave(loop: Record, engine: Record, place: Record, prompt: int) -> None:
    """Count a request out that is not at the front."""
    if not place["late"]:
        loop["fresh_tokens"] -= prompt
        return
    engine["waiting_late"] -= 1.0
    if engine["waiting_late"] == 0.0:
        loop["credit"] = 0.0


@inner
def settle(loop: Record, engine: Record, places: Records, requests: Records) -> None:
    """Bring both heaps to a head that counts: drop who is gone, move who has become late."""
    while loop["fresh"] != NOBODY:
        number = int(loop["fresh"])
        place, request = places[number], requests[number]
        waits = request["state"] == WAITING
        if waits and not place["start_by"] < loop["now"]:
            break
        loop["fresh"] = _merged(places, place["left"], place["right"])
        if waits:
            engine["waiting_late"] += 1.0
            loop["fresh_tokens"] -= request["prompt"]
            place["late"], place["rank"] = 1, request["read_at"]
            place["left"] = place["right"] = NOBODY
            loop["late"] = _merged(places, loop["late"], number)
    while loop["late"] != NOBODY and requests[loop["late"]]["state"] != WAITING:
        place = places[loop["late"]]
        loop["late"] = _merged(places, place["left"], place["right"])


@inner
def _merged(places: Records, one: int, other: int) -> int:
    """The root of two skew heaps made one; with equal ranks who came first is first."""
    if one == NOBODY or other == NOBODY:
        return max(one, other)
    if _before(places, other, one):
        one, other = other, one
    root = one
    while True:
        place = places[one]
        below = int(place["right"])
        place["right"] = place["left"]
        if below == NOBODY:
            place["left"] = other
            return root
        if _before(places, other, below):
            below, other = other, below
        place["left"] = below
        one = below


@inner
def _before(places: Records, one: int, other: int) -> bool:
    mine, yours = places[one]["rank"], places[other]["rank"]
    return bool(mine < yours or (mine == yours and one < other))

"""The order of waiting requests on arrays: `holdfast_engine.queue.order.DeadlineOrder`, operation by operation.

Lanes are heaps in which a request knows its children: their order is total, so whatever their shape, the same one is
first. Requests that were aborted stay until they are first.
"""

from __future__ import annotations

import math

from holdfast.twin.arrays.compiled import inner
from holdfast.twin.arrays.fast_loop_arrays import BATCH, BEHIND, FRESH
from holdfast.twin.arrays.state_arrays import NOBODY, WAITING, Record, Records
from holdfast_engine.queue.order import LOWER_SHARE


@inner
def put(
    loop: Record, engine: Record, lanes: Records, classes: Records, places: Records, number: int, prompt: int
) -> None:
    """Append a request that has its rank."""
    place = places[number]
    loop["placed"] += 1
    place["turn"] = loop["placed"]
    own = classes[place["of_class"]]
    place["lane"] = own["lane"]
    lane = lanes[place["lane"]]
    if not lane["known"]:
        _know(lanes, lane)
    if own["batch"]:
        engine["batch_waiting"] += 1.0
    else:
        own["waiting"] += 1
    _join(lane, places, number, prompt)


@inner
def _know(lanes: Records, new: Record) -> None:
    """A lane gets its first request: those of its kind without any are forgotten."""
    for lane in lanes:
        if lane["kind"] == new["kind"] and lane["count"] == 0:
            lane["known"] = 0
    new["known"] = 1


@inner
def _join(lane: Record, places: Records, number: int, prompt: int) -> None:
    places[number]["left"] = places[number]["right"] = NOBODY
    lane["first"] = _merged(places, lane["first"], number)
    lane["count"] += 1
    lane["tokens"] += prompt


@inner
def put_first(loop: Record, place: Record, number: int) -> None:
    """Put a request before all others."""
    place["left"] = loop["front"]
    loop["front"] = number


@inner
def may_start(loop: Record, engine: Record) -> bool:
    """Whether a request may start in this step."""
    held_back = 0.0 if loop["batch_room"] >= 1.0 else engine["batch_waiting"]
    return bool(engine["waiting"] > held_back)


@inner
def head(loop: Record, engine: Record, lanes: Records, classes: Records, places: Records, requests: Records) -> int:
    """The request that starts next; there must be one."""
    if loop["front"] != NOBODY:
        return int(loop["front"])
    settle(loop, engine, lanes, classes, places, requests)
    first = saved = NOBODY
    for lane in lanes:
        if lane["count"] > 0:
            if first == NOBODY:
                first = int(lane["first"])
            elif lane["credit"] > 0.0 and lane["credit"] >= requests[lane["first"]]["prompt"]:
                saved = int(lane["first"])
    return first if saved == NOBODY else saved


@inner
def take(
    loop: Record, engine: Record, lanes: Records, classes: Records, places: Records, number: int, prompt: int
) -> None:
    """Take out a request, the one that starts next."""
    place = places[number]
    if loop["front"] == number:
        loop["front"] = place["left"]
        return
    lane = lanes[place["lane"]]
    if lane["kind"] == BATCH:
        loop["batch_room"] -= 1.0
    else:
        _charge(lanes, place["lane"], prompt)
    leave(engine, lanes, classes, place, prompt)
    lane["first"] = _merged(places, place["left"], place["right"])


@inner
def _charge(lanes: Records, taken: int, prompt: int) -> None:
    """Requests behind others save up a share of what the others take, and spend it on their own tokens."""
    known = late = waiting = 0
    for lane in lanes:
        known += lane["known"]
        if lane["kind"] == BEHIND:
            late = lane["count"]
        elif lane["kind"] == FRESH:
            waiting += lane["count"] > 0
    if known == 1 and late == 0:
        return  # nobody is behind others
    lower = LOWER_SHARE / max(1, waiting - 1)
    for each in range(len(lanes)):
        lane = lanes[each]
        if lane["count"] > 0 and lane["kind"] != BATCH:
            share = lower if math.isnan(lane["share"]) else lane["share"]
            lane["credit"] = max(0.0, lane["credit"] + (-float(prompt) if each == taken else share * prompt))


@inner
def leave(engine: Record, lanes: Records, classes: Records, place: Record, prompt: int) -> None:
    """Count a request out that is not at the front."""
    lane = lanes[place["lane"]]
    if lane["kind"] == BATCH:
        engine["batch_waiting"] -= 1.0
    else:
        classes[place["of_class"]]["waiting"] -= 1
    if lane["kind"] == BEHIND:
        engine["waiting_late"] -= 1.0
    _part(lane, prompt)


@inner
def _part(lane: Record, prompt: int) -> None:
    lane["count"] -= 1
    lane["tokens"] -= prompt
    if lane["count"] == 0:
        lane["credit"] = 0.0


@inner
def settle(loop: Record, engine: Record, lanes: Records, classes: Records, places: Records, requests: Records) -> None:
    """Bring all heaps to a head that counts: drop who is gone, move who has become late."""
    behind = 0
    while lanes[behind]["kind"] != BEHIND:
        behind += 1
    late = lanes[behind]
    for each in range(behind):
        lane = lanes[each]
        while lane["first"] != NOBODY:
            number = int(lane["first"])
            place, request = places[number], requests[number]
            waits = request["state"] == WAITING
            if waits and not place["start_by"] < loop["now"]:
                break
            lane["first"] = _merged(places, place["left"], place["right"])
            if waits:
                engine["waiting_late"] += 1.0
                _part(lane, request["prompt"])
                place["lane"], place["rank"] = behind, request["read_at"]
                _join(late, places, number, request["prompt"])
    for each in range(behind, len(lanes)):
        lane = lanes[each]
        while lane["first"] != NOBODY and requests[lane["first"]]["state"] != WAITING:
            place = places[lane["first"]]
            lane["first"] = _merged(places, place["left"], place["right"])


@inner
def fresh_tokens(lanes: Records) -> int:
    """Prompt tokens of requests that can still be in time."""
    tokens = 0
    for lane in lanes:
        if lane["kind"] == FRESH:
            tokens += lane["tokens"]
    return tokens


@inner
def tokens_from(lanes: Records, own: Record) -> int:
    """The same of those before a new request of a class, in its lane too."""
    tokens = 0
    for lane in lanes:
        behind_all = own["batch"] and lane["kind"] == FRESH
        if behind_all or (lane["kind"] == (BATCH if own["batch"] else FRESH) and lane["priority"] >= own["priority"]):
            tokens += lane["tokens"]
    return tokens


@inner
def count_from(engine: Record, lanes: Records, classes: Records, own: Record) -> float:
    """Requests before a new one of a class, late ones of its priority too."""
    count: float = float(engine["waiting"])
    if not own["batch"]:
        count -= engine["batch_waiting"]
        for each in classes:
            if each["priority"] < own["priority"]:
                count -= each["waiting"]
        return count
    for lane in lanes:
        if lane["kind"] == BATCH and lane["priority"] < own["priority"]:
            count -= lane["count"]
    return count


@inner
def _merged(places: Records, one: int, other: int) -> int:
    """The root of two skew heaps made one; with equal ranks who was placed first is first."""
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
    return bool(mine < yours or (mine == yours and places[one]["turn"] < places[other]["turn"]))

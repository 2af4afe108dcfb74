"""LLMServices and LLMBenchmarks drawn at random: the cases of the tests, crossed with each other and then changed.

A pure function of a seed and a number, so that one that is found can be drawn again.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

from holdfast.api import crd
from tests.api import benchmark_refusals
from tests.api.refusals import ACCEPTED, REFUSALS, Accepted, Refusal

Json = Any

_CASES: dict[str, tuple[Sequence[Accepted], Sequence[Refusal]]] = {
    crd.LLMSERVICE.kind: (ACCEPTED, REFUSALS),
    crd.LLMBENCHMARK.kind: (benchmark_refusals.ACCEPTED, benchmark_refusals.REFUSED),
}
_SCHEMAS: dict[str, Json] = {
    of.kind: crd.crd(of)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for of in crd.DEFINITIONS
}
_PLURALS = {of.kind: of.plural for of in crd.DEFINITIONS}
_POD_PARTS = {"template"}
"""Two thirds of all fields are those of pods: drawn evenly they would be all that is tried."""
_TEXTS = ("", " ", "x\n", "\0", "é", "A", "-", "a.b", "0", "1e3s", "NaN", "true", "null", "\N{ROCKET}", "a" * 300)
_NUMBERS = (0, -1, 1, 2, 3, 63, 64, 65, 10_000, 10_001, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 1.0, 1.5, -0.0, 1e-9, 1e308)
_OTHERS: tuple[Json, ...] = (None, True, False, "5", "", 7, 0.5, [], {}, [None], {"x": None}, math.nan, math.inf)


def drawn(seed: int, number: int) -> Json:
    """An object that may be right or wrong, as kubectl sends it; four of five are LLMServices."""
    random = Random(f"{seed}/{number}")
    kind = random.choice([crd.LLMSERVICE.kind] * 4 + [crd.LLMBENCHMARK.kind])
    body = _case(kind, random)
    for _ in range(random.choice((0, 0, 1, 1, 2))):
        _cross(body["spec"], _case(kind, random)["spec"], random)
    for _ in range(random.choice((0, 1, 1, 2))):
        _change(body["spec"], _SCHEMAS[kind], random)
    return json.loads(json.dumps(body), parse_float=_number)


def plural(body: Json) -> str:
    """How the API server's addresses call the kind of an object."""
    return _PLURALS[body["kind"]]


def _number(text: str) -> float:
    """In JSON as Go writes it 1.0 is 1."""
    return int(float(text)) if float(text).is_integer() else float(text)


def _case(kind: str, random: Random) -> Json:
    """A case of the tests, mostly one that is right: of two faults only one is told."""
    accepted, refused = _CASES[kind]
    case: Accepted | Refusal = random.choice(accepted) if random.random() < 0.85 else random.choice(refused)
    return copy.deepcopy(case.body)


def _cross(spec: Json, other: Json, random: Random) -> None:
    """Take one part of another object, at most three levels deep."""
    name = random.choice(sorted(other))
    for _ in range(2):
        if random.random() < 0.5 or not (_has_parts(other[name]) and isinstance(spec.get(name), dict)):
            break
        spec, other = spec[name], other[name]
        name = random.choice(sorted(other))
    spec[name] = copy.deepcopy(other[name])


def _change(spec: Json, schema: Json, random: Random) -> None:
    """Change one value, anywhere."""
    if random.random() < 0.35:
        _tweak(spec, random)
    else:
        holder, key, kind = _place(spec, schema, random)
        holder[key] = _value(kind, _at(holder, key), random)


def _place(holder: Json, schema: Json, random: Random) -> tuple[Json, Any, Json]:
    """A field that is there or could be: its holder, its key and its schema."""
    if isinstance(holder, list):
        key, kind = random.randrange(len(holder)), schema["items"]
    else:
        key = random.choice(sorted(schema["properties"]))
        if key in _POD_PARTS:
            key = random.choice(sorted(schema["properties"]))
        kind = schema["properties"][key]
    inner = _at(holder, key)
    has_more = _has_parts(inner) and ("properties" if isinstance(inner, dict) else "items") in kind
    return _place(inner, kind, random) if has_more and random.random() < 0.75 else (holder, key, kind)


def _at(holder: Json, key: Any) -> Json:
    return holder.get(key) if isinstance(holder, dict) else holder[key]


def _value(schema: Json, before: Json, random: Random) -> Json:
    """A value that a schema allows, or just does not, or of another type."""
    if random.random() < 0.1:
        return copy.deepcopy(random.choice(_OTHERS))
    match schema.get("type"):
        case "integer" | "number":
            edges = [schema[name] for name in ("minimum", "maximum") if name in schema]
            return random.choice([*_NUMBERS, *(edge + step for edge in edges for step in (-1, 0, 1))])
        case "string":
            longest = schema.get("maxLength", 40)
            return random.choice([*_TEXTS, *schema.get("enum", ()), "a" * longest, "a" * (longest + 1), "é" * longest])
        case "boolean":
            return random.choice((True, False))
        case "array" if isinstance(before, list) and before:
            return random.choice((before[:-1], [*before, before[0]], before[::-1], before * 20))
        case "object" if isinstance(before, dict):
            return {**before, "unheardOf": 1}
    return copy.deepcopy(random.choice((*_OTHERS, *_TEXTS, *_NUMBERS)))


def _tweak(part: Json, random: Random) -> None:
    """Change, drop or misspell a value that is there."""
    key = _key(part, random)
    while _has_parts(part[key]) and random.random() < 0.85:
        part = part[key]
        key = _key(part, random)
    value = part[key]
    if isinstance(part, dict) and random.random() < 0.15:
        part[f"{key}{random.choice(('', 's', 'X'))}"] = part.pop(key)
    elif isinstance(value, str):
        part[key] = _respelt(value, random)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        part[key] = random.choice((value + 1, value - 1, -value, value * 1000, value / 3, float(value), str(value)))
    elif isinstance(part, dict) and random.random() < 0.5:
        del part[key]
    else:
        part[key] = copy.deepcopy(random.choice(_OTHERS))


def _key(part: Json, random: Random) -> Any:
    return random.choice(sorted(part)) if isinstance(part, dict) else random.randrange(len(part))


def _has_parts(part: Json) -> bool:
    return isinstance(part, dict | list) and bool(part)


def _respelt(text: str, random: Random) -> str:
    place = random.randrange(len(text) + 1)
    more = random.choice(("", " ", "\n", "0", "9", ".", "-", "/", ":", "=", "%", "_", "é", "A", text))
    return random.choice((text[:place] + more + text[place:], text[:place] + more + text[place + 1 :], text.upper()))

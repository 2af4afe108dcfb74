"""Several endpoints in one picture: what was measured of each, from the files of `holdfast bench --json`."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.tools.reports import frontier, page
from holdfast.tools.reports.frontier import Spot
from holdfast.twin.scenarios.inputs import BadInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = ("endpoint", "req/s", "tokens/s of a user", "tokens/s of a GPU", "$/M tokens", "")
MOST_DIGITS = 4
ALT = "Tokens/s of a user against tokens/s of a GPU, and against dollars per million tokens"
REMEDY = "give files of holdfast bench --json FILE, of a run or of a --sweep"


def read(given: Sequence[str]) -> list[Spot]:
    """Every measured load of every file; BadInput names the file without any."""
    named = [_named(text) for text in given]
    if len(named) != len({path.resolve() for path, _ in named}):
        raise BadInput("--overlay: a file is given twice: give each endpoint once")
    stems = [path.stem for path, _ in named]
    spots = []
    for path, gpus in named:
        label = path.stem if stems.count(path.stem) == 1 else str(path)
        found = list(_spots(path, label, gpus))
        if not found:
            raise BadInput(f"--overlay {path}: no load in it has finished requests: {REMEDY}")
        spots += found
    return spots


def _named(text: str) -> tuple[Path, int]:
    """A file, and how many GPUs its endpoint had: one without a number after a colon."""
    name, colon, count = text.rpartition(":")
    if not colon:
        return Path(text), 1
    if not (count.isascii() and count.isdigit() and len(count) <= MOST_DIGITS and int(count) > 0):
        raise BadInput(f"--overlay {text}: {count!r} is no number of GPUs: write FILE:2 for an endpoint with two")
    return Path(name), int(count)


def _spots(path: Path, label: str, gpus: int) -> Iterator[Spot]:
    for results, saturated in _results(path):
        try:
            user, whole = results["user_tokens_per_second"]["p50"], results["output_tokens_per_second"]
            rate, per_dollar = results["arrival_rps"], results["tokens_per_dollar"]
        except (KeyError, TypeError):
            raise BadInput(f"--overlay {path}: not the figures of a benchmark: {REMEDY}") from None
        if not (_is_number(user) and _is_number(whole) and _is_number(rate)):
            continue
        dollars = 1e6 / per_dollar if _is_number(per_dollar) else None
        yield Spot(label, user, whole / gpus, dollars, f"{rate:.3g}", saturated)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value < math.inf


def _results(path: Path) -> list[tuple[Any, bool]]:
    """The figures of each load, and whether it saturated the endpoint."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise BadInput(f"--overlay {path}: cannot be read: {problem.strerror}") from None
    except (ValueError, RecursionError):
        raise BadInput(f"--overlay {path}: not JSON: {REMEDY}") from None
    if not isinstance(content, Mapping) or not {"trials", "results"} & content.keys():
        raise BadInput(f"--overlay {path}: not the figures of a benchmark: {REMEDY}")
    if content.get("refused") and "trials" not in content:
        raise BadInput(f"--overlay {path}: its result was rejected, because the client was too slow: measure again")
    trials = content.get("trials", [{"results": content.get("results")}])
    if not isinstance(trials, list) or not all(isinstance(each, Mapping) for each in trials):
        raise BadInput(f"--overlay {path}: not the figures of a benchmark: {REMEDY}")
    return [(each.get("results"), bool(each.get("saturated"))) for each in trials]


def rows(spots: Sequence[Spot]) -> list[tuple[str, ...]]:
    """One per load."""
    best = frontier.front(spots)
    return [
        (
            spot.choice,
            spot.load,
            f"{spot.user_tokens_per_second:.3g}",
            f"{spot.gpu_tokens_per_second:,.0f}",
            "-" if spot.dollars_per_million is None else f"{spot.dollars_per_million:.3g}",
            "saturated" if spot.missed else "on the Pareto front" if spot in best else "",
        )
        for spot in spots
    ]


def told(spots: Sequence[Spot]) -> list[str]:
    """Which endpoint is on the front at which speeds of a user, in sentences."""
    best = frontier.front(spots)
    lines = []
    for choice in dict.fromkeys(spot.choice for spot in spots):
        speeds = [spot.user_tokens_per_second for spot in best if spot.choice == choice]
        if all(spot.missed for spot in spots if spot.choice == choice):
            lines.append(f"{choice}: saturated at each of its loads")
        elif not speeds:
            lines.append(f"{choice}: at each of its speeds another endpoint gives more tokens/s of a GPU")
        else:
            between = " to ".join(dict.fromkeys(f"{speed:.3g}" for speed in (min(speeds), max(speeds))))
            lines.append(f"{choice}: nothing beats it at {between} tokens/s of a user")
    if any(spot.dollars_per_million is None for spot in spots):
        lines.append("where $/M tokens is missing, measure with --cost-per-hour")
    return lines


def as_json(spots: Sequence[Spot]) -> dict[str, Any]:
    """All loads, and which of them nothing beats."""
    best = frontier.front(spots)
    return {"spots": [asdict(spot) | {"on_front": spot in best} for spot in spots]}


def picture(spots: Sequence[Spot]) -> bytes:
    """A PNG; the second panel where an endpoint has a price."""
    is_priced = any(spot.dollars_per_million is not None for spot in spots)

    def draw(figure: Figure) -> None:
        page.title(figure, "What a GPU gives, against what a user gets (numbers: req/s, ×: saturated)")
        panels = figure.subplots(1, 2 if is_priced else 1, squeeze=False)[0]
        frontier.draw(panels[0], spots, dollars=False)
        if is_priced:
            frontier.draw(panels[1], spots, dollars=True, legend=False)

    return page.picture(11.0 if is_priced else 7.0, 4.8, draw)


def write(paths: Sequence[Path], spots: Sequence[Spot]) -> None:
    """HTML pages, or PNGs where a name ends so."""
    drawn = picture(spots)
    parts = [
        "<ul>",
        *(f"<li>{html.escape(line)}</li>" for line in told(spots)),
        "</ul>",
        page.image(drawn, ALT),
        "<h2>Loads</h2>",
        page.table(HEADS, rows(spots)),
    ]
    page.write(paths, page.document("Endpoints compared", parts), drawn)

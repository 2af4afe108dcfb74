"""What all users get against what one gets: choices of hardware or endpoints, and which of them nothing beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.tools.reports import page
from holdfast.tools.reports.page import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#3566a8", "#b0572b", "#6b4fa0", "#2b8a8a", "#8a6d1f", "#a03f74")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True, slots=True)
class Spot:
    """One load of one choice: output tokens/s of a user (median, the wait included) and of a GPU, dollars per million
    output tokens where a price is known, what the load is called, and whether it saturates or misses the objective."""

    choice: str
    user_tokens_per_second: float
    gpu_tokens_per_second: float
    dollars_per_million: float | None
    load: str
    missed: bool = False


def front(spots: Sequence[Spot]) -> list[Spot]:
    """Spots that miss nothing and that no such spot beats both for a user and for a GPU, the fastest first."""
    kept = [spot for spot in spots if not spot.missed]
    return _unbeaten(kept, [spot.gpu_tokens_per_second for spot in kept])


def cheapest(spots: Sequence[Spot]) -> list[Spot]:
    """Spots with a price that miss nothing and that no such spot beats both for a user and in price."""
    priced = [spot for spot in spots if spot.dollars_per_million is not None and not spot.missed]
    return _unbeaten(priced, [-(spot.dollars_per_million or 0.0) for spot in priced])


def _unbeaten(spots: Sequence[Spot], worths: Sequence[float]) -> list[Spot]:
    """The fastest first; each following one is worth more than all faster ones."""
    found: list[Spot] = []
    best = float("-inf")
    for spot, worth in sorted(
        zip(spots, worths, strict=True), key=lambda one: (-one[0].user_tokens_per_second, -one[1])
    ):
        if worth > best:
            found.append(spot)
            best = worth
    return found


def draw(panel: Axes, spots: Sequence[Spot], dollars: bool, legend: bool = True) -> None:
    """Tokens/s of a user against tokens/s of a GPU, or against dollars per million tokens; the front is a wide line."""
    best = cheapest(spots) if dollars else front(spots)
    shown = [spot for spot in spots if _height(spot, dollars) is not None]
    for place, choice in enumerate(dict.fromkeys(spot.choice for spot in spots)):
        line = sorted((each for each in shown if each.choice == choice), key=lambda each: each.user_tokens_per_second)
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        xs, ys = [each.user_tokens_per_second for each in line], [_place(each, dollars)[1] for each in line]
        panel.plot(xs, ys, color=colour, marker=marker, markersize=4.5, linewidth=0.9, alpha=0.85, label=choice)
        for each in line:
            where: page.Style = {"xytext": (4, 3), "textcoords": "offset points", "fontsize": 7, "color": colour}
            panel.annotate(f"{each.load}{' ×' if each.missed else ''}", _place(each, dollars), **where)
    corners = [_place(each, dollars) for each in best]
    style: page.Style = {"color": INK, "linewidth": 4.0, "alpha": 0.22, "zorder": 1}
    panel.plot([x for x, _ in corners], [y for _, y in corners], **style, label="nothing beats these")
    panel.set_xlabel("tokens/s of a user, median, the wait included")
    panel.set_ylabel("dollars per million output tokens" if dollars else "output tokens/s of a GPU")
    panel.set_ylim(bottom=0.0)
    panel.set_xlim(left=0.0)
    if legend:
        panel.legend(facecolor="white", framealpha=0.9, edgecolor="none", fontsize=8)
    page.plain(panel, "both")


def _place(spot: Spot, dollars: bool) -> tuple[float, float]:
    return spot.user_tokens_per_second, _height(spot, dollars) or 0.0


def _height(spot: Spot, dollars: bool) -> float | None:
    return spot.dollars_per_million if dollars else spot.gpu_tokens_per_second

"""The picture of a plan: cost against attainment, and how far a replica of each choice may be loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.domain.service import ServiceSpec
from holdfast.tools.plan.rows import Offer, Point, pareto, priced
from holdfast.tools.reports import frontier, page
from holdfast.tools.reports.frontier import COLOURS, MARKERS, Spot
from holdfast.tools.reports.page import GOOD, INK, MISSED, MUTED, STARTING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = (0.0, 0.5, 0.9, 0.95, 0.99, 0.995, 0.999)
LEAST_MISSED = 2e-4
"""Shares of misses below this are drawn as this: a plan counts some thousand requests."""


def picture(spec: ServiceSpec, rate_rps: float, found: Sequence[Offer]) -> bytes:
    """A PNG."""
    rows = max(3, len(found))

    def draw(figure: Figure) -> None:
        grid = figure.add_gridspec(3, 2, height_ratios=[3.6, 3.2, 0.32 * rows + 0.5])
        _front(figure.add_subplot(grid[0, :]), spec, found)
        is_priced = priced(found)
        panel = figure.add_subplot(grid[1, 0] if is_priced else grid[1, :])
        drawn = spots(found, spec.slo.objective)
        frontier.draw(panel, drawn, dollars=False, legend=not is_priced)
        panel.set_title("numbers: replicas, ×: misses the objective", fontsize=8, loc="left")
        if is_priced:
            frontier.draw(figure.add_subplot(grid[1, 1]), drawn, dollars=True)
        _replicas(figure.add_subplot(grid[2, :]), found)
        page.title(figure, *headline(spec, rate_rps, found))

    return page.picture(9.5, 8.0 + 0.32 * rows, draw, dots_per_inch=98)


def spots(found: Sequence[Offer], objective: float) -> list[Spot]:
    """Sizes that keep up with the load, by accelerator with its best batching: what a user gets, and a GPU gives."""
    spots = []
    for name in dict.fromkeys(offer.accelerator for offer in found):
        best = min(
            (offer for offer in found if offer.accelerator == name and offer.replicas),
            key=lambda offer: (offer.replicas or 0, -offer.saturation_rps),
            default=None,
        )
        spots += [] if best is None else [_spot(name, point, objective) for point in best.front if _keeps_up(point)]
    return spots


def _keeps_up(point: Point) -> bool:
    return point.output_tokens_per_second is not None and math.isfinite(point.user_tokens_per_second or math.nan)


def _spot(name: str, point: Point, objective: float) -> Spot:
    whole = point.output_tokens_per_second or 0.0
    dollars = None if point.cost_per_hour is None else 1e6 * point.cost_per_hour / (3600.0 * whole)
    user, missed = point.user_tokens_per_second or 0.0, point.attainment < objective
    return Spot(name, user, whole / point.gpus, dollars, f"{point.replicas}", missed)


def headline(spec: ServiceSpec, rate_rps: float, found: Sequence[Offer]) -> tuple[str, bool]:
    """The load and the cheapest size that attains the objective; whether there is one."""
    asked, objective = f"{spec.model_uri} at {rate_rps:.3g} req/s", f"{100 * spec.slo.objective:g} % good"
    enough = next(((each, point) for each, point in pareto(found) if point.attainment >= spec.slo.objective), None)
    if enough is None:
        return f"{asked}: no size here gives {objective}", False
    offer, point = enough
    cost = "" if point.cost_per_hour is None else f", ${point.cost_per_hour:.2f}/h"
    gpus = f"{point.replicas} × {offer.accelerator}{cost}"
    return (
        f"{asked}: {gpus} gives {100 * point.attainment:.4g} % good, objective {objective.removesuffix(' good')}",
        True,
    )


def _front(panel: Axes, spec: ServiceSpec, found: Sequence[Offer]) -> None:
    """Every size of every choice, and above all a line through the sizes that nothing cheaper reaches."""
    dollars = priced(found)
    accelerators = list(dict.fromkeys(offer.accelerator for offer in found))
    for place, offer in enumerate(found):
        points = [point for point in offer.front if point.cost_per_hour is not None or not dollars]
        colour = COLOURS[accelerators.index(offer.accelerator) % len(COLOURS)]
        panel.plot(
            [_cost(point, dollars) for point in points],
            [_height(point.attainment) for point in points],
            color=colour,
            marker=MARKERS[place % len(MARKERS)],
            markersize=4.5,
            linewidth=0.8,
            alpha=0.75,
            label=offer.name + (" (default)" if offer.default_batching else ""),
        )
    best = pareto(found)
    corners = [(_cost(point, dollars), _height(point.attainment)) for _, point in best]
    panel.step(
        [cost for cost, _ in corners],
        [height for _, height in corners],
        where="post",
        color=INK,
        linewidth=2.2,
        alpha=0.35,
        zorder=1,
        label="nothing cheaper attains more",
    )
    for (offer, point), (cost, height) in zip(best, corners, strict=True):
        panel.annotate(
            f"{point.replicas} × {offer.accelerator}",
            (cost, height),
            xytext=(4, -11),
            textcoords="offset points",
            fontsize=8,
            color=INK,
        )
    panel.axhline(_height(spec.slo.objective), color=MISSED, linewidth=1.0, linestyle=page.BOUND)
    panel.set_yticks([_height(share) for share in SHARES], [f"{100 * share:g} %" for share in SHARES])
    panel.set_ylim(-0.1, _height(1.0) + 0.15)
    panel.set_ylabel("good requests (dashed: objective)")
    panel.set_xlabel("dollars an hour" if dollars else "GPUs (no prices known)")
    if not dollars:
        page.whole(panel.xaxis)
    page.plain(panel)
    panel.legend(loc="lower right", facecolor="white", framealpha=0.9, edgecolor="none", fontsize=8)


def _replicas(panel: Axes, found: Sequence[Offer]) -> None:
    """One row per choice: where it is best run, what it carries at the objective, where it saturates."""
    for row, offer in enumerate(found):
        low, high = offer.operating_range_rps
        panel.barh(row, offer.saturation_rps, height=0.5, color=STARTING, alpha=0.5, linewidth=0)
        best: page.Style = {"facecolor": GOOD, "alpha": 0.55, "hatch": "///", "edgecolor": "white", "linewidth": 0}
        panel.barh(row, high - low, left=low, height=0.5, **best)
        panel.errorbar(
            offer.simulated.rate_rps, row, xerr=offer.simulated.error_rps, fmt="D", color=INK, markersize=5, capsize=3
        )
        panel.annotate(
            _limits(offer), (offer.saturation_rps, row), xytext=(14, -3), textcoords="offset points", fontsize=8
        )
    panel.set_yticks(range(len(found)), [offer.name for offer in found])
    panel.set_ylim(len(found) - 0.4, -0.6)
    panel.set_xlim(0.0, 1.6 * max(offer.saturation_rps for offer in found) or 1.0)
    panel.set_xlabel(
        "req/s a replica: hatched 50-70 % of saturation, diamond the most at the objective, end saturation"
    )
    page.plain(panel, "x")
    panel.tick_params(axis="y", length=0, colors=MUTED)


def _limits(offer: Offer) -> str:
    bound = f"{offer.bound_by}, {'memory' if offer.memory_bound else 'compute'}-bound"
    if offer.tokens_per_dollar is None:
        return bound
    return f"{bound}, {offer.tokens_per_dollar / 1e6:.3g} M tokens/$"


def _cost(point: Point, dollars: bool) -> float:
    return (point.cost_per_hour or 0.0) if dollars else float(point.gpus)


def _height(attainment: float) -> float:
    """Equal steps for 90, 99 and 99.9 %."""
    return -math.log10(max(1.0 - attainment, LEAST_MISSED))

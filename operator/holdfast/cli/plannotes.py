"""What the table of `holdfast plan` cannot hold: limits of the spec, guesses, what a plain Service makes of sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.api.quantities import counted
from holdfast.domain.service import ServiceSpec
from holdfast.enginemodel.acceleratornames import taken_for
from holdfast.enginemodel.phases import Roofs
from holdfast.enginemodel.prior import PriorSource
from holdfast.tools.plan.plan import MOST_SPREAD_REPLICAS
from holdfast.tools.plan.rows import Offer, priced
from holdfast.tools.plan.spec_bounds import floor, most_replicas, on_demand_pair

DEFAULT, GUESSED = "*", "?"
AS_IN_SPEC = f"{DEFAULT} as in the spec; run it at 50 to 70 % of saturation, if the objectives are met there"


def notes(spec: ServiceSpec, found: Sequence[Offer], recorded: bool, by_class: bool = False) -> list[str]:
    """Lines below the table; sizes were played with `recorded` requests, or with random ones, and planned for the
    hardest class where they are `by_class`."""
    return [
        *([AS_IN_SPEC] if any(offer.default_batching for offer in found) else []),
        *_guesses(found),
        *_unknown(spec, by_class),
        *_rooflines(found),
        *_taken(spec),
        *_limits(spec, found),
        *_refusals(spec, found),
        *_unpriced(found),
        *(_spread(offer, recorded and not by_class) for offer in found if not offer.spread_holds),
        *_unplayed(found),
        *dict.fromkeys(offer.impossible for offer in found if offer.impossible),
    ]


def _guesses(found: Sequence[Offer]) -> Iterator[str]:
    guessed = {offer.accelerator: offer.source for offer in found if offer.source != PriorSource.TABLE}
    for name, source in guessed.items():
        why = "computed from data sheets" if source == PriorSource.ROOFLINE else "guessed: model or accelerator unknown"
        yield f"{GUESSED} {name}: step times are not measured, but {why}"


def _unknown(spec: ServiceSpec, by_class: bool) -> Iterator[str]:
    """What the simulated replica lacks of the declared one."""
    if spec.slo.classes and not by_class:
        yield "classes are not planned for without --class NAME=20%: all requests have the service's own objectives"
    for option in spec.accelerators:
        if option.nodes > 1:
            why = "the speed of the link between nodes is unknown"
            spread = "; each layer waits for it: set parallelism.tensor to those of one node, and pipeline"
            told = f"{option.name}: planned as if all GPUs were on one node, because {why}"
            yield told + spread * (option.tensor > option.gpus_per_pod)


def _rooflines(found: Sequence[Offer]) -> Iterator[str]:
    """What binds each phase, of one choice of batching for each accelerator."""
    first: dict[str, Offer] = {}
    for offer in found:
        if offer.roofline and (offer.default_batching or offer.accelerator not in first):
            first[offer.accelerator] = offer
    for offer in first.values():
        told = "; ".join(f"{phase} {_position(roofs)}" for phase, roofs in offer.roofline.items())
        yield f"{offer.name}: {told}"


def _position(roofs: Roofs) -> str:
    bound = "compute" if roofs.compute_bound else "memory"
    shares = f"{100 * roofs.flops_share:.3g} % of FLOP/s, {100 * roofs.bandwidth_share:.3g} % of bandwidth"
    return f"{bound}-bound ({shares})"


def _taken(spec: ServiceSpec) -> Iterator[str]:
    """Names that are only like that of a known accelerator."""
    for option in spec.accelerators:
        shape = None if option.hardware else taken_for(option.name, dict(option.node_selector), option.resource)
        if shape is not None:
            remedy = "if it is another GPU, describe it in accelerators[].hardware"
            yield f"{option.name}: taken for {shape.system} by its name; {remedy}"


def _limits(spec: ServiceSpec, found: Sequence[Offer]) -> Iterator[str]:
    """Where the spec allows less than is needed, or asks for more."""
    for option in spec.accelerators:
        most, field = most_replicas(spec, option.name)
        sized = [offer for offer in found if offer.accelerator == option.name and offer.replicas]
        if not sized:
            continue
        least = min(sized, key=lambda offer: offer.replicas or 0)
        if (least.replicas or 0) > most:
            needed = counted(least.replicas or 0, "replica", "is needed", "are needed")
            remedy = "raise it" if not least.relaxed else _relaxed(spec, found, least)
            yield f"{option.name}: {needed}, but {field} allows {most}; {remedy}"
        if least.carriers < (least.replicas or 0) <= floor(spec, option):
            yield f"{option.name}: the load alone needs {least.carriers}, the spec requires {least.replicas}"
        pair = on_demand_pair(spec, option)
        if pair is not None:
            told = f"{counted(pair.most, 'replica', 'is', 'are')} on {pair.accelerator} (scaling.minOnDemand)"
            yield f"{option.name}: {told}; the price includes both"


def _relaxed(spec: ServiceSpec, found: Sequence[Offer], least: Offer) -> str:
    """What to do where only almost idle replicas keep the objectives: others, or another accelerator."""
    within = [each for each in found if each.replicas and each.replicas <= most_replicas(spec, each.accelerator)[0]]
    told = (
        f"each would be almost idle ({100 * (least.load or 0.0):.2g} % of saturation): these objectives are too tight "
        f"for {least.accelerator}; at 50 % of saturation it keeps {least.relaxed}"
    )
    if not within:
        return told
    other = min(within, key=lambda each: (each.cost_per_hour or 0.0, each.replicas or 0))
    return f"{told}; or use {other.accelerator}, which keeps them with {counted(other.replicas or 0, 'replica')}"


def _unpriced(found: Sequence[Offer]) -> Iterator[str]:
    """Where others have a price, and cost is compared by prices."""
    unknown = dict.fromkeys(offer.accelerator for offer in found if offer.replicas and offer.cost_per_hour is None)
    if priced(found):
        yield from (
            f"{name}: without a price it is not compared by cost; give --cost {name}=DOLLARS" for name in unknown
        )


def _refusals(spec: ServiceSpec, found: Sequence[Offer]) -> Iterator[str]:
    limit = "need more KV cache than the engine has" + (
        ", or are longer than model.maxModelLen" if spec.max_model_len else ""
    )
    refused = {offer.accelerator: offer.refused_share for offer in found if offer.replicas}
    for name, share in refused.items():
        if share > 0.0:
            yield f"{name}: {100 * share:.3g} % of these requests {limit}; they are rejected and count as bad"


def _unplayed(found: Sequence[Offer]) -> Iterator[str]:
    if any((offer.replicas or 0) > MOST_SPREAD_REPLICAS for offer in found):
        yield (
            f"Sizes above {MOST_SPREAD_REPLICAS} replicas are not simulated behind a plain Service, which spreads "
            "requests unevenly and needs more replicas; use a router that spreads requests evenly"
        )


def _spread(offer: Offer, recorded: bool) -> str:
    """That requests which fall unevenly on replicas, or come in bursts, take more of them."""
    price = "" if offer.spread_cost_per_hour is None else f" for ${offer.spread_cost_per_hour:.2f}/h"
    enough = (
        "twice as many replicas miss the objective too"
        if offer.spread_replicas is None
        else f"the objective needs {offer.spread_replicas}{price}"
    )
    share = 100.0 * (offer.spread_attainment or 0.0)
    how = ", with the recorded requests" if recorded else ""
    return (
        f"{offer.name}: behind a plain Service, which spreads requests unevenly{how}: {share:.2f} % good with "
        f"{offer.replicas}; {enough}"
    )

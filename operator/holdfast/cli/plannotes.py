"""What the table of `holdfast plan` cannot hold: limits of the spec, guesses, what a plain Service makes of sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.enginemodel.prior import PriorSource
from holdfast.policy.sizing import affordable_replicas
from holdfast.policy.spot import keepers
from holdfast.simulator.twin.offers import Offer
from holdfast.simulator.twin.plan import MOST_SPREAD_REPLICAS

DEFAULT, GUESSED = "*", "?"


def notes(spec: ServiceSpec, found: Sequence[Offer], recorded: bool) -> list[str]:
    """Lines below the table; sizes were played with `recorded` requests, or with random ones."""
    return [
        f"{DEFAULT} as the spec has it; best run at 50 to 70 % of saturation, as far as that keeps the objectives",
        *_guesses(found),
        *_limits(spec, found),
        *_refusals(spec, found),
        *(_spread(offer, recorded) for offer in found if not offer.spread_holds),
        *_unplayed(found),
        *(offer.impossible for offer in found if offer.impossible),
    ]


def most_replicas(spec: ServiceSpec, accelerator: str) -> tuple[int, str]:
    """How many replicas the spec allows there, and which of its fields says so."""
    option = next(each for each in spec.accelerators if each.name == accelerator)
    bounds = [(spec.max_replicas, "scaling.max")]
    if option.max_replicas is not None:
        bounds.append((option.max_replicas, f"accelerators[{spec.accelerators.index(option)}].max"))
    if spec.max_cost_per_hour is not None and option.cost_per_replica_hour:
        affordable = affordable_replicas(spec.max_cost_per_hour, option.cost_per_replica_hour)
        bounds.append((affordable, "budget.maxCostPerHour"))
    return min(bounds)


def _guesses(found: Sequence[Offer]) -> Iterator[str]:
    guessed = {offer.accelerator: offer.source for offer in found if offer.source != PriorSource.TABLE}
    for name, source in guessed.items():
        why = "computed from data sheets" if source == PriorSource.ROOFLINE else "guessed: model or accelerator unknown"
        yield f"{GUESSED} {name}: step times are not measured but {why}"


def _limits(spec: ServiceSpec, found: Sequence[Offer]) -> Iterator[str]:
    """Where the spec allows less than is needed, or makes more of it."""
    for option in spec.accelerators:
        most, field = most_replicas(spec, option.name)
        sizes = [offer.replicas for offer in found if offer.accelerator == option.name and offer.replicas is not None]
        if sizes and min(sizes) > most:
            yield f"{option.name}: {min(sizes)} replicas are needed, and {field} allows {most}: raise it"
        if sizes and option.spot and spec.min_on_demand:
            yield _on_demand(spec, option, min(sizes))


def _refusals(spec: ServiceSpec, found: Sequence[Offer]) -> Iterator[str]:
    limit = "need more KV cache than it has" + (", or are longer than model.maxModelLen" if spec.max_model_len else "")
    refused = {offer.accelerator: offer.refused_share for offer in found if offer.replicas}
    for name, share in refused.items():
        if share > 0.0:
            yield f"{name}: {100 * share:.3g} % of these requests {limit}: refused, so bad"


def _unplayed(found: Sequence[Offer]) -> Iterator[str]:
    if any((offer.replicas or 0) > MOST_SPREAD_REPLICAS for offer in found):
        yield (
            f"Sizes above {MOST_SPREAD_REPLICAS} replicas are not played behind a plain Service, which spreads "
            "requests unevenly and takes more of them: count on these with a router that spreads evenly"
        )


def _on_demand(spec: ServiceSpec, spot: AcceleratorOption, replicas: int) -> str:
    """What scaling.minOnDemand makes of a size on spot nodes."""
    floor, beside = spec.min_on_demand, keepers(spec, spot)
    if not beside:
        return f"{spot.name}: no regular accelerator beside it can keep scaling.minOnDemand, so that it is never chosen"
    regular = min(beside, key=lambda option: option.cost_per_replica_hour or 0.0)
    told = f"{spot.name}: {floor} replicas stay on {regular.name} (scaling.minOnDemand)"
    if spot.cost_per_replica_hour is None or regular.cost_per_replica_hour is None:
        return told
    cost = floor * regular.cost_per_replica_hour + max(0, replicas - floor) * spot.cost_per_replica_hour
    return f"{told}: {max(replicas, floor)} on both cost ${cost:.2f}/h"


def _spread(offer: Offer, recorded: bool) -> str:
    """That requests which fall unevenly on replicas, or come in bursts, take more of them."""
    price = "" if offer.spread_cost_per_hour is None else f" for ${offer.spread_cost_per_hour:.2f}/h"
    enough = (
        "twice as many miss the objective too"
        if offer.spread_replicas is None
        else f"the objective needs {offer.spread_replicas}{price}"
    )
    share = 100.0 * (offer.spread_attainment or 0.0)
    how = ", with the requests as they came" if recorded else ""
    return (
        f"{offer.accelerator}, {offer.limits.max_num_batched_tokens} tokens/step: behind a plain Service, which "
        f"spreads requests unevenly{how}: {share:.2f} % good with {offer.replicas}; {enough}"
    )

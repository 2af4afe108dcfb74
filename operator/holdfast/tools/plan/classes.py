"""A plan for a service with classes: what the hardest of them needs decides, as in the cluster.

A class waits for requests of its own and higher priorities only, at the pace of the tightest TPOT. So a replica of the
mix is planned as one that gets these requests alone, by the bounds of the class (designs/0030). Batch asks for none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from holdfast.api.llmservice import LLMServiceSpec
from holdfast.api.quantities import parse_percent
from holdfast.domain.service import ServiceSpec
from holdfast.enginemodel.class_mix import each_class, shares_ahead
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.replica_model import StepLawModel
from holdfast.tools.plan.rows import Offer
from holdfast.twin.replica.capacity import SimulatedRate
from holdfast.twin.scenarios.declared_service import class_numbers
from holdfast.twin.scenarios.inputs import BadInput


@dataclass(frozen=True, slots=True)
class Demand:
    """The part of all requests that is no batch, and the share of each class in these; "" is the service's own."""

    part: float
    shares: Mapping[str, float]


def demand_of(spec: LLMServiceSpec, shares: Mapping[str, float]) -> Demand:
    """What these shares of all requests ask for; BadInput for classes that no request can have, or more than all."""
    class_numbers(spec, shares)
    batch = {each.name for each in spec.slo.classes if each.kind == "Batch"}
    part = 1.0 - sum(share for name, share in shares.items() if name in batch)
    own = 1.0 - sum(shares.values())
    if own < -1e-9 or part <= 1e-9:
        raise BadInput("--class: the shares leave no requests besides batch, or are more than 100 % together")
    # What is beyond maxShare has the service's own class. It is a share of tokens, so of requests of the same lengths.
    most = {each.name: parse_percent(each.max_share) for each in spec.slo.classes if each.max_share is not None}
    within = {name: min(share, most.get(name, 1.0)) for name, share in shares.items() if name not in batch}
    found = {"": max(0.0, part - sum(within.values())), **within}
    return Demand(part, {name: share / part for name, share in found.items()})


@dataclass(frozen=True, slots=True)
class Hardest:
    """The class that decides on one accelerator: the service with its objectives alone, and the share of the requests
    that it waits for, its own among them."""

    name: str
    spec: ServiceSpec
    ahead: float

    def told(self, part: float) -> str:
        """What the numbers of the accelerator are for."""
        slo, (option,) = self.spec.slo, self.spec.accelerators
        who = f"class {self.name}" if self.name else "requests without a class"
        batch = f"; {100.0 * (1.0 - part):.3g} % batch ask for no replicas" if part < 1.0 else ""
        return (
            f"{option.name}: sized for {who}, {100.0 * slo.objective:g} % with TTFT ≤ {slo.ttft_seconds:g} s, TPOT ≤ "
            f"{1000.0 * slo.tpot_seconds:g} ms: {100.0 * self.ahead:.3g} % of the requests have its priority or a "
            f"higher one; good shares are those of the class{batch}"
        )


def hardest(spec: ServiceSpec, mix: LengthMix, demand: Demand) -> tuple[Hardest, ...]:
    """Of each accelerator, by the closed form; a class that cannot be met even without load comes first."""
    return tuple(_hardest(replace(spec, accelerators=(option,)), mix, demand) for option in spec.accelerators)


def _hardest(spec: ServiceSpec, mix: LengthMix, demand: Demand) -> Hardest:
    found = StepLawModel().rate(spec, spec.accelerators[0], mix, 1.0).of_mix(demand.shares)
    slo = next(each for each in each_class(spec.slo) if each.name == found.name)
    return Hardest(found.name, replace(spec, slo=slo), shares_ahead(spec.slo, demand.shares).get(found.name, 1.0))


def planned(
    found: Hardest, rate_rps: float, offers: Callable[[ServiceSpec, float], tuple[Offer, ...]]
) -> tuple[Offer, ...]:
    """The offers for requests of all classes at this rate, batch left out."""
    return tuple(_of_all(offer, found.ahead) for offer in offers(found.spec, rate_rps * found.ahead))


def _of_all(offer: Offer, ahead: float) -> Offer:
    """An offer that was made for a share of the requests, in requests of all classes."""
    carried, price = offer.simulated, offer.cost_per_million_tokens
    return replace(
        offer,
        formula_rps=offer.formula_rps / ahead,
        simulated=SimulatedRate(carried.rate_rps / ahead, carried.error_rps / ahead),
        load=None if offer.load is None else offer.load / ahead,
        cost_per_million_tokens=None if price is None else price * ahead,
        front=tuple(
            replace(point, output_tokens_per_second=tokens / ahead)
            if (tokens := point.output_tokens_per_second) is not None
            else point
            for point in offer.front
        ),
    )

"""`holdfast plan --class`: the class that needs most decides, and batch asks for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.api.llmservice import LLMService
from holdfast.domain.service import ServiceSpec
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.replica_model import StepLawModel
from holdfast.observe.objects.spec import to_spec
from holdfast.tools.plan.classes import Hardest, demand_of, hardest, planned
from holdfast.tools.plan.rows import Offer, Point
from holdfast.twin.replica.capacity import SimulatedRate
from holdfast.twin.scenarios.inputs import BadInput

MIX = LengthMix.from_pairs([(1155.0, 211.0)])
PREMIUM: dict[str, Any] = {"name": "premium", "ttft": "400ms", "objective": "99.9%", "priority": 10}
NIGHTLY: dict[str, Any] = {"name": "nightly", "kind": "Batch"}


def _service(*classes: dict[str, Any], **model: Any) -> LLMService:
    spec = {
        "model": {"uri": "Qwen/Qwen3-8B", **model},
        "slo": {"ttft": "2s", "tpot": "50ms", "objective": "99%", "classes": list(classes)},
        "accelerators": [{"name": "h100"}],
    }
    return LLMService.parse({"metadata": {"name": "chat", "namespace": "default", "uid": "1"}, "spec": spec})


def _hardest(shares: dict[str, float], *classes: dict[str, Any]) -> tuple[Hardest, ServiceSpec]:
    service = _service(*classes)
    (found,) = hardest(to_spec(service), MIX, demand_of(service.spec, shares))
    return found, to_spec(service)


def test_batch_is_no_demand_and_shares_are_of_the_rest() -> None:
    found = demand_of(_service(PREMIUM, NIGHTLY).spec, {"premium": 0.2, "nightly": 0.3})
    assert found.part == pytest.approx(0.7)
    assert found.shares == pytest.approx({"": 0.5 / 0.7, "premium": 0.2 / 0.7})


def test_what_exceeds_the_share_of_a_class_has_no_class() -> None:
    found = demand_of(_service({**PREMIUM, "maxShare": "10%"}, NIGHTLY).spec, {"premium": 0.4, "nightly": 0.3})
    assert found.shares == pytest.approx({"": 0.6 / 0.7, "premium": 0.1 / 0.7})


def test_an_adapter_with_objectives_is_a_class_whatever_may_be_claimed() -> None:
    sql = {"name": "sql", "uri": "pvc://adapters/sql", "slo": {"ttft": "400ms", "objective": "99.9%", "priority": 10}}
    service = _service(lora={"adapters": [sql, {"name": "plain", "uri": "pvc://adapters/plain"}]})
    (found,) = hardest(to_spec(service), MIX, demand_of(service.spec, {"sql": 0.99}))
    (claimed, _) = _hardest({"premium": 0.99}, PREMIUM)
    assert (found.name, found.ahead, found.spec.slo.ttft_seconds) == ("sql", claimed.ahead, 0.4)
    with pytest.raises(BadInput, match="'plain' is no class"):
        demand_of(service.spec, {"plain": 0.5})


@pytest.mark.parametrize(("share", "name"), [(0.05, ""), (0.99, "premium")])
def test_the_class_decides_whose_rate_over_its_share_is_the_least(share: float, name: str) -> None:
    found, spec = _hardest({"premium": share}, PREMIUM)
    each = StepLawModel().rate(spec, spec.accelerators[0], MIX, 1.0).by_class
    own, premium = (rate.rate_rps for rate in each)
    assert (own <= premium / share) == (name == "")
    assert found.name == name
    assert found.ahead == pytest.approx(1.0 if name == "" else share)


def test_a_tight_class_of_the_lowest_priority_is_sized_with_all_requests_before_it() -> None:
    found, _ = _hardest({"premium": 0.2}, {**PREMIUM, "priority": -10})
    assert (found.name, found.ahead) == ("premium", 1.0)
    assert found.spec.slo.ttft_seconds == 0.4


def test_the_pace_of_all_is_the_tightest_tpot_declared() -> None:
    found, _ = _hardest({"premium": 0.02}, {**PREMIUM, "tpot": "30ms"})
    assert found.spec.slo.tpot_seconds == 0.03


def test_an_offer_for_a_share_is_told_in_requests_of_all_classes() -> None:
    asked: list[float] = []
    offer = Offer(
        accelerator="h100",
        default_batching=True,
        limits=BatchLimits(256, 2048),
        source="table",
        formula_rps=5.0,
        simulated=SimulatedRate(4.0, 0.1),
        bound_by="TTFT",
        memory_bound=True,
        saturation_rps=30.0,
        replicas=2,
        load=0.1,
        cost_per_million_tokens=3.0,
        front=(Point(2, 2, 0.99, 6.0, 50.0, 100.0),),
    )

    def offers(spec: ServiceSpec, rate_rps: float) -> tuple[Offer, ...]:
        asked.append(rate_rps)
        return (offer,)

    found, _ = _hardest({"premium": 0.2}, PREMIUM)
    (told,) = planned(replace(found, ahead=0.25), 20.0, offers)
    assert asked == [5.0]
    assert (told.formula_rps, told.simulated.rate_rps, told.load) == (20.0, 16.0, 0.4)
    assert (told.replicas, told.saturation_rps) == (2, 30.0)
    assert told.cost_per_million_tokens == 0.75
    assert told.front[0].output_tokens_per_second == 400.0


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ({"gold": 0.2}, "'gold' is no class of slo.classes and no adapter with an slo: give one of premium, nightly"),
        ({"nightly": 1.0}, "leave no requests besides batch"),
        ({"premium": 0.8, "nightly": 0.4}, "more than 100 % together"),
    ],
)
def test_shares_without_a_plan_are_refused(shares: dict[str, float], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        demand_of(_service(PREMIUM, NIGHTLY).spec, shares)

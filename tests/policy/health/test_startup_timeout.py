"""How long replicas may start: as the operator is set, or as one service says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.domain.decision import Decision
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from tests.builders import (
    NOW,
    ReplicaPhase,
    ServiceBuilder,
    ServiceView,
    a_snapshot,
    accelerator,
    node,
    replicas,
    service,
    sizes,
)
from tests.policy.fluid import FixedRates

OPTIONS = (
    accelerator("h100", cost_per_gpu_hour=1.2),
    accelerator("l40s", cost_per_gpu_hour=2.95, resource="other.com/gpu"),
)
NODES = (node("n1", 8), node("n2", 8, resource="other.com/gpu"))
MODEL = FixedRates({"h100": 3.0, "l40s": 8.9})


def named(name: str, startup_seconds: float | None) -> ServiceBuilder:
    of = service(name).with_accelerators(*OPTIONS)
    return ServiceBuilder(replace(of.spec, startup_seconds=startup_seconds))


def after(minutes: float, *services: ServiceBuilder) -> dict[str, Decision]:
    """The decisions about services whose only replica has been starting for that long."""
    starting = replicas(1, ReplicaPhase.STARTING, age=0.0)
    memory, found = Memory(), dict[str, Decision]()
    for at in (0.0, minutes * 60.0 - 5.0, minutes * 60.0):
        views = [ServiceView(of, replicas=starting) for of in services]
        decisions, memory = decide(a_snapshot(*views, now=NOW + at, nodes=NODES), memory, model=MODEL)
        found = {each.key.name: each for each in decisions}
    return found


@pytest.mark.parametrize(("minutes", "given_up"), [(29.0, set()), (31.0, {"small"}), (59.0, {"small"})])
def test_a_service_that_loads_for_long_has_its_own_time_and_the_one_beside_it_the_operators(
    minutes: float, given_up: set[str]
) -> None:
    decisions = after(minutes, named("large", 3600.0), named("small", None))
    assert {name for name, each in decisions.items() if sizes(each).get("l40s")} == given_up


def test_a_shorter_time_gives_up_earlier_and_says_when() -> None:
    decision = after(6.0, named("hasty", 300.0))["hasty"]
    assert sizes(decision).get("l40s") == 1
    assert any("not ready after 300 s" in each.message for each in decision.conditions)

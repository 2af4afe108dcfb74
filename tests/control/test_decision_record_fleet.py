"""Records of services that compete for GPUs: each one replays the decision without the competing services."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.control.status.decision_record import DecisionRecord, read, record_of, written
from holdfast.control.status.replay import decided_again
from holdfast.domain.service import AcceleratorOption, ServiceKey
from holdfast.policy.decide import decide, decide_alone
from holdfast.policy.memory import FleetContext
from tests.builders import ServiceBuilder, accelerator, service
from tests.policy.contest import RATE_RPS, SETTINGS, Contest
from tests.policy.fluid import FixedRates

KINDS = ("a", "b")
SAME = {f"{kind}-next": kind for kind in KINDS}
MODEL = FixedRates(dict.fromkeys([*KINDS, *SAME], RATE_RPS))


class Recorded(Contest):
    """A contest that replays the record of every service at every tick; `records` are those of decisions."""

    records: list[DecisionRecord]

    def run(self, seconds: float) -> None:
        self.records = getattr(self, "records", [])
        for _ in range(int(seconds / 5.0)):
            snapshot, before = self.snapshot(), self.memory
            contexts: dict[ServiceKey, FleetContext] = {}
            decisions, self.memory = decide(snapshot, before, SETTINGS, MODEL, recorded=contexts.__setitem__)
            made = {decision.key: decision for decision in decisions}
            for key, context in contexts.items():
                kept = record_of(key, snapshot, before, SETTINGS, context)
                again = read(written(kept))
                assert again == kept
                assert decided_again(again, MODEL) == made.get(key)
                _, remembered = decide_alone(again.snapshot, again.memory, again.context, SETTINGS, MODEL)
                assert remembered == self.memory.services[key]
                self.records.append(again)
            for decision in decisions:
                self._apply(decision)
            self.now += 5.0
            self._age()
            self._schedule()

    def contexts(self, of: Callable[[FleetContext], object]) -> int:
        """How many decisions were made in such a context."""
        return sum(bool(of(record.context)) for record in self.records)


def on(name: str, kind: str, gpus: int = 1) -> AcceleratorOption:
    return accelerator(name, node_selector=(("kind", kind),), gpus_per_replica=gpus)


def a_service(draw: random.Random, name: str) -> tuple[ServiceBuilder, float, int]:
    """A service on one or two accelerators, its requests per second and its replicas; some sizes are held by people."""
    kind, size = draw.choice(KINDS), draw.choice([1, 2, 3])
    built = service(name, draw.choice(["prod", "test"])).with_replicas_between(1, 8).with_ttft(draw.uniform(0.3, 0.9))
    first, second = on(kind, kind, draw.choice([1, 1, 2])), draw.choice([name for name in KINDS if name != kind])
    options = (first, on(second, second)) if draw.random() < 0.6 else (first,)
    built = built.with_accelerators(*options).with_priority(draw.choice([-5, 0, 10]))
    held = draw.random()
    built = built.pinned_to(size) if held < 0.15 else built.recommending() if held < 0.3 else built
    return built, draw.choice([0.5, 2.0, 4.0]) * size * RATE_RPS, size


def a_fleet(seed: int) -> Recorded:
    draw = random.Random(seed)
    services = {f"s{index}": a_service(draw, f"s{index}") for index in range(draw.choice([4, 6, 8]))}
    offered = {kind: draw.choice([4, 6, 8]) for kind in KINDS}
    cold, drain = draw.choice([0.0, 40.0]), draw.choice([0.0, 30.0])
    return Recorded(offered, services, same=SAME, cold_seconds=cold, drain_seconds=drain)


@pytest.mark.parametrize("seed", range(6))
def test_every_decision_under_competition_is_replayed_from_its_record(seed: int) -> None:
    fleet = a_fleet(seed)
    fleet.run(150.0)
    for name, rate in fleet.rates.items():
        fleet.rates[name] = rate * random.Random(f"{seed}{name}").choice([0.3, 1.0, 3.0])
    fleet.run(100.0)
    assert fleet.contexts(lambda context: context.allocation)


def test_what_another_service_gives_up_is_in_the_record() -> None:
    fleet = a_fleet(3)
    fleet.run(150.0)
    assert fleet.contexts(lambda context: context.promise)


@pytest.mark.parametrize("held", [service("held").pinned_to(2), service("held").recommending()])
def test_a_size_that_people_hold_is_replayed_among_services_that_give_way(held: ServiceBuilder) -> None:
    other = service("other").with_accelerators(on("a", "a"))
    services = {"held": (held.with_accelerators(on("a", "a")), 12.0, 2), "other": (other, 16.0, 1)}
    fleet = Recorded({"a": 4}, services)
    fleet.run(150.0)
    assert fleet.contexts(lambda context: context.allocation)
    assert any(record.snapshot.services[0].spec == services["held"][0].spec for record in fleet.records)


def test_a_move_to_another_accelerator_is_replayed() -> None:
    chat = service("chat").with_priority(10).with_accelerators(on("a", "a"))
    batch = service("batch").with_accelerators(on("a", "a"), on("b", "b"))
    fleet = Recorded({"a": 8, "b": 8}, {"batch": (batch, 16.0, 5), "chat": (chat, 24.0, 2)})
    fleet.run(200.0)
    assert fleet.contexts(lambda context: context.allocation and context.allocation.moves_to == "b")


@pytest.mark.parametrize("pinned", [False, True])
def test_a_migration_on_the_same_nodes_is_replayed(pinned: bool) -> None:
    """Targets take the slots of sources, beside another service that lacks what it must have."""
    before, after = on("a", "a"), on("a-next", "a")
    moving = service("moving").with_replicas_between(2, 3).with_accelerators(before, after)
    moving = moving.pinned_to(2) if pinned else moving
    other = service("other").with_replicas_between(3, 6).with_accelerators(before)
    fleet = Recorded({"a": 4}, {"moving": (moving, 1.0, 2), "other": (other, 1.0, 2)}, same={"a-next": "a"})
    fleet.run(100.0)
    fleet.builders["moving"] = moving.with_accelerators(replace(before, max_replicas=0), after)
    fleet.run(60.0)
    fleet.offered["a"] += 2
    fleet.run(200.0)
    assert fleet.running("moving", "a-next") == 2


def test_questions_to_the_engine_model_beyond_the_limit_of_a_tick_stay_unanswered() -> None:
    """Each service asks others: its objective is its own."""
    draw = random.Random(1)
    several = {f"s{index:02}": a_service(draw, f"s{index:02}") for index in range(40)}
    fleet = Recorded({"a": 60, "b": 60}, several)
    fleet.run(15.0)
    assert fleet.contexts(lambda context: context.unanswered)


def test_a_record_names_no_service_of_another_namespace() -> None:
    here = service("chat").with_accelerators(on("a", "a"))
    there = service("secret", "finance").with_priority(10).with_accelerators(on("a", "a"))
    fleet = Recorded({"a": 4}, {"chat": (here, 12.0, 2), "secret": (there, 14.0, 2)})
    fleet.run(150.0)
    records = [record for record in fleet.records if record.snapshot.services[0].spec.key == here.spec.key]
    assert any(
        record.context.allocation and "1 service in other namespaces" in record.context.allocation.sentence
        for record in records
    )
    assert not any(name in str(record) for record in records for name in ("secret", "finance"))
    assert all(len(written(record)) < 8192 for record in fleet.records)

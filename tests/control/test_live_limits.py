"""Limits reach engines while they serve, once, under versions that every leader agrees on."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from holdfast.act.api import ApiError, ApiUnreachable, NotLeading, WhileLeading
from holdfast.api.llmservice import LLMService
from holdfast.control.bounded_work import MOST_IN_A_TICK
from holdfast.control.limits.live_limits import UNSEEN, LiveLimits
from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.engine import EngineState, PluginMode
from holdfast.domain.signals import SignalState, Traffic
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.observe.objects.engines import EnginePod, limits_from
from holdfast.render.engine_limits import engine_limits
from holdfast.rendered.names import LIMITS_ANNOTATION
from holdfast_engine.objectives.rules import Limits
from tests.control.parts import llmservice, parts
from tests.fakes import FakeApi

PODS = "/api/v1/namespaces/prod/pods"
SCRAPE = 15.0
NOW = 1_000.0


class World:
    """Pods with engines that take what their annotation says, as the plugin does, and report it at once."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.service = llmservice()
        self.config_map: dict[str, Limits] = {}
        self.in_force: dict[str, Limits] = {}
        self.modes: dict[str, PluginMode] = {}
        self.deaf: set[str] = set()
        self.now = NOW

    def start(self, *names: str, accelerator: str = "h100") -> None:
        for name in names:
            labels = {"holdfast.dev/accelerator": accelerator}
            self.api.put_object(f"{PODS}/{name}", {"metadata": {"name": name, "labels": labels}})

    def annotate(self, name: str, text: str) -> None:
        """Somebody else edits the annotation."""
        self.api.edit(f"{PODS}/{name}", {"metadata": {"annotations": {LIMITS_ANNOTATION: text}}})

    def annotation(self, name: str) -> Limits | None:
        meta = self.api.objects[f"{PODS}/{name}"]["metadata"]
        return limits_from(meta.get("annotations", {}).get(LIMITS_ANNOTATION))

    @property
    def part(self) -> ServiceParts:
        """What the watches show now."""
        found = {path.removeprefix(f"{PODS}/"): body["metadata"] for path, body in self.api.objects.items()}
        engines = [
            EnginePod(name, meta["uid"], meta["labels"]["holdfast.dev/accelerator"], self.annotation(name))
            for name, meta in found.items()
        ]
        pods = [Replica(each.pod, each.accelerator, ReplicaPhase.READY, 0.0) for each in engines]
        return dataclasses.replace(
            parts(self.service), replicas=tuple(pods), engines=tuple(engines), limits=tuple(self.config_map.items())
        )

    def work(self) -> None:
        """Every engine looks at its files."""
        for engine in self.part.engines:
            known = [self.in_force.get(engine.pod), self.config_map.get(engine.accelerator), engine.told]
            usable = [limits for limits in known if limits is not None]
            if usable and engine.pod not in self.deaf:
                self.in_force[engine.pod] = max(usable, key=lambda limits: limits.version)

    @property
    def traffic(self) -> Traffic:
        """What Prometheus shows now."""
        states = [
            EngineState(pod, self.modes.get(pod, PluginMode.ACTIVE), limits.version, 96.0, 2048.0)
            for pod, limits in sorted(self.in_force.items())
        ]
        return Traffic(SignalState.FRESH, plugins=tuple(states))

    async def tick(self, live: LiveLimits, traffic: Traffic | None = None) -> int:
        """One look and what follows from it, rendering included; the number of writes to pods."""
        self.now += 5.0
        before, part = len(self.api.writes()), self.part
        live.look(part, traffic or self.traffic, self.now)
        self.config_map = dict(live.wanted(part))
        await live.write([part], self.now)
        self.work()
        return len(self.api.writes()) - before

    def edit_slo(self, ttft: str) -> None:
        generation = self.service.metadata.generation + 1
        self.service = llmservice(generation=generation, slo={"ttft": ttft, "tpot": "50ms"})

    def version(self, name: str) -> int:
        limits = self.annotation(name)
        assert limits is not None
        return limits.version


@pytest.fixture
def world() -> World:
    world = World()
    world.start("a", "b")
    return world


def operator(world: World, api: Any = None) -> LiveLimits:
    return LiveLimits(api or world.api, engine_limits, SCRAPE)


async def test_every_engine_is_told_once_and_then_left_alone(world: World) -> None:
    live = operator(world)
    assert await world.tick(live) == 2
    assert [await world.tick(live) for _ in range(50)] == [0] * 50
    told = world.annotation("a")
    assert told is not None
    assert told.objectives.ttft_seconds == 1.0
    assert told.prior is not None
    _, path, query, body = world.api.requests[0]
    assert (path, query) == (f"{PODS}/a", {"fieldManager": "holdfast-limits", "force": "true"})
    assert set(body["metadata"]) == {"name", "namespace", "uid", "annotations"}


async def test_an_edited_slo_reaches_every_engine_at_the_next_tick(world: World) -> None:
    live = operator(world)
    await world.tick(live)
    first = world.version("a")
    world.edit_slo("3s")
    assert await world.tick(live) == 2
    assert world.in_force["a"].objectives.ttft_seconds == 3.0
    assert world.version("a") > first


async def test_a_change_that_engines_do_not_care_about_writes_nothing(world: World) -> None:
    live = operator(world)
    await world.tick(live)
    world.service = llmservice(generation=2, scaling={"min": 2, "max": 5})
    assert await world.tick(live) == 0


async def test_a_restarted_operator_writes_nothing_and_keeps_the_version(world: World) -> None:
    await world.tick(operator(world))
    first = world.version("a")
    world.now += 86_400.0
    assert await world.tick(operator(world)) == 0
    world.edit_slo("3s")
    await world.tick(operator(world))
    assert world.version("a") > first


async def test_the_config_map_alone_remembers_the_version(world: World) -> None:
    await world.tick(operator(world))
    first = world.version("a")
    for name in ("a", "b"):
        del world.api.objects[f"{PODS}/{name}"]
    world.start("c")
    await world.tick(operator(world))
    assert world.version("c") == first


async def test_the_pods_alone_remember_the_version(world: World) -> None:
    await world.tick(operator(world))
    first = world.version("a")
    world.config_map.clear()
    assert await world.tick(operator(world)) == 0
    assert world.config_map["h100"].version == first


async def test_where_only_the_engines_remember_nobody_is_left_behind(world: World) -> None:
    await world.tick(operator(world))
    world.config_map.clear()
    for name in ("a", "b"):
        world.annotate(name, "")
    world.edit_slo("3s")
    world.now = 10.0  # a clock that was set back
    live = operator(world)
    await world.tick(live, UNSEEN)
    await world.tick(live)
    assert {limits.objectives.ttft_seconds for limits in world.in_force.values()} == {3.0}


async def test_a_last_write_of_the_old_leader_is_overtaken_by_the_new_one(world: World) -> None:
    old, new = operator(world), operator(world)
    await world.tick(old)
    stale = world.part
    world.edit_slo("2s")
    await world.tick(old)
    world.edit_slo("3s")
    world.now += 5.0
    # The new leader has not seen the second version yet.
    late = replace(stale, service=world.service, spec=world.part.spec)
    new.look(late, UNSEEN, world.now)
    await new.write([late], world.now)
    world.work()
    for _ in range(3):
        await world.tick(new)
    assert {limits.objectives.ttft_seconds for limits in world.in_force.values()} == {3.0}
    assert await world.tick(new) == 0


async def test_two_contents_under_one_version_end_with_a_third(world: World) -> None:
    live = operator(world)
    await world.tick(live)
    mine = world.annotation("a")
    assert mine is not None
    other = replace(mine, objectives=replace(mine.objectives, ttft_seconds=9.0))
    world.annotate("b", other.to_json())
    await world.tick(live)
    assert world.version("a") == world.version("b") > mine.version
    assert world.in_force["b"].objectives.ttft_seconds == 1.0


async def test_who_does_not_lead_writes_nothing(world: World) -> None:
    live = operator(world, WhileLeading(world.api, lambda: False))
    live.look(world.part, UNSEEN, NOW)
    with pytest.raises(NotLeading):
        await live.write([world.part], NOW)
    assert world.api.writes() == []


async def test_a_new_pod_is_told_alone(world: World) -> None:
    live = operator(world)
    await world.tick(live)
    del world.api.objects[f"{PODS}/a"]
    world.start("c")
    assert await world.tick(live) == 1
    assert world.version("c") == world.version("b")


async def test_a_pod_that_vanished_meanwhile_or_came_back_as_another_is_no_error(world: World) -> None:
    live, part = operator(world), world.part
    del world.api.objects[f"{PODS}/a"]
    del world.api.objects[f"{PODS}/b"]
    world.start("b")
    live.look(part, UNSEEN, NOW)
    await live.write([part], NOW)
    assert world.annotation("b") is None
    assert f"{PODS}/a" not in world.api.objects


@pytest.mark.parametrize("text", ["", "{", "null", "[1]", '{"version": 3}', '{"version": true, "ttftSeconds": 1}'])
async def test_garbage_in_an_annotation_is_put_right_under_the_same_version(world: World, text: str) -> None:
    live = operator(world)
    await world.tick(live)
    first = world.version("a")
    world.now += 60.0
    world.annotate("a", text)
    assert await world.tick(live) == 1
    assert world.version("a") == first


async def test_a_person_who_edits_an_annotation_is_overruled_everywhere(world: World) -> None:
    live = operator(world)
    await world.tick(live)
    mine = world.annotation("a")
    assert mine is not None
    theirs = replace(mine, version=mine.version + 1_000_000, active_sequences=1)
    world.annotate("a", theirs.to_json())
    world.work()
    assert world.in_force["a"].active_sequences == 1
    await world.tick(live)
    assert world.in_force["a"] == world.in_force["b"] == replace(mine, version=theirs.version + 1)


async def test_an_annotation_that_cannot_be_overruled_is_told_and_spares_the_others(world: World) -> None:
    live = operator(world)
    await world.tick(live)
    mine = world.annotation("a")
    assert mine is not None
    world.annotate("a", replace(mine, version=2**53 - 1).to_json())
    world.work()
    for _ in range(20):
        await world.tick(live)
    assert world.in_force["b"] == mine
    told = live.applied(world.part).condition
    assert told is not None
    assert (told.status, str(told.reason)) == (False, "LimitsNotApplied")
    assert "not taken effect in a" in told.message


async def test_a_fight_over_an_annotation_costs_a_write_in_ten_seconds_at_most(world: World) -> None:
    live, writes = operator(world), 0
    for _ in range(20):
        world.annotate("a", "garbage")
        writes += await world.tick(live)
    assert writes <= 1 + 20 * 5.0 / 10.0 + 1


async def test_a_plugin_that_is_off_in_one_pod_is_told(world: World) -> None:
    live = operator(world)
    await world.tick(live)
    world.modes["b"] = PluginMode.OFF
    for _ in range(20):
        await world.tick(live)
    told = live.applied(world.part)
    assert told.condition is not None
    assert str(told.condition.reason) == "PluginOff"
    assert " in b," in told.condition.message
    assert told.live is False


async def test_a_deaf_engine_is_named_after_its_time_and_not_before(world: World) -> None:
    live = operator(world)
    for _ in range(3):
        await world.tick(live)
    world.deaf.add("b")
    world.edit_slo("3s")
    changed_at, named_at = world.now, None
    for _ in range(20):
        await world.tick(live)
        told = live.applied(world.part).condition
        if told is not None and told.status is False:
            named_at = named_at or world.now
    assert named_at is not None
    assert 30.0 < named_at - changed_at <= 30.0 + 2 * SCRAPE + 10.0


async def test_engines_that_show_nothing_are_named_though_nothing_moves_and_worked_out_only_twice(world: World) -> None:
    live, worked_out = operator(world), []
    judge = live._judge
    live._judge = lambda *seen: (worked_out.append(world.now), judge(*seen))  # type: ignore[method-assign, assignment]
    silent = Traffic(SignalState.FRESH)
    for _ in range(20):
        await world.tick(live, silent)
    told = live.applied(world.part).condition
    assert told is not None
    assert told.status is False
    settled = [at for at in worked_out if at > NOW + 20.0]
    assert len(settled) <= 3, "when they become overdue, and once more to see that it lasts"


async def test_while_prometheus_is_away_nobody_is_named_and_limits_are_written(world: World) -> None:
    live = operator(world)
    for _ in range(3):
        await world.tick(live)
    before = live.applied(world.part)
    world.edit_slo("3s")
    assert await world.tick(live, UNSEEN) == 2
    for _ in range(50):
        await world.tick(live, UNSEEN)
    after = live.applied(world.part)
    assert (after.condition, after.live) == (before.condition, None)


async def test_a_service_without_the_plugin_has_no_such_condition(world: World) -> None:
    live = operator(world)
    await world.tick(live)
    await world.tick(live)
    assert live.applied(world.part).condition is not None
    plain = dataclasses.replace(world.part, engines=())
    live.look(plain, world.traffic, world.now)
    assert live.applied(plain).condition is None
    gone = dataclasses.replace(plain, replicas=())
    live.look(gone, world.traffic, world.now)
    assert live.applied(gone).condition is None


async def test_a_tick_writes_so_many_annotations_at_most_and_the_next_one_the_rest(world: World) -> None:
    live = operator(world)
    world.start(*(f"p{number}" for number in range(MOST_IN_A_TICK)))
    assert await world.tick(live) == MOST_IN_A_TICK
    assert await world.tick(live) == 2
    assert await world.tick(live) == 0


async def test_a_refused_write_holds_up_no_other_pod_and_is_tried_again_later(world: World) -> None:
    class Refusing(FakeApi):
        def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            if path.endswith("/a"):
                raise ApiError(422, "denied by a webhook")
            return super()._patch(path, body)

    world.api = Refusing()
    world.start("a", "b")
    live = operator(world)
    assert [await world.tick(live) for _ in range(5)] == [2, 0, 1, 0, 1]
    assert world.annotation("b") is not None


async def test_after_an_answer_that_never_came_the_next_tick_tries_again(world: World) -> None:
    live = operator(world)
    world.api.fail_with = ApiUnreachable("PATCH: timeout")
    live.look(world.part, UNSEEN, NOW)
    with pytest.raises(ApiUnreachable):
        await live.write([world.part], NOW)
    world.api.fail_with = None
    assert await world.tick(live) == 2


async def test_each_accelerator_has_limits_and_a_version_of_its_own(world: World) -> None:
    live = operator(world)
    await world.tick(live)
    first = world.version("a")
    world.now += 60.0
    world.start("c", accelerator="l40s")
    mine = world.annotation("a")
    assert mine is not None
    world.annotate("c", replace(mine, version=first + 500).to_json())
    await world.tick(live)
    slow = world.annotation("c")
    assert slow is not None
    assert (world.version("a"), slow.version) == (first, first + 501)
    assert slow.prior != mine.prior


async def test_pods_of_an_accelerator_that_is_no_longer_listed_are_left_alone(world: World) -> None:
    live = operator(world)
    world.start("z", accelerator="gone")
    assert await world.tick(live) == 2
    assert world.annotation("z") is None


async def test_another_service_of_the_same_name_starts_without_memories(world: World) -> None:
    live = operator(world)
    for _ in range(2):
        await world.tick(live)
    key = world.part.spec.key
    live.forget_all_but({key: "uid-second"})
    body = {**world.service.model_dump(mode="json", by_alias=True)}
    body["metadata"]["uid"] = "uid-second"
    again = parts(LLMService.parse(body))
    assert live.wanted(again) == {}
    assert live.applied(again).condition is None

"""Decisions become writes, each service on its own."""

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.act.api import ApiError, ApiUnreachable
from holdfast.api.conditions import ConditionType
from holdfast.api.llmservice import LLMService
from holdfast.api.reasons import Reason
from holdfast.control.writes.actuator import _HOLD_SECONDS, Actuator
from holdfast.domain.cluster import QueueLimit
from holdfast.domain.decision import Action, ConditionValue, Decision, QueueLimitTarget
from holdfast.domain.engine import EngineState, PluginMode
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import SignalState, Traffic
from holdfast.observe.objects.cluster import Invalid
from holdfast.observe.objects.engines import EnginePod, limits_from
from holdfast.render import RenderSettings
from holdfast.rendered.names import DELETION_COST, LIMITS_ANNOTATION
from tests.control.parts import as_watched, body, decision, llmservice, parts
from tests.fakes import FakeApi, RefusingApi

DEPLOYMENTS = "/apis/apps/v1/namespaces/prod/deployments"
SERVICES = "/apis/holdfast.dev/v1alpha1/namespaces/prod/llmservices"


class Metrics:
    """Only the running requests by pod are asked for while acting."""

    def __init__(self, running: Mapping[str, float] | None = None) -> None:
        self.running = running or {}

    async def observe(self, requests: Any, now: float) -> Any:
        raise AssertionError("not while acting")

    async def history(self, requests: Any, now: float) -> Any:
        raise AssertionError("not while acting")

    async def running_by_pod(self, keys: Iterable[ServiceKey], now: float) -> Mapping[ServiceKey, Mapping[str, float]]:
        return {key: self.running for key in keys}


class Told:
    def __init__(self) -> None:
        self.errors: list[str] = []
        self.done: list[Action] = []

    def pictured(self, *_: Any) -> None: ...

    def decided(self, decision: Decision) -> None:
        self.done.append(decision.verdict.action)

    def error(self, phase: str) -> None:
        self.errors.append(phase)


OTHERWISE = "change what it names, in the LLMService or in the cluster"


def cluster(*names: str) -> FakeApi:
    api = FakeApi()
    for name in names or ("chat",):
        api.put_object(f"{SERVICES}/{name}", body(name))
    return api


def actuator(api: FakeApi, told: Told | None = None, leading: bool = True) -> Actuator:
    return Actuator(api, Metrics(), told or Told(), RenderSettings(pod_files={"a.py": ""}), lambda: leading)


async def test_a_new_service_gets_its_objects_its_status_and_an_event() -> None:
    api, part = cluster(), parts()
    await actuator(api).act([part], [decision(part, Action.CREATE, h100=2)], [], [], now=0.0)
    assert api.objects[f"{DEPLOYMENTS}/chat-h100"]["spec"]["replicas"] == 2
    assert "/api/v1/namespaces/prod/services/chat" in api.objects
    assert api.objects[f"{SERVICES}/chat"]["status"]["replicas"]["desired"] == 2
    (event,) = (found for path, found in api.objects.items() if "/events/" in path)
    assert (event["type"], event["message"]) == ("Normal", "Create: because")


def condition(kind: ConditionType, status: bool | None, reason: Reason) -> ConditionValue:
    return ConditionValue(kind, status, reason, str(reason.meaning))


BEGINNING = (
    condition(ConditionType.READY, False, Reason.NO_REPLICAS),
    condition(ConditionType.SLO_MET, None, Reason.WARMING_UP),
    condition(ConditionType.SCALING_ACTIVE, True, Reason.FOLLOWING_SLO),
    condition(ConditionType.METRICS_AVAILABLE, False, Reason.METRICS_MISSING),
    condition(ConditionType.CAPACITY_AVAILABLE, True, Reason.ALL_PLACED),
    condition(ConditionType.FAST_LOOP_ACTIVE, None, Reason.LIMITS_PENDING),
)
NO_NODE = condition(ConditionType.CAPACITY_AVAILABLE, False, Reason.NO_MATCHING_NODES)
SERVING = condition(ConditionType.READY, True, Reason.SERVING)


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ([], [], ["FirstSize"]),
        ([NO_NODE], [NO_NODE], ["FirstSize", "NoMatchingNodes"]),
        ([], [SERVING], ["FirstSize", "Serving"]),
    ],
    ids=["nothing is wrong", "a warning", "it serves"],
)
async def test_a_new_service_is_one_event_and_one_for_each_warning_and_change(
    first: list[ConditionValue], second: list[ConditionValue], told: list[str]
) -> None:
    api, part = cluster(), parts()
    acting, made = actuator(api), decision(part, Action.CREATE, h100=2)
    made = replace(made, verdict=replace(made.verdict, reason=Reason.FIRST_SIZE))
    for now, changed in ((0.0, first), (5.0, second)):
        kinds = {each.type: each for each in (*BEGINNING, *changed)}
        await acting.act([part], [replace(made, conditions=tuple(kinds.values()))], [], [], now=now)
    assert [event["reason"] for path, event in api.objects.items() if "/events/" in path] == told


async def test_an_event_names_the_object_that_was_put_right_after_somebodys_edit() -> None:
    api, bare = cluster(), parts()
    acting = actuator(api)
    await acting.act([bare], [decision(bare, Action.CREATE, h100=1)], [], [], now=0.0)
    whole = parts(sizes={"h100": 1}, ready={"h100": 1})

    async def tick(now: float) -> list[str]:
        before, part = set(api.objects), as_watched(whole, api)
        await acting.act([part], [decision(part, Action.HOLD, h100=1)], [], [], now=now)
        posted = (api.objects[path] for path in api.objects.keys() - before if "/events/" in path)
        return [event["message"] for event in posted if event["reason"] == "DriftCorrected"]

    await tick(5.0)
    assert await tick(10.0) == []
    api.edit(f"{DEPLOYMENTS}/chat-h100", {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}})
    (told,) = await tick(15.0)
    assert told == (
        "Deployment chat-h100 was changed or deleted by somebody else and has been written again; "
        "change the LLMService instead"
    )
    api.edit(f"{DEPLOYMENTS}/chat-h100", {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}})
    assert await tick(20.0) == [], "who edits again and again is told every ten minutes"
    api.edit(f"{DEPLOYMENTS}/chat-h100", {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}})
    del api.objects["/api/v1/namespaces/prod/services/chat"]
    (both,) = await tick(620.0)
    assert both.startswith("Service chat, Deployment chat-h100 were changed")


async def test_the_event_of_a_change_holds_the_decision_and_what_it_was_made_from() -> None:
    api, part = cluster(), parts()
    made = decision(part, Action.CREATE, h100=2)
    await actuator(api).act([part], [made], [], [], now=0.0, records=lambda key: f"of {key}")
    events = [found for path, found in api.objects.items() if "/events/" in path]
    (notes,) = [event["metadata"]["annotations"] for event in events if "annotations" in event["metadata"]]
    assert json.loads(notes["holdfast.dev/decision"])["action"] == "Create"
    assert notes["holdfast.dev/decision-record"] == f"of {part.spec.key}"


async def test_a_second_tick_with_nothing_new_writes_nothing() -> None:
    api, part = cluster(), parts(sizes={"h100": 1}, ready={"h100": 1})
    acting, hold = actuator(api), decision(part, Action.HOLD, h100=1)
    await acting.act([part], [hold], [], [], now=0.0)
    api.requests.clear()
    await acting.act([part], [hold], [], [], now=5.0)
    assert api.writes() == []


async def test_the_replica_with_the_fewest_requests_goes_first_but_for_one_whose_requests_are_lost_anyway() -> None:
    api, part = cluster(), parts(sizes={"h100": 3}, ready={"h100": 3})
    owned = {"ownerReferences": [{"uid": "uid-chat"}]}
    api.put_object(f"{DEPLOYMENTS}/chat-h100", {"metadata": owned, "spec": {"replicas": 3}})
    pods = {name: f"/api/v1/namespaces/prod/pods/{name}" for name in ("h100-0", "h100-1", "h100-2")}
    for name, path in pods.items():
        api.put_object(path, {"metadata": {"name": name}})
    down = decision(part, Action.SCALE_DOWN, h100=1)
    (target,) = down.verdict.targets
    ranked = replace(target, remove_first=("h100-2", "h100-1", "h100-0"), lost=("h100-2",))
    metrics = Metrics({"h100-0": 1.0, "h100-1": 4.0, "h100-2": 90.0})
    acting = Actuator(api, metrics, Told(), RenderSettings(pod_files={"a.py": ""}), lambda: True)
    await acting.act([part], [replace(down, verdict=replace(down.verdict, targets=(ranked,)))], [], [], now=5.0)
    marks = {
        name: api.objects[path]["metadata"].get("annotations", {}).get(DELETION_COST) for name, path in pods.items()
    }
    assert int(marks["h100-2"]) < int(marks["h100-0"])
    assert marks["h100-1"] is None


async def test_who_does_not_lead_writes_nothing() -> None:
    api, part = cluster(), parts()
    await actuator(api, leading=False).act([part], [decision(part, Action.CREATE, h100=2)], [], [], now=0.0)
    assert api.writes() == []


async def test_a_service_that_was_edited_meanwhile_is_decided_anew() -> None:
    api, part = cluster(), parts()
    api.put_object(f"{SERVICES}/chat", body(generation=2))
    await actuator(api).act([part], [decision(part, Action.CREATE, h100=2)], [], [], now=0.0)
    assert f"{DEPLOYMENTS}/chat-h100" not in api.objects


async def test_a_service_that_was_deleted_meanwhile_is_not_created_again() -> None:
    api, part = cluster("other"), parts()
    await actuator(api).act([part], [decision(part, Action.CREATE, h100=2)], [], [], now=0.0)
    assert f"{DEPLOYMENTS}/chat-h100" not in api.objects


async def test_a_taken_name_is_a_problem_and_nothing_is_overwritten() -> None:
    api, part = cluster(), parts()
    api.put_object("/api/v1/namespaces/prod/services/chat", {"metadata": {"name": "chat"}, "spec": {"mine": True}})
    acting = actuator(api)
    await acting.act([part], [decision(part, Action.CREATE, h100=1)], [], [], now=0.0)
    assert [problem.reason for problem in acting.problems(part)] == ["NameConflict"]
    assert api.objects["/api/v1/namespaces/prod/services/chat"]["spec"] == {"mine": True}


async def test_one_service_that_fails_leaves_the_others_alone() -> None:
    class Refusing(FakeApi):
        async def request(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
            if method == "PATCH" and "/bad" in path:
                raise ApiError(500, "broken")
            return await super().request(method, path, **rest)

    api, told = Refusing(), Told()
    for name in ("bad", "good"):
        api.put_object(f"{SERVICES}/{name}", body(name))
    both = [parts(llmservice("bad")), parts(llmservice("good"))]
    await actuator(api, told).act(both, [decision(part, Action.CREATE, h100=1) for part in both], [], [], now=0.0)
    assert f"{DEPLOYMENTS}/good-h100" in api.objects
    assert told.errors


async def test_a_decision_on_a_size_that_has_changed_is_dropped() -> None:
    api, told = cluster(), Told()
    api.put_object(
        f"{DEPLOYMENTS}/chat-h100", {"metadata": {"ownerReferences": [{"uid": "uid-chat"}]}, "spec": {"replicas": 5}}
    )
    part = parts(sizes={"h100": 2}, ready={"h100": 2})
    await actuator(api, told).act([part], [decision(part, Action.SCALE_DOWN, h100=1)], [], [], now=0.0)
    assert api.objects[f"{DEPLOYMENTS}/chat-h100"]["spec"]["replicas"] == 5
    assert told.errors == ["act"]


async def test_an_object_that_is_not_understood_gets_a_condition_and_one_event() -> None:
    api = cluster()
    entry = Invalid(ServiceKey("prod", "chat"), 1, "slo.ttft: must be a duration", uid="uid-chat")
    acting = actuator(api)
    for now in (0.0, 5.0):
        await acting.act([], [], [entry], [], now=now)
    reasons = {item["reason"] for item in api.objects[f"{SERVICES}/chat"]["status"]["conditions"]}
    assert reasons == {"Invalid"}
    (event,) = (told for path, told in api.objects.items() if "/events/" in path)
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "Invalid", "slo.ttft: must be a duration")


async def test_an_object_older_than_the_rule_it_breaks_is_told_by_event_where_no_status_is_taken() -> None:
    api, told = RefusingApi("llmservices", 422, "spec: Invalid value: no accelerator's max"), Told()
    api.objects = cluster().objects
    acting = actuator(api, told)
    for now, generation in ((0.0, 1), (5.0, 1), (10.0, 1), (15.0, 2)):
        entry = Invalid(ServiceKey("prod", "chat"), generation, "accelerators: too few", uid="uid-chat")
        await acting.act([], [], [entry], [], now=now)
    events = [event for path, event in api.objects.items() if "/events/" in path]
    assert [(event["type"], event["reason"], event["message"]) for event in events] == [
        ("Warning", "Invalid", "accelerators: too few")
    ] * 2
    assert told.errors == []


async def test_a_deletion_that_somebody_holds_is_told_once_in_status_and_as_an_event() -> None:
    api = cluster()
    held = Invalid(ServiceKey("prod", "chat"), 2, "held by x/y", uid="uid-chat", reason=Reason.DELETION_HELD)
    acting = actuator(api)
    for now in (0.0, 5.0):
        await acting.act([], [], [held], [], now=now)
    status = api.objects[f"{SERVICES}/chat"]["status"]
    told = {(item["type"], item["status"], item["reason"]) for item in status["conditions"]}
    assert told == {("Ready", "Unknown", "DeletionHeld"), ("Stalled", "True", "DeletionHeld")}
    (event,) = (told for path, told in api.objects.items() if "/events/" in path)
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "DeletionHeld", "held by x/y")
    assert not any("deployments" in path for _, path in api.writes())


async def test_what_is_decided_is_told_though_the_write_was_refused() -> None:
    api = cluster()
    api.put_object(
        f"{DEPLOYMENTS}/chat-h100", {"metadata": {"ownerReferences": [{"uid": "uid-chat"}]}, "spec": {"replicas": 5}}
    )
    part = parts(sizes={"h100": 2}, ready={"h100": 2})
    await actuator(api).act([part], [decision(part, Action.SCALE_DOWN, h100=1)], [], [], now=0.0)
    assert api.objects[f"{SERVICES}/chat"]["status"]["lastDecision"]["action"] == "ScaleDown"


async def test_a_refused_change_counts_as_a_failure_each_time_and_as_a_change_once_it_is_made() -> None:
    api, part, told = cluster(), parts(sizes={"h100": 2}, ready={"h100": 2}), Told()
    acting = Actuator(api, Metrics(), told, RenderSettings(pod_files={"a.py": ""}), lambda: True)
    up = decision(part, Action.SCALE_UP, h100=3)
    for now in (0.0, 5.0):
        await acting.act([part], [up], [], [], now=now)
    assert (told.done, told.errors) == ([], ["act", "act"])
    api.put_object(
        f"{DEPLOYMENTS}/chat-h100", {"metadata": {"ownerReferences": [{"uid": "uid-chat"}]}, "spec": {"replicas": 2}}
    )
    await acting.act([part], [up], [], [], now=10.0)
    assert (told.done, told.errors) == ([Action.SCALE_UP], ["act", "act"])


async def test_a_size_that_is_refused_is_a_problem_until_it_is_taken() -> None:
    class Frozen(FakeApi):
        frozen = True

        async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if self.frozen and method == "PATCH" and path.endswith("/scale"):
                raise ApiError(422, "freeze: no more than one replica")
            return await super().request(method, path, **more)

    api, part = Frozen(), parts(sizes={"h100": 2}, ready={"h100": 2})
    api.objects = cluster().objects
    api.put_object(
        f"{DEPLOYMENTS}/chat-h100", {"metadata": {"ownerReferences": [{"uid": "uid-chat"}]}, "spec": {"replicas": 2}}
    )
    acting, up = actuator(api), decision(part, Action.SCALE_UP, h100=3)
    for now in (0.0, 5.0, 10.0):
        await acting.act([part], [up], [], [], now=now)
        (problem,) = acting.problems(part)
        assert problem.reason is Reason.APPLY_FAILED
        refused = "Deployment chat-h100 was not set to 3 replicas: freeze: no more than one replica"
        assert problem.message == f"{refused}; {OTHERWISE}"
    api.frozen = False
    await acting.act([part], [up], [], [], now=15.0)
    assert not acting.problems(part)


class Fleet(FakeApi):
    """An API server that notes the sum of all sizes after each request, and refuses some sizes."""

    def __init__(self, *, most: int = 1, **sizes: int) -> None:
        super().__init__()
        self.refused: frozenset[str] = frozenset()
        scaling = {"min": 1, "max": most}
        self.put_object(
            f"{SERVICES}/chat", body(accelerators=[{"name": name, "costPerHour": 1} for name in KINDS], scaling=scaling)
        )
        for name, size in sizes.items():
            owned = {"ownerReferences": [{"uid": "uid-chat"}]}
            self.put_object(f"{DEPLOYMENTS}/chat-{name}", {"metadata": owned, "spec": {"replicas": size}})
        self.sums = [self.total]

    @property
    def sizes(self) -> dict[str, int]:
        found = {path: item for path, item in self.objects.items() if path.startswith(f"{DEPLOYMENTS}/chat-")}
        return {path.removeprefix(f"{DEPLOYMENTS}/chat-"): item["spec"]["replicas"] for path, item in found.items()}

    @property
    def total(self) -> int:
        return sum(self.sizes.values())

    async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if method == "PATCH" and any(f"chat-{name}" in path for name in self.refused):
            raise ApiError(422, "freeze: leave it as it is")
        try:
            return await super().request(method, path, **more)
        finally:
            self.sums.append(self.total)


KINDS = ("a10", "h100", "l40s")


async def moved(api: Fleet, to: Mapping[str, int], acting: Actuator | None = None, now: float = 0.0) -> None:
    """Let one tick of an operator carry out sizes."""
    part = parts(LLMService.parse(api.objects[f"{SERVICES}/chat"]), sizes=api.sizes, ready=api.sizes)
    part = as_watched(part, api)
    await (acting or actuator(api)).act([part], [decision(part, Action.SCALE_UP, **to)], [], [], now=now)


sizes_by_kind = st.dictionaries(st.sampled_from(KINDS), st.integers(0, 3))


@given(
    before=sizes_by_kind,
    after=sizes_by_kind,
    most=st.integers(1, 9),
    writes=st.integers(0, 20),
    refused=st.sets(st.sampled_from(KINDS)),
)
async def test_sizes_never_sum_up_to_more_than_is_allowed_whoever_dies_or_is_refused_between_two_writes(
    before: dict[str, int], after: dict[str, int], most: int, writes: int, refused: set[str]
) -> None:
    api, wanted = Fleet(most=most, **before), dict.fromkeys(before, 0) | after
    allowed = max(most, api.total, sum(wanted.values()))
    leading = itertools.chain([True] * writes, itertools.repeat(False))
    dying = Actuator(api, Metrics(), Told(), RenderSettings(pod_files={"a.py": ""}), lambda: next(leading))
    api.refused = frozenset(refused)
    await moved(api, wanted, dying)
    await moved(api, wanted)
    api.refused = frozenset()
    await moved(api, wanted)
    assert max(api.sums) <= allowed
    assert {name: size for name, size in api.sizes.items() if size} == {name: n for name, n in wanted.items() if n}


@pytest.mark.parametrize("comes", ["a10", "l40s"])
async def test_for_what_may_not_shrink_so_many_fewer_come_and_no_fewer(comes: str) -> None:
    api = Fleet(h100=2, l40s=0)
    api.refused = frozenset({"h100"})
    await moved(api, {"h100": 1, comes: 1})
    assert api.total == 2
    assert "/api/v1/namespaces/prod/services/chat" in api.objects
    await moved(api, {"h100": 1, comes: 5})
    assert api.sizes == {"l40s": 0} | {"h100": 2, comes: 4}


async def test_what_may_not_shrink_keeps_nothing_away_that_scaling_max_allows_beside_it() -> None:
    api = Fleet(most=3, h100=2, l40s=0)
    api.refused = frozenset({"h100"})
    await moved(api, {"h100": 0, "l40s": 2})
    assert api.sizes == {"h100": 2, "l40s": 1}
    api.edit(f"{SERVICES}/chat", {"spec": {"budget": {"maxCostPerHour": 9}}})
    api.edit(f"{DEPLOYMENTS}/chat-l40s", {"spec": {"replicas": 0}})
    await moved(api, {"h100": 0, "l40s": 2})
    assert api.sizes == {"h100": 2, "l40s": 0}


async def test_nothing_goes_for_a_deployment_that_cannot_be_created_and_no_change_is_told() -> None:
    api, told = Fleet(h100=1), Told()
    api.refused = frozenset({"a10"})
    part = parts(LLMService.parse(api.objects[f"{SERVICES}/chat"]), sizes=api.sizes)
    acting = actuator(api, told)
    await moved(api, {"h100": 0, "a10": 1}, acting)
    assert (api.sizes, told.done) == ({"h100": 1}, [])
    assert any("freeze" in problem.message for problem in acting.problems(part))
    api.refused = frozenset()
    await moved(api, {"h100": 0, "a10": 1}, acting, now=60.0)
    assert (api.sizes, told.done) == ({"h100": 0, "a10": 1}, [Action.SCALE_UP])


async def test_nothing_goes_while_nobody_knows_whether_a_deployment_can_be_created() -> None:
    class Busy(Fleet):
        async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if "dryRun" in (more.get("query") or {}):
                raise ApiError(409, "somebody writes at the same moment")
            return await super().request(method, path, **more)

    api = Busy(h100=1)
    await moved(api, {"h100": 0, "a10": 1})
    assert api.sizes == {"h100": 1}


async def test_what_shrinks_does_so_though_what_is_there_may_not_grow() -> None:
    api = Fleet(h100=2, l40s=0)
    api.refused = frozenset({"l40s"})
    part = parts(LLMService.parse(api.objects[f"{SERVICES}/chat"]), sizes=api.sizes)
    acting = actuator(api)
    await moved(api, {"h100": 1, "l40s": 1}, acting)
    assert api.sizes == {"h100": 1, "l40s": 0}
    assert any("freeze" in problem.message for problem in acting.problems(part))


async def test_one_size_that_is_refused_leaves_the_others_alone() -> None:
    api = Fleet(a10=1, h100=1, l40s=1)
    api.refused = frozenset({"a10"})
    await moved(api, {"a10": 2, "h100": 2, "l40s": 2})
    assert api.sizes == {"a10": 1, "h100": 2, "l40s": 2}


async def test_what_cannot_be_created_stays_a_problem_though_the_api_server_is_silent_for_a_moment() -> None:
    class Silent(Fleet):
        silent = False

        async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if self.silent and path.endswith("/scale"):
                raise ApiUnreachable("the connection was lost")
            return await super().request(method, path, **more)

    api = Silent(h100=2)
    part = parts(LLMService.parse(api.objects[f"{SERVICES}/chat"]), sizes=api.sizes)
    acting = actuator(api)
    api.refused = frozenset({"a10"})
    await moved(api, {"h100": 2, "a10": 1}, acting)
    told = acting.problems(part)
    assert [problem.reason for problem in told] == [Reason.APPLY_FAILED]
    api.silent = True
    await moved(api, {"h100": 1, "a10": 1}, acting, now=10.0)
    assert acting.problems(part) == told
    api.silent, api.refused = False, frozenset()
    await moved(api, {"h100": 1, "a10": 1}, acting, now=60.0)
    assert (acting.problems(part), api.sizes) == ((), {"h100": 1, "a10": 1})


async def test_what_cannot_be_deleted_leaves_sizes_alone() -> None:
    class Keeping(Fleet):
        async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if method == "DELETE":
                raise ApiError(403, "nobody deletes here")
            return await super().request(method, path, **more)

    api, told = Keeping(h100=1, l40s=1), Told()
    budget = {"kind": "PodDisruptionBudget", "metadata": {"name": "old", "ownerReferences": [{"uid": "uid-chat"}]}}
    api.put_object("/apis/policy/v1/namespaces/prod/poddisruptionbudgets/old", budget)
    await moved(api, {"a10": 1, "h100": 0, "l40s": 0}, actuator(api, told))
    assert api.sizes == {"a10": 1, "h100": 0, "l40s": 0}
    assert told.errors == ["act"]


async def test_what_is_refused_is_tried_ever_more_rarely_and_at_once_where_it_is_something_else() -> None:
    tried: list[float] = []

    class Counting(RefusingApi):
        async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if method != "GET" and "/deployments" in path:
                tried.append(now)
            return await super().request(method, path, **more)

    api, part = Counting("deployments", 403), parts()
    api.objects = cluster().objects
    acting = actuator(api)
    for now in (5.0 * tick for tick in range(40)):
        wanted = decision(part, Action.CREATE, h100=2 if now < 150.0 else 3)
        await acting.act([part], [wanted], [], [], now=now)
        assert acting.problems(part)
    assert tried == [0.0, 5.0, 15.0, 35.0, 75.0, 135.0, 150.0, 155.0, 165.0, 185.0]


class Denying(FakeApi):
    """Refuses writes of a kind with the words of the day, and says nothing against any where there are none."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.words = kind, "exceeded quota: gpus"
        self.objects = cluster().objects

    async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if self.words and method != "GET" and self.kind in path:
            raise ApiError(403, self.words)
        return await super().request(method, path, **more)


async def warnings(acting: Actuator, made: Decision, caplog: pytest.LogCaptureFixture, *times: float) -> list[int]:
    """How many warnings are logged at each tick."""
    part, counts = parts(sizes={"h100": 2}, ready={"h100": 2}), []
    for now in times:
        caplog.clear()
        await acting.act([part], [made], [], [], now=now)
        counts.append(sum(record.levelname == "WARNING" for record in caplog.records))
    return counts


@pytest.mark.parametrize("kind", ["/services/", "/serviceaccounts/", "/scale"])
async def test_a_refused_write_is_logged_once_until_it_changes(caplog: pytest.LogCaptureFixture, kind: str) -> None:
    api = Denying(kind)
    owned = {"metadata": {"ownerReferences": [{"uid": "uid-chat"}]}, "spec": {"replicas": 2}}
    api.put_object(f"{DEPLOYMENTS}/chat-h100", owned)
    acting, up = actuator(api), decision(parts(sizes={"h100": 2}), Action.SCALE_UP, h100=3)
    assert await warnings(acting, up, caplog, *range(0, 200, 5)) == [1, *39 * [0]]
    api.words = "admission webhook denied the request"
    assert sum(await warnings(acting, up, caplog, *range(200, 300, 5))) == 1
    api.words = ""
    assert await warnings(acting, up, caplog, 400.0, 405.0) == [0, 0]
    api.words = "admission webhook denied the request"
    api.put_object(f"{DEPLOYMENTS}/chat-h100", owned)
    again = decision(parts(sizes={"h100": 2}), Action.SCALE_UP, h100=4)
    if kind == "/scale":
        assert await warnings(acting, again, caplog, *range(500, 600, 5)) == [1, *19 * [0]], "refused anew"


async def test_a_refused_create_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    api, part = Denying("/deployments"), parts()
    acting = actuator(api)
    for now in range(0, 300, 5):
        await acting.act([part], [decision(part, Action.CREATE, h100=2)], [], [], now=now)
    (record,) = (record for record in caplog.records if record.levelname == "WARNING")
    refused = "prod/chat: ApplyFailed: the API server rejected Deployment chat-h100: exceeded quota: gpus"
    assert record.getMessage() == f"{refused}; raise the quota, or lower scaling.max"


async def test_a_write_whose_answer_was_lost_counts_as_a_change_for_the_next_tick_finds_it_made() -> None:
    api, part, told = cluster(), parts(sizes={"h100": 2}, ready={"h100": 2}), Told()
    acting = Actuator(api, Metrics(), told, RenderSettings(pod_files={"a.py": ""}), lambda: True)
    await acting.act([part], [], [], [], now=0.0)
    api.fail_with = ApiUnreachable("the connection was lost")
    await acting.act([part], [decision(part, Action.SCALE_UP, h100=3)], [], [], now=0.0)
    assert (told.done, told.errors) == ([Action.SCALE_UP], ["act"])


async def test_what_is_no_longer_wanted_when_it_would_be_written_is_no_change() -> None:
    api, part, told = cluster(), parts(sizes={"h100": 2}, ready={"h100": 2}), Told()
    api.objects[f"{SERVICES}/chat"]["metadata"]["generation"] += 1
    acting = Actuator(api, Metrics(), told, RenderSettings(pod_files={"a.py": ""}), lambda: True)
    await acting.act([part], [decision(part, Action.SCALE_UP, h100=3)], [], [], now=0.0)
    assert (told.done, told.errors) == ([], [])


async def test_leadership_lost_between_two_writes_of_one_decision_stops_the_second() -> None:
    answers = [True] * 4 + [False] * 100
    api, part, told = cluster(), parts(), Told()
    acting = Actuator(api, Metrics(), told, RenderSettings(pod_files={"a.py": ""}), lambda: answers.pop(0))
    await acting.act([part], [decision(part, Action.CREATE, h100=2)], [], [], now=0.0)
    assert len(api.writes()) == 3
    assert told.errors == []


async def test_a_stopped_tick_writes_no_status_on_its_way_out() -> None:
    class Hanging(FakeApi):
        async def request(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
            if method == "PATCH" and "/services/" in path:
                reached.set()
                await asyncio.Event().wait()
            return await super().request(method, path, **rest)

    reached, api, part = asyncio.Event(), Hanging(), parts()
    api.put_object(f"{SERVICES}/chat", body())
    tick = asyncio.create_task(actuator(api).act([part], [decision(part, Action.CREATE, h100=2)], [], [], now=0.0))
    await reached.wait()
    before = api.writes()
    tick.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tick
    assert api.writes() == before


async def test_a_namespace_that_is_being_deleted_is_no_error_and_no_problem() -> None:
    class Ending(FakeApi):
        def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            if path in self.objects or path.endswith("/status"):
                return super()._patch(path, body)
            raise ApiError(403, "forbidden: it is being terminated", frozenset({"NamespaceTerminating"}))

        def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            raise ApiError(403, "forbidden: it is being terminated", frozenset({"NamespaceTerminating"}))

    api, part, told = Ending(), parts(), Told()
    api.put_object(f"{SERVICES}/chat", body())
    acting = actuator(api, told)
    await acting.act([part], [decision(part, Action.CREATE, h100=2)], [], [], now=0.0)
    assert told.errors == []
    assert acting.problems(part) == ()


async def test_another_service_of_the_same_name_starts_without_memories() -> None:
    api, part = cluster(), parts()
    acting = actuator(api)
    await acting.act([part], [decision(part, Action.CREATE, h100=2)], [], [], now=0.0)
    api.objects.clear()
    again = body()
    again["metadata"]["uid"] = "uid-second"
    api.put_object(f"{SERVICES}/chat", again)
    second = parts(LLMService.parse(again))
    await acting.act([second], [decision(second, Action.CREATE, h100=2)], [], [], now=1.0)
    assert api.objects[f"{DEPLOYMENTS}/chat-h100"]["metadata"]["ownerReferences"][0]["uid"] == "uid-second"
    assert api.objects[f"{SERVICES}/chat"]["status"]["replicas"]["desired"] == 2


async def test_a_replica_that_comes_while_the_decision_rests_shows_in_status() -> None:
    api, one, two = cluster(), parts(sizes={"h100": 2}, ready={"h100": 1}), parts(sizes={"h100": 2}, ready={"h100": 2})
    acting, hold = actuator(api), decision(one, Action.HOLD, h100=2)
    for now, part in ((0.0, one), (5.0, one), (10.0, one), (15.0, two)):
        await acting.act([part], [hold], [], [], now=now)
    assert api.objects[f"{SERVICES}/chat"]["status"]["replicas"]["ready"] == 2


async def test_a_service_at_rest_is_put_right_in_the_tick_after_somebody_deletes_from_it() -> None:
    api, part = cluster(), parts(sizes={"h100": 1}, ready={"h100": 1})
    acting, hold = actuator(api), decision(part, Action.HOLD, h100=1)
    path = "/api/v1/namespaces/prod/services/chat"
    await acting.act([parts()], [decision(parts(), Action.CREATE, h100=1)], [], [], now=0.0)
    for now in (5.0, 10.0, 15.0):
        await acting.act([as_watched(part, api)], [hold], [], [], now=now)
    api.requests.clear()
    await acting.act([as_watched(part, api)], [hold], [], [], now=20.0)
    assert api.requests == []
    del api.objects[path]
    await acting.act([as_watched(part, api)], [hold], [], [], now=25.0)
    assert path in api.objects


async def test_many_services_of_which_none_waits_for_anything_leave_the_event_loop_to_others() -> None:
    many = [parts(llmservice(f"s{number:02}")) for number in range(64)]
    acting, turns = actuator(cluster(), leading=False), 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.0)
            turns += 1

    beside = asyncio.create_task(others())
    await acting.act(many, [decision(part, Action.HOLD, h100=1) for part in many], [], [], now=0.0)
    beside.cancel()
    assert turns >= len(many) // 16  # so many are looked at beside each other


class SlowApi(FakeApi):
    """Every request takes a second."""

    async def request(self, method: str, path: str, **more: Any) -> Any:
        await asyncio.sleep(1.0)
        return await super().request(method, path, **more)


@pytest.mark.slow
@pytest.mark.looptime
async def test_many_new_services_hold_up_nobody_and_each_of_them_has_its_turn() -> None:
    api = SlowApi()
    new = [parts(llmservice(f"s{number:03}")) for number in range(60)]
    running = parts(llmservice("z"), sizes={"h100": 1}, ready={"h100": 1})
    for part in (*new, running):
        api.put_object(f"{SERVICES}/{part.spec.key.name}", body(part.spec.key.name))
    api.put_object(f"{DEPLOYMENTS}/z-h100", {"metadata": {"name": "z-h100"}, "spec": {"replicas": 1}})
    decisions = [*(decision(part, Action.CREATE, h100=1) for part in new), decision(running, Action.SCALE_UP, h100=3)]
    acting, started_at = actuator(api), asyncio.get_running_loop().time()
    await acting.act([*new, running], decisions, [], [], now=0.0)
    assert api.objects[f"{DEPLOYMENTS}/z-h100"]["spec"]["replicas"] == 3
    assert asyncio.get_running_loop().time() - started_at < 60.0
    for tick in range(1, 13):
        await acting.act(new, decisions[:-1], [], [], now=5.0 * tick)
    assert sum("/deployments/s" in path for path in api.objects) == len(new)


@pytest.mark.slow
@pytest.mark.looptime
async def test_services_whose_size_stays_take_little_of_a_tick_and_each_of_them_has_its_turn() -> None:
    api = SlowApi()
    staying = [parts(llmservice(f"s{number:03}"), sizes={"h100": 1}, ready={"h100": 1}) for number in range(80)]
    for part in staying:
        api.put_object(f"{SERVICES}/{part.spec.key.name}", body(part.spec.key.name))
    decisions = [decision(part, Action.HOLD, h100=1) for part in staying]
    acting, started_at = actuator(api), asyncio.get_running_loop().time()
    await acting.act(staying, decisions, [], [], now=0.0)
    last = max(_requests_of_each(api).values())  # that were begun in time are carried to their end, a second a request
    assert asyncio.get_running_loop().time() - started_at <= _HOLD_SECONDS + last + 1.0
    assert 0 < len(_requests_of_each(api)) < len(staying)
    for tick in range(1, 13):
        await acting.act(staying, decisions, [], [], now=5.0 * tick)
    assert len(_requests_of_each(api)) == len(staying)


def _requests_of_each(api: FakeApi) -> Counter[str]:
    """By service, of those that name one."""
    return Counter(found[0] for _, path, _, _ in api.requests if (found := re.findall(r"/(s\d{3})\b", path)))


async def test_a_decided_queue_limit_is_rolled_out_and_told_once_and_stays_after_a_restart() -> None:
    api, stock = cluster(), llmservice(engine={"plugin": "Disabled"})
    begun = parts(stock)
    await actuator(api).act([begun], [decision(begun, Action.CREATE, h100=1)], [], [], now=0.0)
    target = QueueLimitTarget("h100", QueueLimit(2900, 1_800_000_000), "2,900 are right")
    acting = actuator(api)
    for now in (5.0, 10.0):
        part = as_watched(parts(stock, sizes={"h100": 1}, ready={"h100": 1}), api)
        decided = replace(decision(part, Action.HOLD, h100=1), queue_limit=target)
        await acting.act([part], [decided], [], [], now=now)
    told = [found["message"] for path, found in api.objects.items() if "/events/" in path]
    assert told.count("2,900 are right") == 1
    rolled = api.objects[f"{DEPLOYMENTS}/chat-h100"]["spec"]["template"]
    assert "--max-num-queued-tokens=2900" in rolled["spec"]["containers"][0]["args"]
    part = as_watched(parts(stock, sizes={"h100": 1}, ready={"h100": 1}), api)
    await actuator(api).act([part], [decision(part, Action.HOLD, h100=1)], [], [], now=15.0)
    assert api.objects[f"{DEPLOYMENTS}/chat-h100"]["spec"]["template"] == rolled


async def test_engines_are_told_their_limits_and_status_shows_what_they_work_with() -> None:
    api, part = cluster(), parts(sizes={"h100": 1}, ready={"h100": 1})
    pod = api.put_object("/api/v1/namespaces/prod/pods/h100-0", {"metadata": {"name": "h100-0"}})
    part = replace(part, engines=(EnginePod("h100-0", pod["metadata"]["uid"], "h100"),))
    acting, hold = actuator(api), decision(part, Action.HOLD, h100=1)
    await acting.act([part], [hold], [], [], now=0.0)
    told = limits_from(api.objects["/api/v1/namespaces/prod/pods/h100-0"]["metadata"]["annotations"][LIMITS_ANNOTATION])
    assert told is not None
    part = replace(part, engines=(replace(part.engines[0], told=told),))
    seen = EngineState("h100-0", PluginMode.ACTIVE, told.version, active_sequences=91.0, tokens_per_step=2047.0)
    traffic = {part.spec.key: Traffic(SignalState.FRESH, plugins=(seen,))}
    await acting.act([part], [hold], [], [], 5.0, traffic)
    status = api.objects[f"{SERVICES}/chat"]["status"]
    assert status["batching"] == {"maxNumSeqs": 91, "maxNumBatchedTokens": 2047, "appliedLive": True}
    assert [item["status"] for item in status["conditions"] if item["type"] == "FastLoopActive"] == ["True"]
    api.requests.clear()
    await acting.act([part], [hold], [], [], 10.0, traffic)
    assert api.writes() == []


async def test_engines_are_told_though_no_decision_could_be_made() -> None:
    api, part = cluster(), parts(sizes={"h100": 1}, ready={"h100": 1})
    pod = api.put_object("/api/v1/namespaces/prod/pods/h100-0", {"metadata": {"name": "h100-0"}})
    part = replace(part, engines=(EnginePod("h100-0", pod["metadata"]["uid"], "h100"),))
    await actuator(api).act([part], [], [], [], now=0.0)
    assert api.writes() == [("PATCH", "/api/v1/namespaces/prod/pods/h100-0")]


@pytest.mark.looptime
async def test_engines_that_cannot_be_told_hold_up_nobody() -> None:
    class Hanging(FakeApi):
        async def request(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
            if "/pods/" in path:
                await asyncio.Event().wait()
            return await super().request(method, path, **rest)

    api, told, part = Hanging(), Told(), parts()
    api.put_object(f"{SERVICES}/chat", body())
    part = replace(part, engines=(EnginePod("h100-0", "uid", "h100"),))
    await actuator(api, told).act([part], [decision(part, Action.CREATE, h100=2)], [], [], now=0.0)
    assert f"{DEPLOYMENTS}/chat-h100" in api.objects
    assert told.errors == ["act"]


async def test_limits_that_cannot_be_worked_out_leave_the_rest_alone() -> None:
    api, told, bad, good = cluster("bad", "good"), Told(), parts(llmservice("bad")), parts(llmservice("good"))
    broken = replace(bad, engines=(EnginePod("h100-0", "uid", "h100", told="no limits"),))  # type: ignore[arg-type]
    decisions = [decision(part, Action.CREATE, h100=1) for part in (broken, good)]
    await actuator(api, told).act([broken, good], decisions, [], [], now=0.0)
    assert f"{DEPLOYMENTS}/good-h100" in api.objects
    assert f"{DEPLOYMENTS}/bad-h100" in api.objects
    assert told.errors == ["act"]


POOLED = {"inferencePool": {"endpointPicker": {"name": "chat-epp"}}}
POOL_API = "/apis/inference.networking.k8s.io/v1"
POOL = f"{POOL_API}/namespaces/prod/inferencepools/chat"


async def test_nothing_is_written_before_the_apis_of_the_cluster_are_known() -> None:
    api, part = cluster("chat"), parts(llmservice(**POOLED))
    acting, decided = actuator(api), decision(part, Action.CREATE, h100=1)
    before = dict(api.objects)
    api.fail_with = ApiError(503, "later")
    await acting.act([part], [decided], [], [], now=0.0)
    api.fail_with = None
    assert api.objects == before
    await acting.act([part], [decided], [], [], now=5.0)
    assert f"{DEPLOYMENTS}/chat-h100" in api.objects


async def test_a_cluster_without_inference_pools_is_named_until_it_has_them() -> None:
    api, part, plain = cluster("chat", "plain"), parts(llmservice(**POOLED)), parts(llmservice("plain"))
    api.put_object(f"{SERVICES}/chat", body(**POOLED))
    acting = actuator(api)
    assert acting.problems(part) == ()  # not known yet
    await acting.act([part, plain], [], [], [], now=0.0)
    (problem,) = acting.problems(part)
    assert problem.reason is Reason.API_MISSING
    assert "install the Gateway API Inference Extension, or remove inferencePool" in problem.message
    assert acting.problems(plain) == ()
    api.put_object(POOL_API, {"resources": [{"name": "inferencepools"}]})
    decided = decision(part, Action.CREATE, h100=1)
    await acting.act([part], [decided], [], [], now=299.0)
    assert POOL not in api.objects
    await acting.act([part], [decided], [], [], now=300.0)
    assert acting.problems(part) == ()
    assert api.objects[POOL]["spec"]["endpointPickerRef"] == {"name": "chat-epp", "port": {"number": 9002}}


async def test_an_inference_pool_goes_with_its_field_and_one_of_somebody_else_stays() -> None:
    api, part = cluster(), parts(llmservice(**POOLED))
    api.put_object(f"{SERVICES}/chat", body(**POOLED))
    api.put_object(POOL_API, {"resources": [{"name": "inferencepools"}]})
    acting = actuator(api)
    await acting.act([part], [decision(part, Action.CREATE, h100=1)], [], [], now=0.0)
    assert POOL in api.objects
    edited = parts(llmservice(generation=2), sizes={"h100": 1})
    api.put_object(f"{SERVICES}/chat", body(generation=2))
    foreign = f"{POOL_API}/namespaces/prod/inferencepools/other"
    api.put_object(foreign, {"metadata": {"name": "other", "namespace": "prod", "uid": "u"}})
    for now in (10.0, 20.0):
        edited = as_watched(edited, api)
        await acting.act([edited], [decision(edited, Action.HOLD, h100=1)], [], [], now=now)
    assert POOL not in api.objects
    assert foreign in api.objects

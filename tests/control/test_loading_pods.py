"""Pods that load are marked once, and the marks come off once: when they serve, fail, or took too long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.act.api import ApiError, ApiUnreachable
from holdfast.api.llmservice import LLMServiceSpec
from holdfast.control.bounded_work import MOST_IN_A_TICK
from holdfast.control.writes.loading_pods import LoadingPods
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.observe.objects.loading import LoadingPod
from holdfast.rendered.names import PROTECTIONS
from tests.control.parts import parts
from tests.fakes import FakeApi

PODS = "/api/v1/namespaces/prod/pods"
NOW = 1_000_000.0
LIMIT_SECONDS = 1800.0


def startup_seconds(spec: LLMServiceSpec) -> float:
    return LIMIT_SECONDS


def seen(*pods: LoadingPod) -> ServiceParts:
    return replace(parts(), loading=pods)


def loading(name: str = "a", since: float | None = NOW, *, marked: bool = False, **more: Any) -> LoadingPod:
    return LoadingPod(name, f"uid-{name}", since, marked, **more)


@pytest.fixture
def api() -> FakeApi:
    api = FakeApi()
    for name in ("a", "b"):
        api.put_object(f"{PODS}/{name}", {"metadata": {"name": name, "uid": f"uid-{name}"}})
    return api


def bodies(api: FakeApi) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Pod, labels and annotations of every write."""
    return [
        (body["metadata"]["name"], dict(body["metadata"]["labels"]), dict(body["metadata"]["annotations"]))
        for _, _, _, body in api.requests
    ]


async def test_a_loading_pod_is_marked_once_and_unmarked_once_when_it_serves(api: FakeApi) -> None:
    writer = LoadingPods(api, startup_seconds)
    for at in range(0, 60, 5):
        await writer.write([seen(loading(marked=at > 20))], NOW + at)
    for at in range(60, 120, 5):
        await writer.write([seen(loading(since=None, marked=at < 90))], NOW + at)
    await writer.write([seen()], NOW + 130)
    assert bodies(api) == [("a", {"holdfast.dev/loading": "true"}, PROTECTIONS), ("a", {}, {})]
    assert {query["fieldManager"] for _, _, query, _ in api.requests} == {"holdfast-loading"}


async def test_a_pod_that_never_comes_up_is_no_longer_protected_after_its_startup_timeout(api: FakeApi) -> None:
    writer = LoadingPods(api, startup_seconds)
    await writer.write([seen(loading())], NOW)
    await writer.write([seen(loading(marked=True))], NOW + LIMIT_SECONDS - 1.0)
    assert len(bodies(api)) == 1
    for at in (0.0, 5.0, 60.0, 3600.0):
        await writer.write([seen(loading(marked=at == 0.0))], NOW + LIMIT_SECONDS + at)
    assert bodies(api)[1:] == [("a", {}, {})]


async def test_a_pod_that_flaps_between_loading_and_failing_costs_two_writes(api: FakeApi) -> None:
    writer = LoadingPods(api, startup_seconds)
    for at in range(0, 1200, 5):
        marked = len(bodies(api)) == 1
        await writer.write([seen(loading(since=NOW if at % 60 < 30 else None, marked=marked))], NOW + at)
    assert len(bodies(api)) == 2


async def test_a_label_that_somebody_else_puts_on_costs_one_write(api: FakeApi) -> None:
    writer = LoadingPods(api, startup_seconds)
    for at in range(0, 1200, 5):
        await writer.write([seen(loading(since=None, marked=True))], NOW + at)
    assert bodies(api) == [("a", {}, {})]


async def test_values_of_other_people_stay_as_they_are(api: FakeApi) -> None:
    others = frozenset({"cluster-autoscaler.kubernetes.io/safe-to-evict"})
    await LoadingPods(api, startup_seconds).write([seen(loading(others=others))], NOW)
    assert bodies(api)[0][2] == {"karpenter.sh/do-not-disrupt": "true"}


async def test_a_new_leader_takes_the_marks_of_its_predecessor_off(api: FakeApi) -> None:
    await LoadingPods(api, startup_seconds).write([seen(loading(since=None, marked=True))], NOW)
    assert bodies(api) == [("a", {}, {})]


async def test_a_refused_write_is_tried_again_and_stops_no_other(api: FakeApi) -> None:
    class Refusing(FakeApi):
        async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if path.endswith("/a") and refused:
                raise ApiError(403, "not this pod")
            return await super().request(method, path, **more)

    refused, refusing = [True], Refusing()
    refusing.objects = api.objects
    writer = LoadingPods(refusing, startup_seconds)
    both = [seen(loading("a"), loading("b"))]
    await writer.write(both, NOW)
    assert [name for name, _, _ in bodies(refusing)] == ["b"]
    refused.clear()
    await writer.write(both, NOW + 1.0)
    assert [name for name, _, _ in bodies(refusing)] == ["b"]
    await writer.write(both, NOW + 60.0)
    assert [name for name, _, _ in bodies(refusing)] == ["b", "a"]


async def test_an_api_server_that_does_not_answer_ends_the_tick(api: FakeApi) -> None:
    api.fail_with = ApiUnreachable("PATCH: timeout")
    with pytest.raises(ApiUnreachable):
        await LoadingPods(api, startup_seconds).write([seen(loading())], NOW)


async def test_a_tick_writes_a_bounded_number_of_pods(api: FakeApi) -> None:
    names = [f"p{index}" for index in range(MOST_IN_A_TICK + 20)]
    for name in names:
        api.put_object(f"{PODS}/{name}", {"metadata": {"name": name, "uid": f"uid-{name}"}})
    writer, many = LoadingPods(api, startup_seconds), [seen(*map(loading, names))]
    await writer.write(many, NOW)
    assert len(bodies(api)) == MOST_IN_A_TICK
    await writer.write(many, NOW + 5.0)
    assert sorted(name for name, _, _ in bodies(api)) == sorted(names)

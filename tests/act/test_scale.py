"""Sizes are written only where the world still is as the decision saw it."""

from typing import Any

import pytest

from holdfast.act.api import ApiError
from holdfast.act.scale import StaleDecision, prefer_removal, removal_order, scale
from holdfast.domain.cluster import Workload
from holdfast.rendered.names import DELETION_COST
from tests.fakes import FakeApi

CHAT = Workload("chat-h100")
PATH = "/apis/apps/v1/namespaces/prod/deployments/chat-h100"


def api_with(replicas: int) -> FakeApi:
    api = FakeApi()
    api.put_object(PATH, {"metadata": {"name": "chat-h100"}, "spec": {"replicas": replicas}})
    return api


async def test_a_size_is_written_through_the_scale_subresource() -> None:
    api = api_with(2)
    await scale(api, "prod", CHAT, observed=2, wanted=5)
    assert api.writes() == [("PATCH", f"{PATH}/scale")]
    assert api.objects[PATH]["spec"]["replicas"] == 5


async def test_a_size_that_is_there_already_is_not_written() -> None:
    api = api_with(5)
    await scale(api, "prod", CHAT, observed=2, wanted=5)
    assert api.writes() == []


async def test_a_size_somebody_else_changed_meanwhile_is_left_alone() -> None:
    api = api_with(7)
    with pytest.raises(StaleDecision, match="7 replicas, decided on 2"):
        await scale(api, "prod", CHAT, observed=2, wanted=5)
    assert api.writes() == []


async def test_a_decision_that_is_dropped_marks_no_replica_for_removal() -> None:
    api = api_with(7)
    api.put_object("/api/v1/namespaces/prod/pods/a", {"metadata": {"name": "a"}})
    with pytest.raises(StaleDecision):
        await scale(api, "prod", CHAT, observed=2, wanted=1, remove_first=["a"])
    assert api.writes() == []


async def test_where_all_pods_go_none_is_marked() -> None:
    """One of them may have ended meanwhile."""
    api = api_with(2)
    await scale(api, "prod", CHAT, observed=2, wanted=0, remove_first=["a"])
    assert not [path for _, path in api.writes() if "/pods/" in path]


async def test_a_status_update_between_reading_and_writing_is_no_conflict_of_sizes() -> None:
    class Busy(FakeApi):
        busy = 2

        def _patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            if path.endswith("/scale") and self.busy:
                self.busy -= 1
                raise ApiError(409, "the object has been modified")
            return super()._patch(path, body)

    api = Busy()
    api.put_object(PATH, {"metadata": {}, "spec": {"replicas": 2}})
    api.put_object("/api/v1/namespaces/prod/pods/a", {"metadata": {"name": "a"}})
    await scale(api, "prod", CHAT, observed=2, wanted=1, remove_first=["a"])
    assert api.objects[PATH]["spec"]["replicas"] == 1
    assert len([path for _, path in api.writes() if "/pods/" in path]) == 1


async def test_a_conflict_that_does_not_end_is_an_error() -> None:
    class Conflicting(FakeApi):
        def _patch(self, path: str, body: dict[str, object]) -> dict[str, object]:
            raise ApiError(409, "conflict")

    api = Conflicting()
    api.put_object(PATH, {"metadata": {}, "spec": {"replicas": 1}})
    with pytest.raises(ApiError):
        await scale(api, "prod", CHAT, observed=1, wanted=2)


def test_the_least_loaded_replica_goes_first_and_ties_keep_their_order() -> None:
    assert removal_order(("a", "b", "c"), {"a": 3, "b": 0, "c": 0}) == ("b", "c", "a")


def test_what_is_lost_with_a_replica_or_without_spares_it_nothing() -> None:
    assert removal_order(("hung", "b", "c"), {"hung": 90, "b": 0, "c": 7}, ("hung",)) == ("hung", "b", "c")


async def test_replicas_to_remove_get_a_lower_deletion_cost_and_gone_ones_are_skipped() -> None:
    api = FakeApi()
    for name in ("a", "b"):
        api.put_object(f"/api/v1/namespaces/prod/pods/{name}", {"metadata": {"name": name}})
    await prefer_removal(api, "prod", ["a", "b"])
    first, second = (int(body["metadata"]["annotations"][DELETION_COST]) for body in api.objects.values())
    assert -(2**31) < first < second < 0


async def test_only_replicas_that_go_are_marked_and_before_those_marked_earlier() -> None:
    api = api_with(4)
    pods = {name: f"/api/v1/namespaces/prod/pods/{name}" for name in "abcd"}
    for name, path in pods.items():
        api.put_object(path, {"metadata": {"name": name, "annotations": {DELETION_COST: "-4"} if name == "d" else {}}})
    await scale(api, "prod", CHAT, observed=4, wanted=2, remove_first=list("abcd"))
    marked = [path for _, path in api.writes() if "/pods/" in path]
    assert marked == [pods["a"], pods["b"]]
    costs = {name: api.objects[path]["metadata"]["annotations"].get(DELETION_COST) for name, path in pods.items()}
    assert int(costs["a"]) < int(costs["b"]) < int(costs["d"]) == -4
    assert costs["c"] is None


async def test_one_replica_less_of_a_hundred_marks_one_pod() -> None:
    api, names = api_with(100), [f"pod-{index:02}" for index in range(100)]
    for name in names:
        api.put_object(f"/api/v1/namespaces/prod/pods/{name}", {"metadata": {"name": name}})
    await scale(api, "prod", CHAT, observed=100, wanted=99, remove_first=names)
    assert [path for _, path in api.writes() if "/pods/" in path] == ["/api/v1/namespaces/prod/pods/pod-00"]

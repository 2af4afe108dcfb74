"""Benchmarks among Jobs of earlier runs, namesakes, quotas and too little time: nothing is measured for another."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.api.llmservice import LLMService
from holdfast.rendered import names
from tests.control.parts import llmservice, parts
from tests.control.test_benchmarks import CALM_SECONDS, FAILURE, PODS, ROOT, SUMMARY, Play
from tests.fakes import FakeApi, HangingApi, RefusingApi


@pytest.fixture
def play() -> Play:
    return Play()


def use(play: Play, api: FakeApi) -> None:
    """The same objects behind another API server."""
    api.objects, play.api = play.api.objects, api
    play.restart()


async def run(play: Play, left: Any = SUMMARY, **declared: Any) -> None:
    play.declare(**declared)
    await play.tick(CALM_SECONDS)
    assert play.told()[0] == "Running", play.message()
    play.end(left, code=0 if left is SUMMARY else 1)
    await play.tick()


async def test_a_spec_that_comes_back_is_measured_anew_and_not_read_from_the_job_it_had_before(play: Play) -> None:
    play.resize(h100=4)
    await run(play)
    assert play.status()["capacity"]["replicas"] == 4
    await run(play, FAILURE, spec={"revision": 2}, generation=2)
    play.resize(h100=1)
    play.declare(generation=3)
    await play.tick(CALM_SECONDS)
    await play.tick()
    assert play.told() == ("Running", "BenchmarkRunning"), "the result of 4 replicas would pass for that of one"
    assert len(play.jobs()) == 3
    assert play.status()["capacity"]["replicas"] == 4


async def test_who_is_deleted_and_made_again_waits_until_its_old_job_is_collected(play: Play) -> None:
    await run(play)
    (job,) = play.jobs()
    del play.api.objects[f"{ROOT}/sweep"]
    play.declare()
    play.api.objects[f"{ROOT}/sweep"]["metadata"]["uid"] = "uid-another"
    await play.tick(CALM_SECONDS)
    assert play.told() == ("Pending", "Queued")
    assert "still being deleted" in play.message()
    del play.api.objects[job]
    await play.tick()
    assert play.told() == ("Running", "BenchmarkRunning")


async def test_a_job_that_is_being_deleted_is_waited_for(play: Play) -> None:
    play.declare()
    await play.tick()
    (job,) = play.jobs()
    del play.api.objects[f"{ROOT}/sweep"]["status"]
    play.api.objects[job]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    play.restart()
    await play.tick()
    assert play.told() == ("Pending", "Queued")


async def test_a_pod_of_another_benchmark_with_the_same_spec_says_nothing_of_this_one(play: Play) -> None:
    play.declare()
    await play.tick()
    play.end(SUMMARY)
    (pod,) = play.api.objects[PODS]["items"]
    pod["metadata"]["ownerReferences"] = [{"uid": "uid-of-another-job"}]
    await play.tick()
    assert play.told() == ("Failed", "BenchmarkFailed")
    assert "its pod is deleted" in play.message()


async def test_a_pod_that_has_begun_is_no_longer_said_to_wait(play: Play) -> None:
    play.declare()
    await play.tick()
    play.pod({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]})
    await play.tick()
    assert play.message() == "the pod of the benchmark waits: Unschedulable"
    job = play.api.objects[play.jobs()[0]]
    job["status"] = {"active": 1, "ready": 1}
    await play.tick()
    assert play.message() == "the benchmark sends load to chat (1 replica)"
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]}
    play.api.put_object(PODS, {"items": []})
    await play.tick()
    assert play.told() == ("Failed", "TimedOut")
    assert "Unschedulable" not in play.message()


async def test_a_run_on_a_lost_node_ends_in_time(play: Play) -> None:
    """Its pod is never seen to end, and so the Job never says Failed: others of the target would wait for ever."""
    play.declare()
    await play.tick()
    about_to_fail = {"type": "FailureTarget", "status": "True", "reason": "DeadlineExceeded"}
    play.api.objects[play.jobs()[0]]["status"] = {"conditions": [about_to_fail]}
    await play.tick()
    assert play.told() == ("Failed", "TimedOut")


async def test_an_edit_that_makes_no_sense_ends_the_run_under_way_too(play: Play) -> None:
    play.declare()
    await play.tick()
    play.declare(generation=2)
    play.api.objects[f"{ROOT}/sweep"]["spec"]["timeout"] = "soon"
    await play.tick()
    assert play.told() == ("Failed", "Invalid")
    assert play.jobs() == []


async def test_a_result_that_may_not_be_kept_in_a_config_map_is_told_and_stands_in_status(play: Play) -> None:
    play.declare()
    await play.tick()
    play.end(SUMMARY)
    use(play, RefusingApi("configmaps", 403))
    await play.tick()
    assert play.told() == ("Succeeded", "Measured")
    assert "result not stored in ConfigMap sweep-benchmark: exceeded quota" in play.message()
    assert "configMap" not in play.status()
    assert play.status()["capacity"]["replicas"] == 1


async def test_a_config_map_of_somebody_else_is_not_named_as_the_result(play: Play) -> None:
    path = "/api/v1/namespaces/prod/configmaps/sweep-benchmark"
    play.api.put_object(path, {"metadata": {"name": "sweep-benchmark"}, "data": {"mine": "kept"}})
    await run(play)
    assert play.told() == ("Succeeded", "Measured")
    assert "sweep-benchmark exists and does not belong to this benchmark" in play.message()
    assert "configMap" not in play.status()
    assert play.api.objects[path]["data"] == {"mine": "kept"}


async def test_an_api_server_that_is_ill_keeps_no_result_from_its_config_map(play: Play) -> None:
    play.declare()
    await play.tick()
    play.end(SUMMARY)
    well = play.api
    use(play, RefusingApi("configmaps", 503))
    await play.tick()
    assert play.told() == ("Running", "BenchmarkRunning")
    use(play, well)
    await play.tick()
    assert play.status()["configMap"] == "sweep-benchmark"


async def test_an_event_that_could_not_be_posted_is_posted_with_the_next_tick(play: Play) -> None:
    well = play.api
    use(play, RefusingApi("events", 503))
    play.declare()
    await play.tick()
    use(play, well)
    await play.tick()
    assert play.told() == ("Running", "BenchmarkRunning")
    assert [reason for reason, _ in play.events("LLMService")] == ["BenchmarkRunning"]
    assert [reason for reason, _ in play.events("LLMBenchmark")] == ["BenchmarkRunning"]


async def test_a_turn_whose_status_is_written_late_is_told_of_once(play: Play) -> None:
    well = play.api
    use(play, RefusingApi("llmbenchmarks", 503))
    play.declare()
    await play.tick()
    await play.tick()
    use(play, well)
    await play.tick()
    assert play.told() == ("Running", "BenchmarkRunning")
    assert len(play.events("LLMService")) == 1
    assert len(play.events("LLMBenchmark")) == 1


async def test_a_namespace_that_takes_no_events_holds_no_benchmark_back(play: Play) -> None:
    use(play, RefusingApi("events", 403))
    await run(play)
    assert play.told() == ("Succeeded", "Measured")


@pytest.mark.looptime
async def test_who_a_short_tick_left_out_comes_first_in_the_next(play: Play) -> None:
    recorded = {"sweep": None, "trace": {"configMapKeyRef": {"name": "hangs", "key": "a"}}}
    for number in range(3):
        play.declare(recorded, name=f"first-{number}")
    play.declare({"target": {"serviceRef": None, "url": "http://elsewhere:8000"}}, name="last")
    use(play, HangingApi("configmaps/hangs"))
    for _ in range(4):
        await play.tick()
    assert play.told("last") == ("Running", "BenchmarkRunning")


async def test_one_that_makes_no_sense_ends_no_tick(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    play.services.append(parts(llmservice("odd"), ready={"h100": 1}))
    known = names.service_url

    def address(service: LLMService) -> str:
        assert service.metadata.name != "odd"
        return known(service)

    monkeypatch.setattr("holdfast.render.benchmark.names.service_url", address)
    play.declare({"target": {"serviceRef": {"name": "odd"}}}, name="odd")
    play.declare(name="sweep")
    await play.tick()
    assert play.told() == ("Running", "BenchmarkRunning")
    assert play.telemetry.errors == ["act"]


async def test_a_sweep_waits_until_the_load_of_another_is_no_longer_taken_for_that_of_users(play: Play) -> None:
    await run(play)
    play.declare(name="second")
    play.declare({"sweep": None, "rate": {"rps": 1}}, name="rate")
    await play.tick()
    assert play.told("second") == ("Pending", "Queued")
    assert "waits until the load of the previous benchmark" in play.message("second")
    assert play.told("rate") == ("Running", "BenchmarkRunning"), "it finds no capacity: nothing is mistaken"

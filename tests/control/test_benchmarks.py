"""A benchmark from its first tick to its result: one Job for each spec, one run at a time for each target."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.act.api import ApiError, ApiUnreachable
from holdfast.control.benchmarks.benchmarks import Benchmarks
from holdfast.domain.benchmark import EngineKind
from holdfast.domain.cluster import Placement, Workload
from holdfast.observe.adoption.adoption import TargetState, adopted
from holdfast.observe.objects.benchmarks import Benchmark, benchmark_from_object
from holdfast.observe.objects.cluster import ObservedDeployment, ServiceParts
from holdfast.render import RenderSettings
from tests.api.benchmark_refusals import RECORDED, benchmark
from tests.builders import NOW
from tests.control.parts import llmservice, parts
from tests.fakes import FakeApi, ManualClock
from tests.observe.foreign import deployment, pod, service
from tests.render.scenes import chat_h100, live

ROOT = "/apis/holdfast.dev/v1alpha1/namespaces/prod/llmbenchmarks"
JOBS = "/apis/batch/v1/namespaces/prod/jobs"
PODS = "/api/v1/namespaces/prod/pods"
SETTINGS = RenderSettings(pod_files={}, activator_image="registry.example.com/holdfast:0.1.0")
SUMMARY: dict[str, Any] = {
    "version": 1,
    "run": {
        "attainment": 0.996,
        "requests": 400,
        "goodput_rps": 3.4,
        "prompt_tokens": 512.0,
        "output_tokens": 128.0,
        "ttft_p95_seconds": 0.41,
        "bad": {"late_ttft": 2},
    },
    "sweep": {
        "objective": 0.99,
        "carried_rps": 4.0,
        "saturates_rps": 4.4,
        "attains_rps": 3.5,
        "misses_rps": 3.9,
        "trials": [[1.0, 1.0, 1.0, 120.0, 0.02, 0.008, 50, 0]],
    },
}
CALM_SECONDS = 130.0
"""After so long the load of a benchmark is no longer counted as that of users."""
FAILURE = {"version": 1, "failure": {"why": "unreachable", "message": "cannot reach http://chat"}}


TUNED: dict[str, Any] = {
    "version": 1,
    "run": {"attainment": 0.995, "requests": 400, "prompt_tokens": 512.0, "output_tokens": 128.0},
    "tune": {
        "objective": 0.99,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "rate_rps": 3.4,
        "missed_rps": 3.7,
        "confirmed": True,
        "made": 7,
        "trials": [[64, 2048, 3.4, 0.995, 0.1, 0.02, 400, 1]],
    },
}


class Telemetry:
    """Counts failures."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def error(self, phase: str) -> None:
        self.errors.append(phase)


class Play:
    """An API server with benchmarks in it, and an operator that looks at them tick by tick."""

    def __init__(self, settings: RenderSettings = SETTINGS) -> None:
        self.api, self.clock, self.telemetry = FakeApi(), ManualClock(NOW), Telemetry()
        self.settings = settings
        self.api.put_object(PODS, {"items": []})
        self.services: list[ServiceParts] = [parts(llmservice("chat"), ready={"h100": 1})]
        self.restart()

    def restart(self) -> None:
        """Another process leads from here on."""
        self.operator = Benchmarks(self.api, self.settings, self.telemetry, may_write=lambda: True)

    def declare(self, spec: Any = (), name: str = "sweep", generation: int = 1) -> None:
        body = benchmark(spec, name)
        kept = self.api.objects.get(f"{ROOT}/{name}", {}).get("status", {})
        body["metadata"] |= {"namespace": "prod", "uid": f"uid-{name}", "generation": generation}
        body["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{len(self.api.objects):02d}Z"
        self.api.put_object(f"{ROOT}/{name}", {**body, "status": kept})

    def seen(self) -> list[Benchmark]:
        found = [benchmark_from_object(body) for path, body in self.api.objects.items() if path.startswith(ROOT)]
        return sorted((each for each in found if each), key=lambda each: each.created)

    async def tick(self, seconds: float = 5.0) -> None:
        self.clock.advance(seconds)
        await self.operator.act(self.seen(), self.services, self.clock())

    def status(self, name: str = "sweep") -> dict[str, Any]:
        found: dict[str, Any] = self.api.objects[f"{ROOT}/{name}"]["status"]
        return found

    def told(self, name: str = "sweep") -> tuple[str, str]:
        """Phase and reason."""
        status = self.status(name)
        return status["phase"], status["conditions"][0]["reason"]

    def message(self, name: str = "sweep") -> str:
        return str(self.status(name)["conditions"][0]["message"])

    def jobs(self) -> list[str]:
        return [path for path in self.api.objects if path.startswith(JOBS)]

    def end(self, left: Any, reason: str = "", words: str = "Completed", code: int = 0) -> None:
        """The newest Job ends, and its container leaves this termination message."""
        job = self.api.objects[self.jobs()[-1]]
        kind = "Failed" if code else "Complete"
        job["status"] = {"conditions": [{"type": kind, "status": "True", "reason": reason}]}
        message = left if isinstance(left, str) else json.dumps(left)
        state = {"terminated": {"exitCode": code, "reason": words, "message": message}}
        self.pod({"containerStatuses": [{"name": "bench", "state": state}]})

    def pod(self, status: dict[str, Any]) -> None:
        uid = self.api.objects[self.jobs()[-1]]["metadata"]["uid"]
        meta = {"creationTimestamp": "2026", "ownerReferences": [{"uid": uid}]}
        self.api.put_object(PODS, {"items": [{"metadata": meta, "status": status}]})

    def events(self, of: str) -> list[tuple[str, str]]:
        found = [body for path, body in self.api.objects.items() if "/events/" in path]
        return [(each["reason"], each["message"]) for each in found if each["involvedObject"]["kind"] == of]

    def resize(self, **ready: int) -> None:
        self.services = [parts(llmservice("chat"), ready=ready)]

    def deploy(self, ready: int = 0, **spec: Any) -> None:
        """The service has a Deployment on h100."""
        service = llmservice("chat", **spec)
        deployed = ObservedDeployment(
            Placement("h100", 1, workload=Workload("chat-h100")), rendered=live(chat_h100(service))
        )
        self.services = [replace(parts(service, ready={"h100": ready}), deployed=(deployed,))]


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def tuning() -> Play:
    """A benchmark that tunes, and a service that serves nobody right now."""
    play = Play()
    play.deploy()
    play.declare({"sweep": None, "tune": {}})
    return play


async def test_tuning_starts_an_engine_of_its_own_and_its_limits_stand_in_status_and_config_map(tuning: Play) -> None:
    await tuning.tick()
    assert tuning.told() == ("Running", "BenchmarkRunning")
    assert shown(tuning) == {"accelerator": "h100", "replicas": 1, "generation": 1}
    assert "serving replicas get no load" in tuning.message()
    pod = tuning.api.objects[tuning.jobs()[0]]["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["initContainers"]] == ["vllm"]
    tuning.deploy(ready=3)  # what happens to replicas that serve is none of its business
    await tuning.tick()
    tuning.end(TUNED)
    await tuning.tick()
    assert tuning.told() == ("Succeeded", "Measured")
    result = tuning.status()["result"]
    assert (result["limits"], result["maxNumSeqs"], result["maxNumBatchedTokens"]) == ("64/2048", 64, 2048)
    assert result["vllmFlags"] == "--max-num-seqs=64 --max-num-batched-tokens=2048"
    assert (result["atObjectiveRps"], result["trials"]) == (3.4, 7)
    patch = json.loads(result["patch"])
    assert llmservice("chat", **patch["spec"]).spec.batching.max_num_seqs == 64
    found = tuning.api.objects["/api/v1/namespaces/prod/configmaps/sweep-benchmark"]["data"]
    assert json.loads(found["patch.json"]) == patch
    assert found["trials.csv"].splitlines()[1].startswith("64.0,2048.0,3.4,")


async def test_limits_that_were_found_are_where_the_capacity_of_a_replica_holds(tuning: Play) -> None:
    await tuning.tick()
    tuning.end(TUNED)
    await tuning.tick()
    (measured,) = tuning.operator.results(tuning.seen())["prod"]
    assert (measured.batching.max_num_seqs, measured.batching.max_num_batched_tokens) == (64, 2048)
    assert measured.rate_rps == 3.4
    assert "3.4 ± " in tuning.message()


@pytest.mark.parametrize(
    ("tune", "remedy"),
    [
        ({"accelerator": "a100"}, "chat does not list the accelerator a100; set one of h100, l40s"),
        ({"accelerator": "l40s"}, "chat has no Deployment on l40s yet"),
    ],
)
async def test_an_engine_that_cannot_be_started_is_told(tune: dict[str, Any], remedy: str, tuning: Play) -> None:
    tuning.declare({"sweep": None, "tune": tune}, generation=2)
    await tuning.tick()
    assert tuning.told() == ("Pending", "TargetNotReady")
    assert remedy in tuning.message()
    assert tuning.jobs() == []


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ({"plugin": "Disabled"}, "run without the plugin"),
        ({"frontEnd": "Rust"}, "show no limits on port 8000"),
        ({"args": ["--api-server-count=2"]}, "show no limits on port 8000"),
    ],
)
async def test_engines_whose_limits_cannot_be_changed_are_not_tuned_live(
    tuning: Play, engine: dict[str, Any], why: str
) -> None:
    service = llmservice("chat", engine=engine)
    deployed = ObservedDeployment(
        Placement("h100", 1, workload=Workload("chat-h100")), rendered=live(chat_h100(service))
    )
    tuning.services = [replace(parts(service), deployed=(deployed,))]
    await tuning.tick()
    assert tuning.told() == ("Pending", "TargetNotReady")
    assert why in tuning.message()
    assert "--restart-command" in tuning.message()


async def test_a_group_of_pods_is_not_tuned_in_the_single_pod_of_a_benchmark(tuning: Play) -> None:
    service = llmservice("chat", accelerators=[{"name": "h100", "count": 2, "nodes": 2}])
    placement = Placement("h100", 1, workload=Workload("chat-h100", "LeaderWorkerSet"))
    deployed = ObservedDeployment(placement, rendered=live(chat_h100(llmservice("chat"))))
    tuning.services = [replace(parts(service), deployed=(deployed,))]
    await tuning.tick()
    assert tuning.told() == ("Pending", "TargetNotReady")
    assert "is a group of 2 pods, and a benchmark starts one pod" in tuning.message()


async def test_an_engine_of_a_service_that_was_just_edited_is_not_started_as_it_was_before(tuning: Play) -> None:
    before = tuning.services[0]
    edited = llmservice("chat", generation=2, model={"uri": "Qwen/Qwen3-32B"})
    tuning.services = [replace(parts(edited), deployed=before.deployed)]
    await tuning.tick()
    assert tuning.told() == ("Pending", "TargetNotReady")
    assert tuning.message() == "the Deployment of chat on h100 does not match the edited service yet"
    tuning.deploy(model={"uri": "Qwen/Qwen3-32B"})
    await tuning.tick()
    assert tuning.told() == ("Running", "BenchmarkRunning")


@pytest.mark.parametrize("tune", [{"maxNumSeqs": 1024}, {"maxNumBatchedTokens": 32}])
async def test_limits_with_which_vllm_does_not_start_hold_no_gpu(tune: dict[str, Any], tuning: Play) -> None:
    tuning.deploy(batching={"maxNumSeqs": 64, "maxNumBatchedTokens": 512})
    tuning.declare({"sweep": None, "tune": tune}, generation=2)
    await tuning.tick()
    assert tuning.told() == ("Pending", "TargetNotReady")
    assert "set both tune.maxNumSeqs and tune.maxNumBatchedTokens" in tuning.message()
    assert tuning.jobs() == []


async def test_a_pod_that_a_quota_refuses_is_not_said_to_run(tuning: Play) -> None:
    await tuning.tick()
    job = tuning.api.objects[tuning.jobs()[0]]
    await tuning.tick()
    assert f"kubectl describe job/{job['metadata']['name']}" in tuning.message()
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]}
    await tuning.tick()
    assert tuning.told() == ("Failed", "TimedOut")
    assert "such as a quota" in tuning.message()


async def test_a_rate_that_others_missed_is_not_told_as_one_that_keeps_the_objective(tuning: Play) -> None:
    await tuning.tick()
    tuning.end({**TUNED, "tune": {**TUNED["tune"], "confirmed": False}})
    await tuning.tick()
    assert tuning.status()["result"]["limits"] == "64/2048"
    assert "atObjectiveRps" not in tuning.status()["result"]
    assert "3.4 req/s with 99 % good is not confirmed" in tuning.message()


async def test_objectives_that_no_limits_meet_are_a_result_without_a_capacity(tuning: Play) -> None:
    await tuning.tick()
    tuning.end({"version": 1, "run": {}, "tune": {"objective": 0.99, "note": "cannot be met with any limits"}})
    await tuning.tick()
    assert tuning.told() == ("Succeeded", "Measured")
    assert "cannot be met with any limits" in tuning.message()
    assert "capacity" not in tuning.status()
    assert "limits" not in tuning.status()["result"]


def shown(play: Play) -> dict[str, Any]:
    """The engines in status but for their digest."""
    return {name: value for name, value in play.status()["engines"].items() if name != "digest"}


def crashed(message: str, restarts: int = 1, client: str = "waiting") -> dict[str, Any]:
    """The status of a pod whose engine ends and ends, while its client waits or works."""
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    died = {"terminated": {"exitCode": 1, "message": message}}
    engine = {"name": "vllm", "state": waits, "lastState": died, "restartCount": restarts}
    begins = {"name": "bench", "state": {client: {"reason": "PodInitializing"}}}
    return {"containerStatuses": [begins], "initContainerStatuses": [engine]}


async def test_an_engine_that_does_not_start_is_told_with_what_it_died_of(tuning: Play) -> None:
    await tuning.tick()
    tuning.pod(crashed("CUDA out of memory"))
    await tuning.tick()
    assert tuning.message() == "the pod of the benchmark waits: vllm: CrashLoopBackOff: CUDA out of memory"
    tuning.pod(crashed(f"{'Traceback ' * 200}CUDA out of memory"))
    await tuning.tick()
    assert tuning.message().startswith("the pod of the benchmark waits: vllm: CrashLoopBackOff: …")
    assert tuning.message().endswith("CUDA out of memory"), "a traceback says last what was wrong"


async def test_an_engine_that_never_starts_gives_its_gpus_back_before_the_timeout(tuning: Play) -> None:
    await tuning.tick()
    tuning.pod(crashed("CUDA out of memory", restarts=4))
    await tuning.tick()
    assert tuning.told() == ("Failed", "BenchmarkFailed")
    assert (
        "does not start: vllm: CrashLoopBackOff: CUDA out of memory; fix it, then change spec.revision"
    ) in tuning.message()
    assert tuning.jobs() == []


async def test_an_engine_that_ends_while_it_is_measured_is_started_again(tuning: Play) -> None:
    await tuning.tick()
    tuning.pod(crashed("CUDA out of memory", restarts=9, client="running"))
    await tuning.tick()
    assert tuning.told() == ("Running", "BenchmarkRunning")
    assert len(tuning.jobs()) == 1


async def test_who_took_the_place_of_a_run_is_told(tuning: Play) -> None:
    await tuning.tick()
    tuning.end("", words="Error", code=143)
    (pod,) = tuning.api.objects[PODS]["items"]
    told = {"reason": "PreemptionByScheduler", "message": "preempting to accommodate a higher priority pod"}
    pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", **told}]
    await tuning.tick()
    assert tuning.told() == ("Failed", "BenchmarkFailed")
    assert "wrote no result: PreemptionByScheduler: preempting to accommodate a higher priority pod" in tuning.message()


async def test_a_result_of_tuning_that_nobody_asked_for_says_nothing_of_a_replica(play: Play) -> None:
    play.declare({"target": {"serviceRef": None, "url": "http://elsewhere:8000"}})
    await play.tick()
    play.end(TUNED)
    await play.tick()
    assert "capacity" not in play.status()
    assert play.operator.results(play.seen()) == {}


async def test_a_benchmark_runs_once_and_its_result_stands_in_status_and_config_map(play: Play) -> None:
    play.declare()
    await play.tick()
    assert play.told() == ("Running", "BenchmarkRunning")
    assert play.status()["target"] == "chat"
    assert shown(play) == {"accelerator": "h100", "replicas": 1, "generation": 1}
    play.end(SUMMARY)
    await play.tick()
    assert play.told() == ("Succeeded", "Measured")
    result = play.status()["result"]
    assert result["saturationRps"] == 4.0
    assert result["atObjectiveRps"] == 3.5
    assert result["operatingRange"] == "2-2.8"
    assert result["attainment"] == "99.6%"
    assert result["ttftP95"] == "410ms"
    assert result["bad"] == "2 late_ttft"
    found = play.api.objects["/api/v1/namespaces/prod/configmaps/sweep-benchmark"]
    assert json.loads(found["data"]["summary.json"])["sweep"]["attains_rps"] == 3.5
    assert found["data"]["trials.csv"].startswith("rate_rps,attainment")
    assert found["metadata"]["ownerReferences"][0]["uid"] == "uid-sweep"


@pytest.mark.parametrize(
    ("ready", "tokens_per_dollar"), [({"h100": 1}, 6e5), ({"h100": 2}, None)], ids=["one replica", "one more meanwhile"]
)
async def test_tokens_per_dollar_are_kept_where_the_same_replicas_answered_all_along(
    ready: dict[str, int], tokens_per_dollar: float | None, play: Play
) -> None:
    play.declare()
    await play.tick()
    play.resize(**ready)
    await play.tick()
    play.end({**SUMMARY, "run": {**SUMMARY["run"], "output_tokens_per_second": 500.0, "arrival_rps": 3.5}})
    await play.tick()
    found = play.api.objects["/api/v1/namespaces/prod/configmaps/sweep-benchmark"]["data"]["summary.json"]
    assert json.loads(found)["run"].get("tokens_per_dollar") == tokens_per_dollar


async def test_what_has_ended_costs_no_request_also_after_a_restart(play: Play) -> None:
    play.declare()
    await play.tick()
    play.end(SUMMARY)
    await play.tick()
    play.restart()
    before = len(play.api.requests)
    for _ in range(5):
        await play.tick()
    assert len(play.api.requests) == before
    assert len(play.jobs()) == 1


async def test_an_edited_spec_runs_again_and_what_was_found_of_a_replica_stands_meanwhile(play: Play) -> None:
    play.declare()
    await play.tick()
    play.end(SUMMARY)
    await play.tick()
    capacity = play.status()["capacity"]
    play.declare({"revision": 2}, generation=2)
    await play.tick(CALM_SECONDS)
    assert play.told() == ("Running", "BenchmarkRunning")
    assert len(play.jobs()) == 2
    assert play.status()["capacity"] == capacity
    play.end(FAILURE, code=1)
    await play.tick()
    assert play.told() == ("Failed", "TargetUnreachable")
    assert play.status()["capacity"] == capacity


async def test_a_spec_that_says_the_same_in_other_words_runs_not_again(play: Play) -> None:
    play.declare()
    await play.tick()
    play.end(SUMMARY)
    await play.tick()
    play.declare({"sweep": {"startRps": 1.0}, "timeout": "1h"}, generation=2)
    await play.tick()
    assert len(play.jobs()) == 1
    assert play.status()["observedGeneration"] == 2
    assert play.told() == ("Succeeded", "Measured")


async def test_an_edit_ends_the_run_under_way(play: Play) -> None:
    play.declare()
    await play.tick()
    (first,) = play.jobs()
    play.declare({"revision": 2}, generation=2)
    await play.tick()
    assert play.jobs() == []
    assert play.told() == ("Pending", "Queued"), "the load of the first run has to end"
    await play.tick(CALM_SECONDS)
    (second,) = play.jobs()
    assert second != first
    assert play.told() == ("Running", "BenchmarkRunning")


async def test_a_run_that_was_begun_is_found_again_by_the_next_leader(play: Play) -> None:
    play.declare()
    await play.tick()
    del play.api.objects[f"{ROOT}/sweep"]["status"]  # the process ended between the two writes
    play.restart()
    await play.tick()
    assert len(play.jobs()) == 1
    play.end(SUMMARY)
    await play.tick()
    assert play.told() == ("Succeeded", "Measured")


async def test_a_job_of_somebody_else_is_left_alone(play: Play) -> None:
    play.declare()
    await play.tick()
    (path,) = play.jobs()
    play.api.objects[path]["metadata"]["ownerReferences"] = []
    del play.api.objects[f"{ROOT}/sweep"]["status"]
    play.restart()
    await play.tick()
    assert play.told() == ("Failed", "NameConflict")
    assert play.jobs() == [path]


async def test_a_job_that_was_deleted_is_not_run_again_by_itself(play: Play) -> None:
    play.declare()
    await play.tick()
    (path,) = play.jobs()
    del play.api.objects[path]
    await play.tick()
    await play.tick()
    assert play.told() == ("Failed", "BenchmarkFailed")
    assert "spec.revision" in play.message()
    assert play.jobs() == []


async def test_one_target_is_measured_by_one_benchmark_at_a_time(play: Play) -> None:
    for name in ("first", "second"):
        play.declare(name=name)
    play.declare({"target": {"serviceRef": None, "url": "http://elsewhere:8000"}}, name="other")
    play.declare({"target": {"serviceRef": None, "url": "http://chat.prod.svc:8000"}}, name="roundabout")
    await play.tick()
    assert play.told("first") == ("Running", "BenchmarkRunning")
    assert play.told("second") == ("Pending", "Queued")
    assert play.told("other") == ("Running", "BenchmarkRunning")
    assert play.told("roundabout") == ("Pending", "Queued"), "the same service by its address"
    first = next(path for path in play.jobs() if "/first-" in path)
    play.api.objects[first]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    await play.tick()
    assert play.told("first") == ("Failed", "BenchmarkFailed")
    await play.tick(CALM_SECONDS)
    assert play.told("second") == ("Running", "BenchmarkRunning")
    assert play.told("roundabout") == ("Pending", "Queued")


async def test_a_service_that_is_not_there_or_serves_nobody_is_waited_for(play: Play) -> None:
    play.services = []
    play.declare()
    await play.tick()
    assert play.told() == ("Pending", "TargetNotReady")
    assert "no valid LLMService chat" in play.message()
    play.resize()
    await play.tick()
    assert "no replica of chat is ready" in play.message()
    play.resize(h100=1)
    await play.tick()
    assert play.told() == ("Running", "BenchmarkRunning")


def a_target() -> ServiceParts:
    """A service of the same name that sizes somebody else's Deployment."""
    found = adopted(service(), TargetState(deployment(), (pod(0),)), {})
    assert isinstance(found, ServiceParts)
    return found


@pytest.mark.parametrize(
    ("load", "remedy"),
    [({"sweep": {}}, "set target.url to"), ({"sweep": None, "tune": {}}, "run holdfast tune --url")],
)
async def test_engines_of_a_target_are_not_measured_as_those_of_the_service(
    load: dict[str, Any], remedy: str, play: Play
) -> None:
    play.services = [a_target()]
    play.declare(load)
    await play.tick()
    assert play.told() == ("Pending", "TargetNotReady")
    assert "chat has a target" in play.message()
    assert remedy in play.message()
    assert play.jobs() == []


async def test_a_run_whose_service_gets_a_target_ends_in_order(play: Play) -> None:
    play.declare()
    await play.tick()
    play.services = [a_target()]
    await play.tick()
    assert play.told() == ("Running", "BenchmarkRunning")
    play.end(SUMMARY)
    await play.tick()
    assert play.told() == ("Succeeded", "Measured")
    assert play.telemetry.errors == []


async def test_a_trace_that_is_not_there_is_named_and_waited_for(play: Play) -> None:
    path = "/api/v1/namespaces/prod/configmaps/trace"
    play.declare({"sweep": None, "trace": RECORDED})
    await play.tick()
    assert play.told() == ("Pending", "Invalid")
    assert "ConfigMap trace does not exist" in play.message()
    play.api.put_object(path, {"metadata": {"name": "trace"}, "data": {"other.csv": ""}})
    await play.tick()
    assert "has no key azure.csv" in play.message()
    assert play.jobs() == []
    play.api.put_object(path, {"metadata": {"name": "trace"}, "data": {"azure.csv": ""}})
    await play.tick()
    assert play.told() == ("Running", "BenchmarkRunning")


async def test_without_its_own_image_the_operator_says_so() -> None:
    play = Play(RenderSettings(pod_files={}))
    play.declare()
    await play.tick()
    assert play.told() == ("Pending", "NoImage")


async def test_a_result_becomes_a_capacity_of_services_of_its_namespace(play: Play) -> None:
    play.declare()
    await play.tick()
    play.end(SUMMARY)
    await play.tick()
    play.restart()
    results = play.operator.results(play.seen())
    (measured,) = results["prod"]
    spec = play.services[0].spec
    assert measured.engine == EngineKind.of(spec, spec.accelerators[0]).digest
    assert measured.rate_rps == pytest.approx(3.69, abs=0.01)
    assert 0.0 < measured.standard_error_rps < measured.rate_rps
    assert (measured.slo.ttft_seconds, measured.slo.tpot_seconds, measured.slo.objective) == (1.0, 0.05, 0.99)
    assert (measured.prompt_tokens, measured.output_tokens, measured.length_cv) == (512.0, 128.0, 0.0)
    assert abs(measured.measured_at - play.clock()) < 1.0
    assert list(results) == ["prod"]


@pytest.mark.parametrize(
    "broken",
    [
        {"perReplicaRps": float("nan")},
        {"perReplicaRps": -1},
        {"perReplicaRps": "4"},
        {"perReplicaRps": True},
        {"perReplicaRps": 1e300},
        {"standardErrorRps": 0},
        {"measuredAt": "yesterday"},
        {"measuredAt": None},
        {"ttft": "soon"},
        {"objective": 99},
        {"promptTokens": None},
        {"engine": None, "accelerator": None, "perReplicaRps": None},
        {"lengthCv": "wide"},
    ],
)
async def test_a_status_that_somebody_edited_sizes_nothing(broken: dict[str, Any], play: Play) -> None:
    play.declare()
    await play.tick()
    play.end(SUMMARY)
    await play.tick()
    play.restart()
    play.status()["capacity"] |= broken
    assert play.operator.results(play.seen()) == {}


async def test_replicas_that_came_during_the_run_leave_no_capacity_and_say_why(play: Play) -> None:
    play.declare()
    await play.tick()
    play.resize(h100=3)
    await play.tick()
    assert "from 1 h100 to 3 h100" in play.status()["engines"]["moved"]
    play.resize(h100=1)
    play.end(SUMMARY)
    await play.tick()
    assert play.told() == ("Succeeded", "Measured")
    assert "capacity" not in play.status()
    assert "pin spec.replicas" in play.message()


async def test_an_address_has_a_result_and_no_capacity(play: Play) -> None:
    play.declare({"target": {"serviceRef": None, "url": "http://elsewhere:8000"}})
    await play.tick()
    assert "engines" not in play.status()
    play.end(SUMMARY)
    await play.tick()
    assert play.told() == ("Succeeded", "Measured")
    assert "capacity" not in play.status()
    assert play.events("LLMService") == []


async def test_the_service_hears_of_the_load_when_it_comes_and_when_it_ends(play: Play) -> None:
    play.declare()
    await play.tick()
    await play.tick()
    play.end(SUMMARY)
    await play.tick()
    told = play.events("LLMService")
    assert [reason for reason, _ in told] == ["BenchmarkRunning", "Measured"]
    assert all(message.startswith("benchmark sweep: ") for _, message in told)
    assert [reason for reason, _ in play.events("LLMBenchmark")] == ["BenchmarkRunning", "Measured"]


@pytest.mark.parametrize("left", ["", "Killed", "{}", '{"version": 1, "run": {"requests": 1e400}}', "[" * 4096])
async def test_whatever_a_container_leaves_the_run_ends(left: str, play: Play) -> None:
    play.declare()
    await play.tick()
    play.end(left, words="OOMKilled", code=137)
    await play.tick()
    assert play.told() == ("Failed", "BenchmarkFailed")
    assert "OOMKilled, exit code 137" in play.message()
    assert play.telemetry.errors == []


async def test_a_pod_that_waits_is_told_and_still_known_when_time_is_up(play: Play) -> None:
    play.declare()
    await play.tick()
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    play.pod({"containerStatuses": [{"name": "bench", "state": waits}]})
    await play.tick()
    assert play.message() == "the pod of the benchmark waits: ImagePullBackOff: no such image"
    job = play.api.objects[play.jobs()[0]]
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]}
    play.api.put_object(PODS, {"items": []})
    await play.tick()
    assert play.told() == ("Failed", "TimedOut")
    assert "within 1h: ImagePullBackOff" in play.message()


async def test_a_run_at_work_costs_one_request_a_tick(play: Play) -> None:
    play.declare()
    await play.tick()
    play.api.objects[play.jobs()[0]]["status"] = {"active": 1, "ready": 1}
    await play.tick()
    before = len(play.api.requests)
    await play.tick()
    assert [method for method, *_ in play.api.requests[before:]] == ["GET"]


async def test_an_api_server_that_is_away_loses_nothing(play: Play) -> None:
    play.declare()
    await play.tick()
    play.end(SUMMARY)
    for trouble in (ApiUnreachable("away"), ApiError(500, "ill")):
        play.api.fail_with = trouble
        await play.tick()
    play.api.fail_with = None
    assert play.telemetry.errors == ["act", "act"]
    await play.tick()
    assert play.told() == ("Succeeded", "Measured")


async def test_a_refused_job_is_told_and_tried_again(play: Play) -> None:
    play.declare()

    class Refusing(FakeApi):
        """Admission refuses Jobs."""

        def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            if path == JOBS:
                raise ApiError(403, "admission webhook says no")
            return super()._post(path, body)

    refusing = Refusing()
    refusing.objects, kept = play.api.objects, play.api
    play.api = refusing
    play.restart()
    await play.tick()
    assert play.told() == ("Pending", "ApplyFailed")
    assert "admission webhook says no" in play.message()
    play.api = kept
    play.restart()
    await play.tick()
    assert play.told() == ("Running", "BenchmarkRunning")


async def test_an_object_that_makes_no_sense_is_told_once(play: Play) -> None:
    play.declare()
    play.api.objects[f"{ROOT}/sweep"]["spec"]["timeout"] = "soon"
    for _ in range(3):
        await play.tick()
    assert play.told() == ("Failed", "Invalid")
    assert len(play.events("LLMBenchmark")) == 1
    assert play.jobs() == []


async def test_a_benchmark_that_is_being_deleted_is_let_go(play: Play) -> None:
    play.declare()
    play.api.objects[f"{ROOT}/sweep"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await play.tick()
    assert play.api.writes() == []


async def test_a_namesake_starts_anew(play: Play) -> None:
    play.declare()
    await play.tick()
    play.end(SUMMARY)
    await play.tick()
    play.api.objects = {path: body for path, body in play.api.objects.items() if not path.startswith((ROOT, JOBS))}
    play.declare()
    play.api.objects[f"{ROOT}/sweep"]["metadata"]["uid"] = "uid-another"
    await play.tick(CALM_SECONDS)
    assert play.told() == ("Running", "BenchmarkRunning")
    (job,) = play.jobs()
    assert play.api.objects[job]["metadata"]["ownerReferences"][0]["uid"] == "uid-another"


async def test_arrivals_besides_are_kept_from_the_beginning_of_the_run(play: Play) -> None:
    busy = llmservice("chat").model_copy(update={"status": {"slo": {"arrivalRps": 0.9}}})
    play.services = [parts(busy, ready={"h100": 1})]
    play.declare()
    await play.tick()
    play.end(SUMMARY)
    await play.tick()
    assert "other traffic of 0.9 req/s arrived" in play.message()

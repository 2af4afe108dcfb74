"""LLMBenchmarks on a real cluster: a Job without rights measures, and what it finds sizes services of the namespace."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e import stack
from e2e.kubectl import Json, Kubectl, condition
from e2e.limits import alive
from e2e.patience import patient

pytestmark = pytest.mark.cluster

_READY_SECONDS = 120.0
_SWEEP_SECONDS = 420.0
_FAILS_SECONDS = 120.0
# Short answers: a trial of a sweep takes seconds. The client shares its cores with two clusters: here it matters what
# becomes of a result, not how exact it is.
_SHORT = {"lengths": {"promptTokens": 64, "outputTokens": 16}, "maxClientLag": "30s", "timeout": "10m"}
_TRACE = "arrival_seconds,prompt_tokens,output_tokens\n" + "".join(f"{0.25 * n},32,8\n" for n in range(40))


@pytest.fixture(scope="module")
def sized(operator: None, place: Kubectl) -> Json:
    """A service of one replica, pinned, that serves."""
    service = stack.small_service("sized")
    service["spec"]["replicas"] = 1
    place.apply(service)
    return place.wait_for("llms", "sized", lambda found: _ready(found) == 1, _READY_SECONDS, "a replica")


@pytest.fixture(scope="module")
def swept(sized: Json, place: Kubectl) -> Json:
    """The same, once a sweep has ended."""
    place.apply(
        benchmark("sweep", {"serviceRef": {"name": "sized"}}, sweep={"startRps": 6, "maxTrials": 7}, duration="6s")
    )
    place.wait_for("llmb", "sweep", lambda found: _reason(found) == "BenchmarkRunning", 30, "its beginning")
    # Beside the first: it has to wait.
    place.apply(benchmark("queued", {"serviceRef": {"name": "sized"}}, rate={"rps": 2}, duration="5s"))
    place.wait_for("llmb", "queued", lambda found: _reason(found) == "Queued", 30, "its turn to be waited for")
    return place.wait_for("llmb", "sweep", _ended, _SWEEP_SECONDS, "its end")


def benchmark(name: str, target: Json, **load: Any) -> Json:
    """A benchmark with short answers; a load of its own lengths has none here."""
    spec = {**_SHORT, "target": target, **load}
    if "trace" in load:
        del spec["lengths"]
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "LLMBenchmark",
        "metadata": {"name": name},
        "spec": spec,
    }


def test_a_sweep_finds_what_the_service_carries(swept: Json, place: Kubectl) -> None:
    status = swept["status"]
    assert (status["phase"], _reason(swept)) == ("Succeeded", "Measured"), status
    result = status["result"]
    assert 0 < result["atObjectiveRps"] <= result["saturationRps"], result
    assert result["ttftP95"], result
    assert status["engines"]["accelerator"] == "l40s"
    assert status["engines"]["replicas"] == 1
    assert status["target"] == "sized"


def test_get_shows_a_row_that_can_be_read(swept: Json, place: Kubectl) -> None:
    header, row = place.run("get", "llmb", "sweep").splitlines()
    figures = ["SATURATION", "AT-OBJECTIVE", "LIMITS", "ATTAINMENT"]
    assert header.split() == ["NAME", "TARGET", "PHASE", *figures, "REASON", "CAPACITY", "AGE"]
    assert row.split()[:3] == ["sweep", "sized", "Succeeded"]
    assert float(row.split()[3]) > 0


def test_the_result_stands_in_a_config_map_and_the_report_in_the_log(swept: Json, place: Kubectl) -> None:
    found = place.get_json("configmap", swept["status"]["configMap"])
    assert json.loads(found["data"]["summary.json"])["sweep"]["attains_rps"] > 0
    assert len(found["data"]["trials.csv"].splitlines()) > 2
    # What it says beside the report goes another way into the log, and may stand in the middle of it.
    log = place.logs(f"job/{swept['status']['job']}")
    assert '"trials": [' in log
    assert '"at_objective_rps": ' in log


def test_the_job_may_do_nothing_at_the_api_server(swept: Json, place: Kubectl) -> None:
    (pod,) = place.items("pods", f"holdfast.dev/benchmark-run={swept['status']['run']}")
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert not [volume for volume in pod["spec"].get("volumes", []) if "projected" in volume]


def test_what_was_found_is_what_services_with_the_same_engines_are_sized_from(swept: Json, place: Kubectl) -> None:
    capacity = swept["status"]["capacity"]
    assert capacity["accelerator"] == "l40s"
    assert 0 < capacity["standardErrorRps"] < capacity["perReplicaRps"]
    told = place.wait_for("llms", "sized", _is_sized_by_it, 120, "a capacity from the benchmark")
    assert "± " in told["status"]["capacity"]["source"]
    place.wait_for("llmb", "sweep", lambda seen: condition(seen, "CapacityInUse").get("reason") == "InForce", 30, "use")


def test_the_service_was_told_of_the_load(swept: Json, place: Kubectl) -> None:
    def reasons() -> set[str]:
        told = [event for event in place.items("events") if event["involvedObject"]["kind"] == "LLMService"]
        return {str(event["reason"]) for event in told if event["message"].startswith("benchmark sweep: ")}

    place.wait_until(lambda: "Measured" in reasons(), 30, "the Event of its end")
    assert reasons() == {"BenchmarkRunning", "Measured"}


def test_the_one_that_waited_has_its_turn(swept: Json, place: Kubectl) -> None:
    found = place.wait_for("llmb", "queued", _ended, 120, "its end")
    assert (found["status"]["phase"], _reason(found)) == ("Succeeded", "Measured"), found["status"]
    assert "only a sweep" in condition(found, "Complete")["message"]


def test_tuning_finds_limits_on_an_engine_that_no_user_can_reach(swept: Json, place: Kubectl) -> None:
    place.wait_for("llmb", "queued", _ended, 120, "the target to be free")
    served = _answered(place)
    place.apply(benchmark("limits", {"serviceRef": {"name": "sized"}}, tune={"requests": 40, "maxTrials": 12}))
    place.wait_for("llmb", "limits", lambda found: _reason(found) == "BenchmarkRunning", 30, "its beginning")
    place.wait_until(lambda: bool(place.items("pods", "holdfast.dev/benchmark=limits")), 30, "its pod")
    found = place.wait_for("llmb", "limits", _ended, _SWEEP_SECONDS, "its end")
    assert (found["status"]["phase"], _reason(found)) == ("Succeeded", "Measured"), found["status"]
    result = found["status"]["result"]
    assert 0 < result["maxNumSeqs"] <= 8, result
    confirmed = "confirmed with new requests" in condition(found, "Complete")["message"]
    assert ("atObjectiveRps" in result) == confirmed, result
    kept = place.get_json("configmap", found["status"]["configMap"])["data"]
    assert len(kept["trials.csv"].splitlines()) == 1 + result["trials"]
    patched = place.run("patch", "llms", "sized", "--type=merge", f"--patch={kept['patch.json']}", "--dry-run=server")
    assert "patched" in patched
    assert _answered(place) - served < 10, "replicas that serve were loaded"


def test_an_address_is_measured_without_a_service(sized: Json, place: Kubectl) -> None:
    objectives = {"ttft": "5s", "tpot": "200ms", "objective": "90%"}
    place.apply(benchmark("address", {"url": sized["status"]["url"]}, rate={"rps": 2}, duration="5s", slo=objectives))
    found = place.wait_for("llmb", "address", _ended, 120, "its end")
    status = found["status"]
    assert (status["phase"], _reason(found)) == ("Succeeded", "Measured"), status
    assert status["result"]["requests"] > 0
    assert status["result"]["ttftP95"]
    assert "engines" not in status, "nobody knows what stands behind an address"
    assert "capacity" not in status


def test_nobody_at_the_address_is_told(operator: None, place: Kubectl) -> None:
    place.apply(benchmark("lost", {"url": "http://nobody.example:8000"}, concurrency=1))
    found = place.wait_for("llmb", "lost", _ended, _FAILS_SECONDS, "its end")
    assert (found["status"]["phase"], _reason(found)) == ("Failed", "TargetUnreachable"), found["status"]
    assert "nobody.example" in condition(found, "Complete")["message"]


def test_a_trace_comes_from_a_config_map_once_it_is_there(swept: Json, place: Kubectl) -> None:
    recorded = {"configMapKeyRef": {"name": "recorded", "key": "trace.csv"}}
    place.wait_for("llmb", "queued", _ended, 120, "the target to be free")
    place.apply(benchmark("replay", {"serviceRef": {"name": "sized"}}, trace=recorded))
    place.wait_for(
        "llmb", "replay", lambda found: "does not exist in this namespace" in _message(found), 30, "the remedy"
    )
    place.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "recorded"}, "data": {"trace.csv": _TRACE}}
    )
    found = place.wait_for("llmb", "replay", _ended, 120, "its end")
    assert (found["status"]["phase"], _reason(found)) == ("Succeeded", "Measured"), found["status"]
    assert 0 < found["status"]["result"]["requests"] <= 40


def test_deleting_a_benchmark_deletes_its_job_and_its_result(swept: Json, place: Kubectl) -> None:
    selector = "holdfast.dev/benchmark=sweep"
    assert place.items("jobs,configmaps", selector)
    place.delete("llmb", "sweep")
    place.wait_until(lambda: not place.items("jobs,configmaps,pods", selector), 60, "all that it owned to be gone")


def _answered(place: Kubectl) -> float:
    """Requests that the replicas of the service have finished."""
    found = 0.0
    for pod in alive(place, "sized"):
        with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8000/metrics", timeout=patient(10.0)) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            samples = [sample for family in families for sample in family.samples]
            found += sum(each.value for each in samples if each.name == "vllm:request_success_total")
    return found


def _ready(found: Json) -> int:
    return int(found.get("status", {}).get("replicas", {}).get("ready", 0))


def _ended(found: Json) -> bool:
    return found.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _reason(found: Json) -> str:
    return str(condition(found, "Complete").get("reason"))


def _message(found: Json) -> str:
    return str(condition(found, "Complete").get("message"))


def _is_sized_by_it(found: Json) -> bool:
    return str(found["status"].get("capacity", {}).get("source", "")).startswith("benchmark sweep of ")

"""The real vLLM in real pods: a service of a tiny model on the CPU, loaded with vLLM's own benchmark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from e2e import stack
from e2e.cluster import nodes, seed
from e2e.kubectl import Json, Kubectl, condition
from e2e.limits import APPLY_SECONDS, edit_ttft, tell, told
from e2e.load.client import ClientSettings
from e2e.load.streams import Streams
from e2e.vllm import image
from e2e.vllm.bench import Bench, Load
from e2e.vllm.environment import Environment
from e2e.vllm.installed import installed_vllm
from holdfast.observe.objects.failure_words import explained

# One test has all that the two runs of the benchmark wait for.
pytestmark = [pytest.mark.cluster, pytest.mark.vllm, pytest.mark.timeout(2700)]

_RESOURCE = "holdfast.dev/cpu-engine"
_MOUNT = "/opt/vllm"
_MODEL = "tiny"
_LABELS = {"holdfast_service": "tiny", "holdfast_accelerator": "cpu"}
# vLLM imports for half a minute on an idle core; here two of them, the benchmark and the cluster share two cores.
_READY_SECONDS = 300.0
# Loose bounds: what is shown is that each number arrives, not how fast two shared cores are.
_SLO = {"ttft": "10s", "tpot": "2s", "objective": "90%", "window": "5m"}
# The first run lasts until about the second engine's first answers, the second one longer than a drain.
_RISING = Load(requests=100, rate_rps=1.0, ttft_ms=10_000, tpot_ms=2_000)
# One answer of ten ends its connection, and every other new one leads to the other engine: at one request a second,
# both might have been asked only when the run was about over.
_FALLING = replace(_RISING, requests=120, rate_rps=2.0)


@dataclass
class Story:
    """What was seen while people set the size to two and to one again, each under load."""

    alone: Json
    widened: Json
    narrowed: Json
    served_by: dict[str, float]
    drained_under_load: bool
    rising: dict[str, Any]
    falling: dict[str, Any]


@pytest.fixture(scope="module")
def vllm() -> Environment:
    """The installed engine."""
    return installed_vllm()


@pytest.fixture(scope="module")
def claim(vllm: Environment, place: Kubectl) -> Iterator[str]:
    """A claim, as a team's shared volume of models is one, for the folder with the packages and the model."""
    name = f"vllm-{place.namespace}"
    place.apply([_volume(name, vllm.folder, place.namespace), _claim_of(name)])
    yield name
    place.delete("persistentvolume", name, wait=False)


@pytest.fixture(scope="module")
def tiny(operator: None, vllm: Environment, claim: str, place: Kubectl) -> Json:
    """The service, Ready."""
    seed.import_archive(image.engine_image(vllm).archive)
    nodes.set_node_capacity({_RESOURCE: 4})
    started = time.monotonic()
    place.apply(_service(claim))
    found = place.wait_for("llms", "tiny", _is_ready, _READY_SECONDS, "Ready")
    print(f"the first engine was Ready after {time.monotonic() - started:.0f} s")
    return found


@pytest.fixture(scope="module")
def last_words(tiny: Json, claim: str, place: Kubectl) -> Json:
    """How an engine ended whose KV cache holds no request; its pod is removed then."""
    failing = _service(claim)
    failing["metadata"]["name"] = "failing"
    failing["spec"]["engine"]["args"].append("--num-gpu-blocks-override=1")
    place.apply(failing)
    try:
        place.wait_until(lambda: bool(_ended(place)), _READY_SECONDS, "the end of the engine", poll_seconds=1)
        return _ended(place)[0]
    finally:
        place.delete("llms", "failing", wait=False)


@pytest.fixture(scope="module")
def story(tiny: Json, vllm: Environment, place: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Two runs of the benchmark: one while a replica comes, one while it goes."""

    def bench(load: Load) -> Bench:
        return Bench(vllm, tiny["status"]["url"], _MODEL, load, tmp_path_factory.mktemp("bench"))

    place.scale("llms", "tiny", 1)  # on a slow machine the operator would find one too few by itself
    with bench(_RISING) as load:
        alone = place.wait_for("llms", "tiny", _is_measured, 120, "an attainment")
        place.scale("llms", "tiny", 2)
        widened = place.wait_for("llms", "tiny", lambda found: _ready(found) == 2, _READY_SECONDS, "two replicas")
        print(f"the second engine was Ready {'under' if load.is_running else 'after'} load")
        rising = load.result()
    before = _served_by(place)
    with bench(_FALLING) as load:
        place.wait_until(lambda: len(_served_by(place, before)) == 2, 120, "requests at both replicas", poll_seconds=1)
        place.scale("llms", "tiny", 1)
        place.wait_until(lambda: len(_pods(place, leaving=True)) == 1, 60, "a replica to leave")
        drained_under_load = load.is_running
        served_by = _served_by(place, before)
        narrowed = place.wait_for("llms", "tiny", _is_single, 120, "one replica")
        falling = load.result()
    place.wait_until(lambda: len(_pods(place)) == 1, 120, "the drained replica to be gone")
    return Story(alone, widened, narrowed, served_by, drained_under_load, rising, falling)


def test_a_real_engine_serves_a_token_before_it_is_ready(tiny: Json, place: Kubectl) -> None:
    log = place.logs(_pods(place)[0])
    assert "holdfast launcher: starting vllm serve /models/model" in log
    assert "holdfast: ready, one token served" in log


def test_a_real_engine_runs_with_the_plugin_as_the_operator_mounts_it(tiny: Json, place: Kubectl) -> None:
    (pod,) = _pods(place)
    assert "holdfast launcher: the fast loop runs inside vLLM 0.32" in place.logs(pod)
    assert "holdfast: limits of version" in place.logs(pod)
    place.wait_until(lambda: _modes(place) == {pod: "active"}, 60, "the plugin at work", poll_seconds=1)


def test_a_real_engine_counts_no_request_before_its_first_client(tiny: Json, place: Kubectl) -> None:
    for counted in ("vllm:request_success_total", "holdfast:requests_arrived_total"):
        place.wait_until(lambda: bool(_series(place, counted)), 60, "a scrape of the engine", poll_seconds=1)  # noqa: B023
        assert sum(value for _, value in _series(place, counted)) == 0.0, "the warm-up is nobody's request"


def test_a_real_engine_runs_without_privileges(tiny: Json, place: Kubectl) -> None:
    pod = place.get_json("pod", _pods(place)[0])
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    assert place.execute(pod["metadata"]["name"], "id", "-u").strip() == "2000"


def test_the_operator_is_told_why_a_real_engine_ends_while_it_starts(last_words: Json) -> None:
    assert last_words["exitCode"] == 1
    # The log's own last lines, which the kubelet would show, hold a part of the API server's traceback.
    assert "Traceback" not in last_words["message"]
    _, words = explained("CrashLoopBackOff", last_words["message"], {"name": "failing", "namespace": "llm"})
    assert words.startswith("ValueError: No available memory for the cache blocks")
    assert words.endswith("or use GPUs with more memory or a higher accelerators[].count")


def test_prometheus_scrapes_the_metrics_of_vllm_with_our_labels(story: Story, place: Kubectl) -> None:
    for name in ("request_success_total", "time_to_first_token_seconds_bucket", "num_requests_running"):
        found = _series(place, f"vllm:{name}")
        assert found, name
        assert all(labels["model_name"] == _MODEL and labels["holdfast_revision"] for labels, _ in found), name


def test_prometheus_scrapes_what_the_plugin_judged(story: Story, place: Kubectl) -> None:
    good, arrived = (_series(place, f"holdfast:requests_{name}_total") for name in ("good", "arrived"))
    assert sum(value for _, value in good) > 0
    assert all(labels["model_name"] == _MODEL and labels["holdfast_revision"] for labels, _ in good)
    assert sum(value for _, value in arrived) >= sum(value for _, value in good)


def test_status_shows_attainment_and_the_decision(story: Story) -> None:
    measured, decided = story.alone["status"]["slo"], story.widened["status"]["lastDecision"]
    assert _attainment(story.alone) > 0
    assert float(measured["arrivalRps"]) > 0
    assert decided["action"] == "ScaleUp"
    assert decided["reason"] == "Pinned"
    assert story.narrowed["status"]["lastDecision"]["action"] == "ScaleDown"


def test_both_engines_answer_while_there_are_two(story: Story) -> None:
    assert len(story.served_by) == 2


def test_every_request_is_answered_while_a_replica_comes_and_goes(story: Story) -> None:
    assert story.drained_under_load
    for load, result in ((_RISING, story.rising), (_FALLING, story.falling)):
        assert result["failed"] == 0
        assert result["completed"] == result["num_prompts"] == load.requests
        assert result["total_output_tokens"] == load.requests * load.output_tokens
        assert result["request_goodput"] > 0


def test_an_edited_slo_reaches_a_real_engine_within_seconds(tiny: Json, place: Kubectl) -> None:
    place.wait_for("llms", "tiny", _follows, 60, "engines that show their limits")
    pods = _pods(place, leaving=False)
    assert edit_ttft(place, "tiny", 9.0, 8.0, 9.0).apply_seconds < APPLY_SECONDS
    assert _pods(place, leaving=False) == pods, "no engine was replaced"
    place.wait_for("llms", "tiny", _follows, 60, "engines that show their limits again")


def test_the_time_per_token_of_a_real_engine_follows_a_lowered_bound(tiny: Json, place: Kubectl) -> None:
    settings = ClientSettings(tiny["status"]["url"], _MODEL, prompt_style="ids")
    # Long prompts, short answers, as many streams as may run: prefill beside decode, not vLLM's fixed cost per step,
    # makes the time per token, on whatever machine this runs.
    with stack.no_operator(), Streams(settings, streams=16, prompt_tokens=512, output_tokens=32) as streams:
        wide = streams.least_tpot_seconds(36, enough=0.0)
        for pod, limits in told(place, "tiny").items():
            took = tell(place, pod, {**limits, "version": limits["version"] + 1, "activeSequences": 2})
            print(f"{pod}: applied {took:.1f} s after the annotation was written")
            assert took < APPLY_SECONDS
        few = streams.least_tpot_seconds(36, enough=0.8 * wide)
        if few >= 0.8 * wide:
            # The machine may have become slower between the two: without the bound it shows how much.
            for pod, limits in told(place, "tiny").items():
                tell(place, pod, {**_without_bound(limits), "version": limits["version"] + 1})
            wide = max(wide, streams.least_tpot_seconds(36, enough=0.0))
    print(f"mean TPOT {wide * 1000:.1f} ms before, {few * 1000:.1f} ms with two sequences at a time")
    assert few < 0.8 * wide


def _ended(place: Kubectl) -> list[Json]:
    """How the engines of the failing service ended."""
    pods = place.items("pods", "holdfast.dev/service=failing")
    engines = [each for pod in pods for each in pod["status"].get("containerStatuses", ()) if each["name"] == "vllm"]
    states = [state for each in engines for state in (each["state"], each.get("lastState", {}))]
    return [state["terminated"] for state in states if "terminated" in state]


def _without_bound(limits: Json) -> Json:
    return {name: value for name, value in limits.items() if name != "activeSequences"}


def _service(claim: str) -> Json:
    memory = {"requests": {"cpu": "400m", "memory": "1Gi"}, "limits": {"memory": "6Gi"}}
    variables = {
        "PYTHONPATH": f"{_MOUNT}/packages",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Both engines may use both cores: bound to one each, they would share it.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "tiny"},
        "spec": {
            # float32: for bfloat16 vLLM picks AMX kernels, which some virtual machines announce and do not run.
            "model": {"uri": f"pvc://{claim}/model", "servedName": _MODEL, "dtype": "float32", "maxModelLen": 1024},
            "slo": _SLO,
            "accelerators": [{"name": "cpu", "resource": _RESOURCE}],
            "scaling": {"min": 1, "max": 2},
            "batching": {"mode": "Fixed", "maxNumSeqs": 16, "maxNumBatchedTokens": 1024},
            "engine": {
                "image": image.ENGINE_IMAGE,
                "args": ["--load-format=dummy", "--enforce-eager"],
                "env": [{"name": name, "value": value} for name, value in variables.items()],
                "resources": memory,
                "shutdownTimeout": "60s",
            },
            "template": {
                "spec": {
                    "volumes": [{"name": "vllm", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}],
                    "containers": [
                        {"name": "vllm", "volumeMounts": [{"name": "vllm", "mountPath": _MOUNT, "readOnly": True}]}
                    ],
                }
            },
        },
    }


def _volume(name: str, folder: Path, namespace: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "capacity": {"storage": "4Gi"},
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {"name": name, "namespace": namespace},
        },
    }


def _claim_of(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "resources": {"requests": {"storage": "4Gi"}},
            "storageClassName": "",
            "volumeName": name,
        },
    }


def _is_ready(found: Json) -> bool:
    return condition(found, "Ready").get("status") == "True"


def _is_measured(found: Json) -> bool:
    seen = found["status"].get("slo", {})
    return float(seen.get("arrivalRps") or 0) > 0 and _attainment(found) > 0


def _follows(found: Json) -> bool:
    return found["status"].get("batching", {}).get("appliedLive") is True


def _attainment(found: Json) -> float:
    """Percent of good requests, 0 while none is measured."""
    return float(found["status"].get("slo", {}).get("attainment", "0%").removesuffix("%"))


def _is_single(found: Json) -> bool:
    return bool(found["status"]["replicas"]["desired"] == 1 and _ready(found) == 1)


def _ready(found: Json) -> int:
    return int(found.get("status", {}).get("replicas", {}).get("ready", 0))


def _pods(place: Kubectl, *, leaving: bool | None = None) -> list[str]:
    """Names of the engine's pods; only those that are being deleted, or only the others, when asked so."""
    found = [pod["metadata"] for pod in place.items("pods", "holdfast.dev/service=tiny")]
    return [pod["name"] for pod in found if leaving is None or ("deletionTimestamp" in pod) is leaving]


def _served_by(place: Kubectl, before: dict[str, float] | None = None) -> dict[str, float]:
    """Requests that each pod has finished since `before`; pods with none are left out."""
    finished: dict[str, float] = {}
    for labels, value in _series(place, "vllm:request_success_total"):
        finished[labels["pod"]] = finished.get(labels["pod"], 0.0) + value
    since = {pod: count - (before or {}).get(pod, 0.0) for pod, count in finished.items()}
    return {pod: count for pod, count in since.items() if count > 0}


def _modes(place: Kubectl) -> dict[str, str]:
    """What the plugin says that it does, by pod."""
    return {labels["pod"]: labels["mode"] for labels, _ in _series(place, "holdfast:plugin_info")}


def _series(place: Kubectl, metric: str) -> list[tuple[dict[str, str], float]]:
    """The series of the service, as Prometheus has them now; a scrape that failed or an engine that left ends none."""
    wanted = {"namespace": place.namespace, **_LABELS}
    selector = ",".join(f'{name}="{value}"' for name, value in wanted.items())
    result = stack.ask(f"last_over_time({metric}{{{selector}}}[1m])")
    return [(entry["metric"], float(entry["value"][1])) for entry in result]

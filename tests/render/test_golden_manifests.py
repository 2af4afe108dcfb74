"""The rendered objects, whole (tests/golden) and by what must hold for every one of them."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.llmservice import LLMService
from holdfast.cli.main import build_parser
from holdfast.render import AcceleratorFacts, RenderContext, RenderSettings, remarks, render, service_url, with_replicas
from holdfast.render.podfiles import load_pod_files
from holdfast.rendered.names import Manifest
from tests.render.regenerate import GOLDEN
from tests.render.scenes import FULL, SETTINGS, chat_h100, context, deployments, engine, golden_scenes, live, service

SCENES = golden_scenes()
ALL = [manifest for manifests in SCENES.values() for manifest in manifests]
NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,24}[a-z0-9])?", fullmatch=True)


@pytest.mark.parametrize("scene", SCENES)
def test_manifests_equal_the_golden_files(scene: str) -> None:
    expected = list(yaml.safe_load_all((GOLDEN / f"manifests-{scene}.yaml").read_text()))
    assert list(SCENES[scene]) == expected, "if this is meant: python -m tests.render.regenerate, then read the diff"


@pytest.mark.parametrize("manifest", ALL, ids=lambda manifest: f"{manifest['kind']}-{manifest['metadata']['name']}")
def test_every_object_is_owned_and_labelled(manifest: Manifest) -> None:
    metadata = manifest["metadata"]
    assert metadata["namespace"] == "prod"
    assert metadata["labels"]["holdfast.dev/service"] == "chat"
    assert metadata["labels"]["app.kubernetes.io/managed-by"] == "holdfast"
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("LLMService", "chat", True)


def test_rendering_twice_gives_the_same_bytes() -> None:
    assert json.dumps(golden_scenes()) == json.dumps(SCENES)


@given(name=NAMES, accelerators=st.lists(NAMES, min_size=1, max_size=4, unique=True))
def test_names_and_label_values_fit(name: str, accelerators: list[str]) -> None:
    body = {
        "metadata": {"name": name, "namespace": "ns", "uid": "u"},
        "spec": {
            "model": {"uri": "Qwen/Qwen3-8B"},
            "slo": {"ttft": "1s", "tpot": "50ms"},
            "accelerators": [{"name": accelerator} for accelerator in accelerators],
        },
    }
    manifests = render(LLMService.parse(body), accelerators, SETTINGS, RenderContext(replicas=2, pod_monitor=True))
    for manifest in manifests:
        assert len(manifest["metadata"]["name"]) <= 63
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())
    assert [f"{name}-{accelerator}" for accelerator in accelerators] == list(deployments(manifests))


def test_deployments_never_name_replicas_except_for_their_creation() -> None:
    manifest = chat_h100(service())
    assert "replicas" not in manifest["spec"]
    assert with_replicas(manifest, 3)["spec"]["replicas"] == 3
    assert "replicas" not in manifest["spec"]


def test_an_accelerator_that_the_spec_does_not_list_is_left_out() -> None:
    assert list(deployments(render(service(), ["gone", "h100", "h100"], SETTINGS, RenderContext()))) == ["chat-h100"]


def budgets(context: RenderContext) -> dict[str, dict[str, Any]]:
    manifests = render(service(), ["h100"], SETTINGS, context)
    return {each["metadata"]["name"]: each["spec"] for each in manifests if each["kind"] == "PodDisruptionBudget"}


@pytest.mark.parametrize("most", [0, 1, 3])
def test_no_pod_is_selected_by_both_disruption_budgets(most: int) -> None:
    found = budgets(RenderContext(replicas=1, max_unavailable=most))
    assert found["chat"]["maxUnavailable"] == most
    assert found["chat"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert (found["chat.loading"]["minAvailable"], "maxUnavailable" in found["chat.loading"]) == (0, False)
    (serving,) = found["chat"]["selector"]["matchExpressions"]
    (loading,) = found["chat.loading"]["selector"]["matchExpressions"]
    assert (serving["key"], serving["operator"], loading["operator"]) == (loading["key"], "DoesNotExist", "Exists")


def test_no_replica_has_no_disruption_budget() -> None:
    assert not budgets(RenderContext(replicas=0))


def test_scraping_is_found_by_pod_monitor_or_by_annotation_never_by_both() -> None:
    monitored = render(service(), ["h100"], SETTINGS, RenderContext(pod_monitor=True))
    annotated = render(service(), ["h100"], SETTINGS, RenderContext(pod_monitor=False))
    for manifests, by_monitor in ((monitored, True), (annotated, False)):
        template = deployments(manifests)["chat-h100"]["spec"]["template"]
        assert ("PodMonitor" in [item["kind"] for item in manifests]) is by_monitor
        assert ("annotations" in template["metadata"]) is not by_monitor


def test_prometheus_labels_stand_on_the_pods_and_in_the_monitor() -> None:
    manifests = render(service(), ["h100"], SETTINGS, RenderContext(pod_monitor=True))
    labels = deployments(manifests)["chat-h100"]["spec"]["template"]["metadata"]["labels"]
    (monitor,) = [item for item in manifests if item["kind"] == "PodMonitor"]
    assert monitor["spec"]["podTargetLabels"] == ["holdfast_service", "holdfast_accelerator", "holdfast_revision"]
    assert set(monitor["spec"]["podTargetLabels"]) <= set(labels)
    assert (labels["holdfast_service"], labels["holdfast_accelerator"]) == ("chat", "h100")


@given(prestop=st.integers(0, 300), shutdown=st.integers(1, 3600))
def test_the_grace_period_outlasts_prestop_and_shutdown(prestop: int, shutdown: int) -> None:
    settings = RenderSettings(pod_files={}, prestop_seconds=prestop)
    pods = chat_h100(service({"engine": {"shutdownTimeout": f"{shutdown}s"}}), settings=settings)["spec"]["template"]
    assert pods["spec"]["terminationGracePeriodSeconds"] > prestop + shutdown


@given(cold_start=st.none() | st.floats(0.0, 1e5), startup=st.integers(60, 7200))
def test_the_progress_deadline_outlasts_any_start(cold_start: float | None, startup: int) -> None:
    settings = RenderSettings(pod_files={}, startup_seconds=startup)
    manifest = chat_h100(service(), context(cold_start_seconds=cold_start), settings)
    probe = engine(manifest)["startupProbe"]
    assert manifest["spec"]["progressDeadlineSeconds"] > max(startup, cold_start or 0.0)
    assert probe["periodSeconds"] * probe["failureThreshold"] >= startup


def test_pods_meet_the_restricted_pod_security_standard() -> None:
    pods = chat_h100(service())["spec"]["template"]["spec"]
    container = pods["containers"][0]["securityContext"]
    assert pods["securityContext"]["runAsNonRoot"]
    assert pods["securityContext"]["runAsUser"] > 0
    assert pods["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["allowPrivilegeEscalation"] is False
    assert container["readOnlyRootFilesystem"] is True
    assert pods["automountServiceAccountToken"] is False
    kinds = {next(iter(volume.keys() - {"name"})) for volume in pods["volumes"]}
    assert kinds <= {"configMap", "downwardAPI", "emptyDir"}


def test_everything_an_engine_writes_lies_on_a_writable_mount() -> None:
    container = engine(chat_h100(service({"model": {"cache": {"pvc": "cache"}}})))
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    values = {item["name"]: item.get("value", "") for item in container["env"]}
    for variable in ("HOME", "HF_HOME", "VLLM_CACHE_ROOT", "PYTHONPYCACHEPREFIX"):
        assert any(values[variable].startswith(f"{mount}/") for mount in writable), variable
    assert {"/tmp", "/dev/shm"} <= set(writable)


def test_a_bytecode_cache_is_kept_only_where_it_outlives_the_pod() -> None:
    names = {item["name"] for item in engine(chat_h100(service()))["env"]}
    assert "PYTHONPYCACHEPREFIX" not in names


def test_secrets_stay_references() -> None:
    (deployment,) = deployments(render(service(base=FULL), ["h100"], SETTINGS, RenderContext())).values()
    values = {item["name"]: item for item in engine(deployment)["env"]}
    assert values["VLLM_API_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "chat-key", "key": "key"}}
    assert values["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hf", "key": "token"}}


def test_the_accelerators_variables_replace_the_engines() -> None:
    (deployment,) = deployments(render(service(base=FULL), ["h100"], SETTINGS, RenderContext())).values()
    backends = [item["value"] for item in engine(deployment)["env"] if item["name"] == "VLLM_ATTENTION_BACKEND"]
    assert backends == ["FLASH_ATTN"]


def test_the_users_labels_reach_the_objects_but_never_replace_ours() -> None:
    for manifest in SCENES["full"]:
        assert manifest["metadata"]["labels"]["team"] == "search"
        assert manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "holdfast"


def test_an_overlay_cannot_take_a_pod_out_of_its_selector() -> None:
    overlay = {"metadata": {"labels": {"app.kubernetes.io/name": "other", "holdfast_service": "other"}}}
    manifest = chat_h100(service({"template": overlay}))
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels["holdfast_service"] == "chat"


def test_the_service_selects_the_pods_of_every_accelerator() -> None:
    manifests = SCENES["full"]
    (front,) = [item for item in manifests if item["kind"] == "Service"]
    for deployment in deployments(manifests).values():
        assert front["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert front["spec"]["ports"][0]["port"] == 8000
    assert "clusterIP" not in front["spec"]


def test_the_url_follows_tls() -> None:
    assert service_url(service()) == "http://chat.prod.svc:8000"
    assert service_url(service(base=FULL)) == "https://chat.prod.svc:8000"


def ports_by_service(manifests: tuple[Manifest, ...]) -> dict[str, tuple[str, str]]:
    """Name and application protocol of the only port of each Service."""
    services = [item for item in manifests if item["kind"] == "Service"]
    ports = {item["metadata"]["name"]: item["spec"]["ports"] for item in services}
    return {name: (port["name"], port["appProtocol"]) for name, (port,) in ports.items()}


def test_every_port_says_what_it_speaks_so_that_no_mesh_takes_tls_for_plain_http() -> None:
    assert ports_by_service(render(service(), ["h100"], SETTINGS, RenderContext())) == {"chat": ("http", "http")}
    assert ports_by_service(render(service(base=FULL), ["h100"], SETTINGS, RenderContext())) == {
        "chat": ("http", "https")
    }
    assert ports_by_service(SCENES["zero"]) == {
        "chat": ("http", "http"),
        "chat-engines": ("http", "http"),
        "chat-activator": ("admin", "http"),
    }


def test_clients_that_are_led_to_an_activator_find_plain_http_whatever_engines_will_speak() -> None:
    """`scaling.min` is raised and a certificate is given in one edit: the activator stays until a replica serves."""
    settings = replace(SETTINGS, activator_image="registry.example.com/holdfast:0.1.0")
    held = render(service(base=FULL), ["h100"], settings, RenderContext(holding=True))
    assert ports_by_service(held)["chat"] == ("http", "http")


def test_the_mounted_files_are_named_by_their_content() -> None:
    names = set()
    for text in ("one", "two", "one"):
        settings = RenderSettings(pod_files={"launcher.py": text})
        (files,) = [
            item for item in render(service(), ["h100"], settings, RenderContext()) if item["kind"] == "ConfigMap"
        ]
        volumes = chat_h100(service(), settings=settings)["spec"]["template"]["spec"]["volumes"]
        assert volumes[0]["configMap"]["name"] == files["metadata"]["name"]
        assert files["immutable"] is True
        names.add(files["metadata"]["name"])
    assert len(names) == 2


def test_a_service_called_vllm_sets_no_variable_of_vllm_in_the_engines() -> None:
    """D22: for a Service of that name Kubernetes would set VLLM_PORT, which vLLM takes for its own."""
    assert chat_h100(service())["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_the_package_brings_the_files_that_pods_mount() -> None:
    files = load_pod_files()
    container = engine(chat_h100(service()))
    assert container["command"] == ["python3", "/holdfast/launcher.py"]
    assert container["lifecycle"]["preStop"]["exec"]["command"][:2] == ["python3", "/holdfast/prestop.py"]
    assert {"launcher.py", "prestop.py", "holdfast_middleware.py", "holdfast_pod_server.py"} == set(files)
    assert all(files.values())


def test_rendering_changes_neither_the_service_nor_the_settings() -> None:
    of = service(base=FULL)
    before = copy.deepcopy(of)
    render(of, ["h100", "mi300x"], SETTINGS, RenderContext())
    assert of == before


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (AcceleratorFacts(), "no admission limit"),
        (AcceleratorFacts(admission_tokens=5600), ""),
    ],
)
def test_a_missing_admission_limit_is_said_where_no_plugin_bounds_the_queue(facts: AcceleratorFacts, said: str) -> None:
    known = RenderContext(accelerators=(("h100", facts),))
    assert not remarks(service(), ["h100"], known)
    spoken = remarks(service({"engine": {"plugin": "Disabled"}, "overload": "Reject"}), ["h100"], known)
    assert (said in " ".join(spoken)) if said else not spoken


def test_downtime_of_the_only_replica_is_said_before_it_happens_and_while_it_lasts() -> None:
    before = live(chat_h100(service(), context(admission_tokens=5600)))
    newer = service({"engine": {"image": "vllm/vllm-openai:v0.33.0"}})
    for of in (service(), newer):
        (remark,) = remarks(of, ["h100"], context(deployed=before, surge_room=0))
        assert remark == (
            "chat-h100: no GPU is free, so a rollout serves no request between its only replica and the next one; "
            "free a GPU before you edit the spec"
        )
        assert not remarks(of, ["h100"], context(deployed=before, surge_room=1))
        assert not remarks(of, ["h100"], replace(context(deployed=before, surge_room=0), replicas=2))
    (remark,) = remarks(service({"rollout": {"maxSurge": 0}}), ["h100"], context(deployed=before, surge_room=1))
    assert "rollout.maxSurge is 0" in remark
    assert remark.endswith("; set rollout.maxSurge to Auto")


def test_downtime_is_not_spoken_of_where_nothing_serves_that_a_rollout_could_interrupt() -> None:
    before = live(chat_h100(service(), context(admission_tokens=5600)))
    starting = context(deployed=before, surge_room=0)
    assert remarks(service(), ["h100"], starting)
    assert not remarks(service(), ["h100"], starting, serving=False)
    assert not remarks(service(), ["h100"], context(deployed=before, surge_room=0, kept=True))
    assert remarks(service(), ["h100"], context(deployed=before, surge_under_way=0), serving=False), "it is happening"


def test_contexts_are_hashable_so_that_renderings_can_be_cached() -> None:
    facts: Any = context(deployed=live(chat_h100(service())), surge_room=1)
    assert hash(facts) == hash(copy.deepcopy(facts))


def test_the_service_leads_to_spot_and_regular_pods_and_only_labels_of_the_user_tell_them_apart() -> None:
    """Which nodes are spot is for the policy to know: no pod is replaced for it."""
    kinds = {"h100-spot": {"capacity": "spot"}, "h100": {"capacity": "on-demand"}}
    plain, marked = (
        render(
            service({
                "accelerators": [
                    {"name": name, "nodeSelector": labels} | ({"spot": True} if told and name == "h100-spot" else {})
                    for name, labels in kinds.items()
                ],
                "scaling": {"minOnDemand": int(told)},
            }),
            list(kinds),
            SETTINGS,
            RenderContext(replicas=2),
        )
        for told in (False, True)
    )  # fmt: skip
    assert marked == plain
    pods = [manifest["spec"]["template"] for manifest in deployments(marked).values()]
    assert [pod["spec"]["nodeSelector"] for pod in pods] == list(kinds.values())
    (front,) = [item for item in marked if item["kind"] == "Service"]
    assert all(front["spec"]["selector"].items() <= pod["metadata"]["labels"].items() for pod in pods)


POOL = {"inferencePool": {"endpointPicker": {"name": "chat-epp"}}}


def test_an_inference_pool_adds_one_object_and_changes_no_other() -> None:
    without = render(service(), ["h100"], SETTINGS, RenderContext(inference_pools=True))
    assert render(service(), ["h100"], SETTINGS, RenderContext()) == without
    manifests = render(service(POOL), ["h100"], SETTINGS, RenderContext(inference_pools=True))
    (pool,) = [item for item in manifests if item not in without]
    assert (pool["kind"], pool["metadata"]["name"]) == ("InferencePool", "chat")
    assert [item for item in manifests if item != pool] == list(without)


def test_an_inference_pool_has_the_pods_and_the_port_of_the_clients_service() -> None:
    manifests = render(service(POOL), ["h100"], SETTINGS, RenderContext(inference_pools=True))
    (pool,) = [item for item in manifests if item["kind"] == "InferencePool"]
    (clients,) = [item for item in manifests if item["kind"] == "Service"]
    assert pool["spec"]["selector"]["matchLabels"] == clients["spec"]["selector"]
    assert [port["number"] for port in pool["spec"]["targetPorts"]] == [
        port["port"] for port in clients["spec"]["ports"]
    ]


def test_an_inference_pool_is_not_rendered_for_a_cluster_without_its_api() -> None:
    assert render(service(POOL), ["h100"], SETTINGS, RenderContext()) == render(
        service(), ["h100"], SETTINGS, RenderContext()
    )


def test_an_activator_knows_the_classes_that_may_wait_longer() -> None:
    classes = [{"name": "night", "kind": "Batch"}, {"name": "slow", "ttft": "10m"}, {"name": "tight", "ttft": "100ms"}]
    settings = replace(SETTINGS, activator_image="registry.example.com/holdfast:0.1.0")

    def told(**slo: Any) -> list[str]:
        resting = service({"scaling": {"min": 0}, "slo": {"ttft": "500ms", "tpot": "30ms", "classes": classes, **slo}})
        (found,) = (each for each in render(resting, ["h100"], settings, RenderContext()) if _is_activator(each))
        command = found["spec"]["template"]["spec"]["containers"][0]["args"]
        assert build_parser(["activate"]).parse_args(command)
        return [each for each in command if each.startswith("--patient")]

    assert told() == ["--patient=night=inf", "--patient=slow=600"]
    assert told(claim="None") == [], "no header claims a class"


def _is_activator(manifest: dict[str, Any]) -> bool:
    return (manifest["kind"], manifest["metadata"]["name"]) == ("Deployment", "chat-activator")

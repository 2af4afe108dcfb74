"""Groups of pods as a LeaderWorkerSet: what leaders and followers have in common, and what followers must not have."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from holdfast.observe.objects.groups import as_deployment
from holdfast.render import AcceleratorFacts, Deployed, RenderContext, remarks, render
from holdfast.rendered.names import Manifest
from tests.render.scenes import GROUP, SETTINGS, chat_h100, service


def group_context(**facts: Any) -> RenderContext:
    return RenderContext(group_sets=True, accelerators=((GROUP["name"], AcceleratorFacts(**facts)),))


def group_set(changes: dict[str, Any] | None = None, facts: RenderContext | None = None) -> Manifest:
    of = service({"accelerators": [GROUP], **(changes or {})})
    manifests = render(of, [GROUP["name"]], SETTINGS, facts or group_context())
    (found,) = [item for item in manifests if item["kind"] == "LeaderWorkerSet"]
    return found


def templates(found: Manifest) -> tuple[Manifest, Manifest]:
    template = found["spec"]["leaderWorkerTemplate"]
    return template["leaderTemplate"], template["workerTemplate"]


def engine(pod: Manifest) -> Manifest:
    (found,) = [each for each in pod["spec"]["containers"] if each["name"] == "vllm"]
    return found


def test_each_pod_of_a_group_has_its_part_of_the_gpus_and_knows_its_place() -> None:
    for pod in templates(group_set()):
        assert engine(pod)["resources"]["limits"] == {"nvidia.com/gpu": 8}
        assert {"--nnodes=2", "--node-rank=$(LWS_WORKER_INDEX)", "--master-addr=$(LWS_LEADER_ADDRESS)"} <= set(
            engine(pod)["args"]
        )
        (address,) = [each for each in engine(pod)["env"] if each["name"] == "VLLM_HOST_IP"]
        assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_a_follower_runs_the_engine_of_its_leader_without_a_server() -> None:
    leader, follower = map(engine, templates(group_set()))
    assert follower["args"] == [*leader["args"], "--headless"]
    assert follower["image"] == leader["image"]
    gone = leader.keys() - follower.keys()
    assert templates(group_set())[1]["spec"]["terminationGracePeriodSeconds"] == 10, "it drains nothing"
    assert gone == {"ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle"}


def test_nothing_that_selects_replicas_selects_a_follower() -> None:
    manifests = render(
        service({"accelerators": [GROUP], "inferencePool": {"endpointPicker": {"name": "epp"}}}),
        [GROUP["name"]],
        SETTINGS,
        RenderContext(pod_monitor=True, inference_pools=True, group_sets=True),
    )
    (found,) = [item for item in manifests if item["kind"] == "LeaderWorkerSet"]
    leader, follower = (pod["metadata"]["labels"].items() for pod in templates(found))
    selectors = [item["spec"]["selector"] for item in manifests if "selector" in item.get("spec", {})]
    assert len(selectors) == 5, "a Service, two budgets, a PodMonitor, an InferencePool"
    for selector in selectors:
        labels = selector.get("matchLabels", selector).items()
        assert labels <= leader
        assert not labels <= follower
    assert "prometheus.io/scrape" not in templates(group_set())[1]["metadata"]["annotations"]


def test_an_autoscaler_leaves_followers_where_they_are() -> None:
    annotations = templates(group_set())[1]["metadata"]["annotations"]
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


def test_an_overlay_reaches_all_pods_of_a_group() -> None:
    overlay = {"template": {"metadata": {"labels": {"team": "search"}}, "spec": {"priorityClassName": "serving"}}}
    for pod in templates(group_set(overlay)):
        assert pod["metadata"]["labels"]["team"] == "search"
        assert pod["spec"]["priorityClassName"] == "serving"


def test_a_whole_group_more_runs_during_a_rollout_where_one_has_room() -> None:
    changed = {"engine": {"image": "vllm/vllm-openai:v0.33.0"}}
    rolling = [
        group_set(changed, group_context(surge_room=room))["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
        for room in (0, 1)
    ]
    assert rolling == [{"maxSurge": 0, "maxUnavailable": 1}, {"maxSurge": 1, "maxUnavailable": 0}]


def test_followers_stay_as_they_were_rendered_until_their_leader_changes() -> None:
    body = copy.deepcopy(group_set())
    older = '{"metadata":{},"spec":{"containers":[{"name":"vllm","args":["of an earlier version"]}]}}'
    body["metadata"]["annotations"]["holdfast.dev/follower-template"] = older
    deployed = Deployed.read(as_deployment(body))
    assert deployed is not None
    kept = group_set(facts=group_context(deployed=deployed))
    assert engine(templates(kept)[1])["args"] == ["of an earlier version"]
    assert templates(kept)[0] == templates(body)[0]
    newer = group_set({"engine": {"pluginRevision": "2"}}, group_context(deployed=deployed))
    assert engine(templates(newer)[1])["args"][-1] == "--headless"


def test_a_group_is_not_rendered_for_a_cluster_without_its_api() -> None:
    manifests = render(service({"accelerators": [GROUP]}), [GROUP["name"]], SETTINGS, RenderContext())
    assert {item["kind"] for item in manifests} <= {"ServiceAccount", "Service", "PodDisruptionBudget"}


def test_one_node_is_rendered_as_before() -> None:
    assert chat_h100(service({"accelerators": [{"name": "h100", "nodes": 1}]})) == chat_h100(
        service({"accelerators": [{"name": "h100"}]})
    )


@pytest.mark.parametrize(("nodes", "said"), [(1, False), (2, True)])
def test_an_unknown_link_between_nodes_is_said(nodes: int, said: bool) -> None:
    of = service({"accelerators": [{"name": "h100", "count": 16, "nodes": nodes}]})
    found = remarks(of, ["h100"], RenderContext(group_sets=True))
    assert any("link between the 2 nodes" in remark for remark in found) is said


@pytest.mark.parametrize(
    ("shape", "spread"),
    [
        ({"count": 16}, True),
        ({"parallelism": {"tensor": 16}}, True),
        ({"parallelism": {"tensor": 8, "pipeline": 2}}, False),
        ({"parallelism": {"tensor": 4, "pipeline": 4}}, False),
    ],
)
def test_layers_that_are_spread_over_nodes_are_said_with_the_remedy(shape: dict[str, Any], spread: bool) -> None:
    of = service({"accelerators": [{"name": "h100", "nodes": 2, **shape}]})
    (remark,) = [r for r in remarks(of, ["h100"], RenderContext(group_sets=True)) if "link between" in r]
    assert remark.endswith("waits for that link: set parallelism.tensor to 8 and pipeline to 2") is spread

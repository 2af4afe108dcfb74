"""When running pods may be replaced, and how many at a time."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from holdfast.domain.service import BatchingLimits
from holdfast.render import AcceleratorFacts, Deployed, Objectives, RenderContext, RenderSettings, render
from holdfast.rendered.batching import Tuned
from holdfast.rendered.names import Manifest
from tests.render.scenes import MINIMAL, SETTINGS, chat_h100, context, deployments, engine, live, service

NEW_OPERATOR = RenderSettings(pod_files={"launcher.py": "# of a later version\n"}, prestop_seconds=20)
FIRST_INPUTS = "a573ee0d17"  # as the first version of the operator wrote it
FIRST = chat_h100(service(), context(admission_tokens=5600))


def template(manifest: Manifest) -> Manifest:
    found: Manifest = manifest["spec"]["template"]
    return found


def flag(manifest: Manifest, name: str) -> str:
    return next((item for item in engine(manifest)["args"] if item.startswith(f"--{name}=")), "")


def without_plugin(manifest: Manifest) -> str:
    """What the launcher adds where it starts vLLM without the plugin."""
    values = {item["name"]: item.get("value", "") for item in engine(manifest)["env"]}
    found: str = values.get("HOLDFAST_FLAGS_WITHOUT_PLUGIN", "")
    return found


def surge(manifest: Manifest) -> tuple[int, int]:
    rolling = manifest["spec"]["strategy"]["rollingUpdate"]
    return rolling["maxSurge"], rolling["maxUnavailable"]


def after(
    changes: dict[str, Any], facts: dict[str, Any] | None = None, settings: RenderSettings = SETTINGS
) -> Manifest:
    return chat_h100(service(changes), context(deployed=live(FIRST), **(facts or {})), settings)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"slo": {"ttft": "450ms", "tpot": "20ms", "e2e": "30s", "objective": "99.9%", "window": "1d"}},
        {"scaling": {"min": 2, "max": 20}, "replicas": 4},
        {"mode": "Recommend"},
        {"rollout": {"maxSurge": 1}},
        {"overload": "Reject", "batching": {"mode": "Auto"}},
    ],
    ids=["nothing", "slo", "scaling", "mode", "surge", "overload"],
)
def test_edits_that_do_not_concern_the_pods_keep_their_template(changes: dict[str, Any]) -> None:
    assert template(after(changes, {"admission_tokens": 9900})) == template(FIRST)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"uri": "Qwen/Qwen3-14B"}},
        {"engine": {"image": "vllm/vllm-openai:v0.33.0"}},
        {"engine": {"args": ["--enforce-eager"]}},
        {"engine": {"env": [{"name": "A", "value": "1"}]}},
        {"batching": {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048}},
        {"template": {"metadata": {"annotations": {"restarted": "now"}}}},
        {"engine": {"pluginRevision": 1}},
        {"engine": {"startupTimeout": "1h"}},
    ],
    ids=["model", "image", "args", "env", "batching", "template", "plugin revision", "startup timeout"],
)
def test_edits_of_the_pods_roll_out_with_a_fresh_admission_limit(changes: dict[str, Any]) -> None:
    rolled = after(changes, {"admission_tokens": 9900})
    assert rolled["metadata"]["annotations"]["holdfast.dev/pod-inputs"] != FIRST_INPUTS
    assert template(rolled) != template(FIRST)
    assert without_plugin(rolled) == "--max-num-queued-tokens=9900"


def test_the_admission_limit_does_not_drift_under_running_pods() -> None:
    assert without_plugin(after({}, {"admission_tokens": 8100})) == "--max-num-queued-tokens=5600"
    assert without_plugin(after({}, {"admission_tokens": None})) == "--max-num-queued-tokens=5600"


def test_no_admission_limit_stays_none_until_the_next_rollout() -> None:
    bare = live(chat_h100(service()))
    assert bare.admission_tokens is None
    assert not without_plugin(chat_h100(service(), context(deployed=bare, admission_tokens=5600)))


NO_PLUGIN = {"engine": {"plugin": "Disabled"}}
MEASURED = {"admission_tokens": 2900, "admission_changed_at": 1_800_000_000}


def test_a_measured_admission_limit_rolls_out_and_nothing_else_changes() -> None:
    first = chat_h100(service(NO_PLUGIN), context(admission_tokens=41000, surge_room=1))
    rolled = chat_h100(service(NO_PLUGIN), context(deployed=live(first), surge_room=1, **MEASURED))
    wanted = copy.deepcopy(first)
    args = engine(wanted)["args"]
    args[args.index("--max-num-queued-tokens=41000")] = "--max-num-queued-tokens=2900"
    wanted["metadata"]["annotations"] |= {
        "holdfast.dev/admission-tokens": "2900",
        "holdfast.dev/admission-changed": "1800000000",
        "holdfast.dev/pod-template": rolled["metadata"]["annotations"]["holdfast.dev/pod-template"],
    }
    assert rolled == wanted


def test_a_measured_admission_limit_is_kept_through_a_restart_of_the_operator() -> None:
    first = live(chat_h100(service(NO_PLUGIN), context(admission_tokens=41000)))
    rolled = chat_h100(service(NO_PLUGIN), context(deployed=first, **MEASURED))
    assert chat_h100(service(NO_PLUGIN), context(deployed=live(rolled), admission_tokens=41000)) == rolled
    assert chat_h100(service(NO_PLUGIN), context(deployed=live(rolled), **MEASURED)) == rolled


def test_pods_that_are_to_go_are_not_replaced_for_a_measured_limit() -> None:
    first = chat_h100(service(NO_PLUGIN), context(admission_tokens=41000))
    kept = chat_h100(service(NO_PLUGIN), context(deployed=live(first), kept=True, **MEASURED))
    assert template(kept) == template(first)


def test_an_argument_of_the_user_wins_over_a_measured_limit() -> None:
    own = {"engine": {"plugin": "Disabled", "args": ["--max_num_queued_tokens=77"]}}
    assert not flag(chat_h100(service(own), context(**MEASURED)), "max-num-queued-tokens")


def test_bucket_edges_stay_those_of_creation_even_through_a_rollout() -> None:
    rolled = after({"slo": {"ttft": "450ms"}, "engine": {"image": "vllm/vllm-openai:v0.33.0"}})
    assert flag(rolled, "custom-histogram-buckets") == flag(FIRST, "custom-histogram-buckets")


def test_a_later_accelerator_gets_the_edges_of_the_first_one() -> None:
    accelerators = [{"name": "h100"}, {"name": "l40s"}]
    facts = RenderContext(accelerators=(("h100", AcceleratorFacts(deployed=live(FIRST))),))
    edited = service({"slo": {"ttft": "450ms"}, "accelerators": accelerators})
    other = deployments(render(edited, ["l40s"], SETTINGS, facts))["chat-l40s"]
    assert flag(other, "custom-histogram-buckets") == flag(FIRST, "custom-histogram-buckets")


def test_a_new_operator_leaves_running_pods_as_they_are() -> None:
    upgraded = after({}, settings=NEW_OPERATOR)
    assert template(upgraded) == template(FIRST)
    assert upgraded["metadata"]["annotations"] == FIRST["metadata"]["annotations"]


def test_a_new_operator_renders_no_files_that_no_pod_mounts() -> None:
    manifests = render(service(), ["h100"], NEW_OPERATOR, context(deployed=live(FIRST)))
    assert [item["metadata"]["name"] for item in manifests if item["kind"] == "ConfigMap"] == ["chat-engine-limits"]


def test_the_next_rollout_brings_what_the_new_operator_renders() -> None:
    kept = live(after({}, settings=NEW_OPERATOR))
    newer = service({"engine": {"args": ["--enforce-eager"]}})
    rolled = chat_h100(newer, context(deployed=kept), NEW_OPERATOR)
    assert engine(rolled)["lifecycle"]["preStop"]["exec"]["command"][2] == "20"


def edited(manifest: Manifest, grace_seconds: int = 7, **annotations: str) -> Deployed:
    """What is read back after somebody edited the pod template, and perhaps annotations."""
    body = copy.deepcopy(manifest)
    body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = grace_seconds
    body["metadata"]["annotations"] |= annotations
    return live(body)


@pytest.mark.parametrize("settings", [SETTINGS, NEW_OPERATOR], ids=["same operator", "upgraded operator"])
def test_a_template_edited_by_hand_is_put_right_again(settings: RenderSettings) -> None:
    again = chat_h100(service(), context(deployed=edited(FIRST)), settings)
    assert template(again) == template(FIRST)


def test_a_template_edited_by_hand_is_put_right_after_several_upgrades() -> None:
    kept = after({}, settings=NEW_OPERATOR)
    later = RenderSettings(pod_files={"launcher.py": "# later still\n"}, prestop_seconds=30)
    assert template(chat_h100(service(), context(deployed=edited(kept)), later)) == template(FIRST)


@pytest.mark.parametrize(
    "record",
    ["older", "c7b653cd59", "", "3", "[]", "{}", '{"spec": 1}', "null", pytest.param("[" * 100_000, id="nested")],
)
def test_where_no_template_is_recorded_the_live_one_is_kept_as_first_seen(record: str) -> None:
    lost = edited(FIRST, 50, **{"holdfast.dev/pod-template": record})
    kept = chat_h100(service(), context(deployed=lost), NEW_OPERATOR)
    assert template(kept)["spec"]["terminationGracePeriodSeconds"] == 50, "no engine restarts for a lost record"
    assert template(kept)["spec"]["dnsPolicy"] == "ClusterFirst", "the live template, defaults included"
    assert template(chat_h100(service(), context(deployed=edited(kept)), NEW_OPERATOR)) == template(kept)


def test_a_record_that_somebody_else_wrote_is_not_believed() -> None:
    body = copy.deepcopy(FIRST)
    body["metadata"]["annotations"]["holdfast.dev/pod-template"] = '{"spec": {}}'
    theirs = {"f:metadata": {"f:annotations": {"f:holdfast.dev/pod-template": {}}}}
    ours = {"f:metadata": {"f:annotations": {"f:holdfast.dev/pod-inputs": {}}}, "f:spec": {}}
    body["metadata"]["managedFields"] = [
        {"manager": "holdfast-rendering", "operation": "Apply", "fieldsV1": ours},
        {"manager": "kubectl-annotate", "operation": "Update", "fieldsV1": theirs},
    ]
    again = chat_h100(service(), context(deployed=live(body)))
    assert template(again)["spec"]["containers"] == template(FIRST)["spec"]["containers"]
    ours["f:metadata"]["f:annotations"] |= theirs["f:metadata"]["f:annotations"]
    assert json.loads(live(body).template_json) == {"spec": {}}, "nobody has changed it since it was rendered"


def test_the_revision_changes_with_model_image_and_arguments_only() -> None:
    def revision(changes: dict[str, Any]) -> str:
        labels: dict[str, str] = template(chat_h100(service(changes)))["metadata"]["labels"]
        return labels["holdfast_revision"]

    same: list[dict[str, Any]] = [
        {},
        {"slo": {"ttft": "450ms"}},
        {"engine": {"shutdownTimeout": "5m"}},
        {"model": {"cache": {"pvc": "a"}}},
    ]
    others: list[dict[str, Any]] = [
        {"model": {"uri": "Qwen/Qwen3-14B"}},
        {"model": {"dtype": "float16"}},
        {"engine": {"image": "other:1"}},
        {"engine": {"args": ["--enforce-eager"]}},
        {"batching": {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048}},
    ]
    assert len({revision(changes) for changes in same}) == 1
    assert len({revision(changes) for changes in [{}, *others]}) == 1 + len(others)


@pytest.mark.parametrize(
    ("wanted", "room", "expected"),
    [("Auto", 1, (1, 0)), ("Auto", 10, (10, 0)), ("Auto", 0, (0, 1)), (0, 1, (0, 1)), (1, 0, (1, 0)), (3, 0, (3, 0))],
)
def test_a_rollout_surges_where_gpus_are_free_or_as_told(wanted: object, room: int, expected: tuple[int, int]) -> None:
    changes = {"rollout": {"maxSurge": wanted}, "engine": {"image": "vllm/vllm-openai:v0.33.0"}}
    assert surge(after(changes, {"surge_room": room})) == expected


def test_a_rollout_under_way_keeps_its_surge_though_its_own_replicas_took_the_free_gpus() -> None:
    changes = {"engine": {"image": "vllm/vllm-openai:v0.33.0"}}
    rolling = live(after(changes, {"surge_room": 2}))
    assert surge(chat_h100(service(changes), context(deployed=rolling, surge_room=0))) == (2, 0)


@pytest.mark.parametrize("edited", [None, "25%", -1, 1.5, True, "many"])
def test_a_surge_that_somebody_edited_to_no_number_counts_as_none(edited: object) -> None:
    manifest = copy.deepcopy(FIRST)
    manifest["spec"]["strategy"]["rollingUpdate"]["maxSurge"] = edited
    read = Deployed.read(manifest)
    assert read is not None
    assert read.max_surge == 0


def test_a_trial_of_batching_limits_replaces_one_replica_first() -> None:
    on_trial = Tuned(BatchingLimits(max_num_seqs=64), BatchingLimits(), "")
    assert surge(after({"batching": {"mode": "Auto"}}, {"surge_room": 5, "tuned": on_trial})) == (1, 0)


def test_a_surge_grows_with_the_size_during_a_rollout_but_not_at_rest() -> None:
    changes = {"engine": {"image": "vllm/vllm-openai:v0.33.0"}}
    rolling = live(after(changes, {"surge_room": 1}))
    assert surge(chat_h100(service(changes), context(deployed=rolling, surge_room=5, surge_under_way=5))) == (5, 0)
    assert surge(chat_h100(service(changes), context(deployed=rolling, surge_room=5))) == (1, 0)


def test_a_surge_replica_without_a_place_cannot_block_a_rollout() -> None:
    changes = {"engine": {"image": "vllm/vllm-openai:v0.33.0"}}
    rolling = live(after(changes, {"surge_room": 2}))
    stuck = context(deployed=rolling, surge_room=0, surge_under_way=0)
    assert surge(chat_h100(service(changes), stuck)) == (0, 1)


LISTED = [{"name": "h100"}, {"name": "l40s"}]
LEFT = {"accelerators": [{"name": "h100", "max": 0}, LISTED[1]], "engine": {"image": "vllm/vllm-openai:v0.33.0"}}


class TestAnAcceleratorThatMayHaveNoReplicaAnyMore:
    def test_keeps_its_pods_as_they_are_whatever_is_edited(self) -> None:
        kept = after(LEFT, {"admission_tokens": 9900, "kept": True})
        assert template(kept) == template(FIRST)
        assert kept["metadata"]["annotations"] == FIRST["metadata"]["annotations"]

    def test_loses_none_that_serves_to_a_rollout_under_way(self) -> None:
        assert surge(after(LEFT, {"surge_room": 0, "surge_under_way": 0})) == (1, 0)

    def test_gets_what_was_edited_meanwhile_once_it_may_have_some_again(self) -> None:
        again = LEFT | {"accelerators": LISTED}
        kept = live(after(LEFT, {"kept": True}))
        assert template(chat_h100(service(again), context(deployed=kept))) == template(after(again))


def test_a_deployment_of_someone_else_is_remembered_as_nothing() -> None:
    assert Deployed.read({"metadata": {"name": "chat-h100"}, "spec": {"template": {}}}) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "[1, 2]",
        "[0, 1, null]",
        '["a", 1, null]',
        "[NaN, 1, null]",
        "[Infinity, 1, null]",
        "3",
        "[null, 1, 2]",
        pytest.param("[" * 100_000, id="nested"),
    ],
)
def test_a_damaged_memory_of_objectives_is_none(text: str) -> None:
    assert Objectives.from_json(text) is None


@pytest.mark.parametrize("objectives", [Objectives(0.5, 0.03), Objectives(2.0, 0.045, 90.0)])
def test_objectives_survive_their_annotation(objectives: Objectives) -> None:
    assert Objectives.from_json(objectives.to_json()) == objectives


@pytest.mark.parametrize("tokens", ["", "-5", "1e3", "many", "5.5"])
def test_a_damaged_admission_annotation_is_none(tokens: str) -> None:
    body = {
        **FIRST,
        "metadata": {"annotations": {**FIRST["metadata"]["annotations"], "holdfast.dev/admission-tokens": tokens}},
    }
    deployed = Deployed.read(body)
    assert deployed is not None
    assert deployed.admission_tokens is None


def test_the_labels_of_a_queue_reach_deployment_and_pods_and_no_other_object() -> None:
    queue = {"kueue.x-k8s.io/queue-name": "gpu", "kueue.x-k8s.io/priority-class": "high"}
    labelled = {"team": "search", "kueue.x-k8s.io/other": "x", **queue}
    queued = service(base={**MINIMAL, "metadata": {**MINIMAL["metadata"], "labels": labelled}})
    made = render(queued, ["h100"], SETTINGS, context(deployed=live(FIRST)))
    for manifest in made:
        given = {key: value for key, value in manifest["metadata"]["labels"].items() if "kueue" in key}
        assert given == (queue if manifest["kind"] == "Deployment" else {})
    deployment = next(manifest for manifest in made if manifest["kind"] == "Deployment")
    labels = template(deployment)["metadata"]["labels"]
    assert {key: labels.get(key) for key in queue} == queue
    assert "kueue.x-k8s.io/other" not in labels


def test_the_startup_timeout_of_a_service_bounds_its_startup_probe_and_its_rollouts() -> None:
    slow = chat_h100(service({"engine": {"startupTimeout": "1h"}}))
    probe = engine(slow)["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == 3600
    assert slow["spec"]["progressDeadlineSeconds"] > 3600
    assert engine(FIRST)["startupProbe"]["failureThreshold"] * probe["periodSeconds"] == SETTINGS.startup_seconds

"""Other batching limits as a rollout that waits after its first replica, and what the Deployment remembers of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.api.llmservice import LLMService
from holdfast.control.objects.plan import plan
from holdfast.domain.cluster import Placement
from holdfast.domain.decision import Action, BatchingTarget
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import BatchingLimits
from holdfast.observe.objects.mapping import placement_from_deployment
from holdfast.rendered.batching import TRIAL_SECONDS, Tuned, with_limits
from holdfast.rendered.declared import revision
from holdfast.rendered.names import Manifest
from tests.control.parts import ObservedDeployment, decision, parts
from tests.render.scenes import chat_h100, context, engine, live, service

OFF = {"engine": {"plugin": "Disabled"}}
DEFAULT, BEST = BatchingLimits(), BatchingLimits(None, 1024)
FIRST = chat_h100(service(OFF), context(admission_tokens=5600))
REVISION = revision(service(OFF), service(OFF).spec.accelerators[0])
TRIAL, KEPT = Tuned(BEST, DEFAULT, REVISION), Tuned(BEST, None, REVISION)
ON_TRIAL = chat_h100(service(OFF), context(admission_tokens=5100, deployed=live(FIRST), tuned=TRIAL))


def flag(manifest: Manifest, name: str) -> str:
    return next((item for item in engine(manifest)["args"] if item.startswith(f"--{name}=")), "")


def test_a_trial_rolls_one_replica_out_and_holds_up_the_rest() -> None:
    spec = ON_TRIAL["spec"]
    assert flag(ON_TRIAL, "max-num-batched-tokens") == "--max-num-batched-tokens=1024"
    assert flag(ON_TRIAL, "max-num-seqs") == ""
    assert flag(ON_TRIAL, "max-num-queued-tokens") == "--max-num-queued-tokens=5100"
    assert spec["minReadySeconds"] == TRIAL_SECONDS < spec["progressDeadlineSeconds"]
    assert "minReadySeconds" not in FIRST["spec"]


def test_the_rest_follows_with_the_same_template() -> None:
    kept = chat_h100(service(OFF), context(deployed=live(ON_TRIAL), tuned=KEPT))
    assert kept["spec"]["template"] == ON_TRIAL["spec"]["template"]
    assert "minReadySeconds" not in kept["spec"]


def test_what_goes_back_is_what_ran_before() -> None:
    returned = chat_h100(service(OFF), context(admission_tokens=5600, deployed=live(ON_TRIAL)))
    assert returned["spec"]["template"] == FIRST["spec"]["template"]
    assert "holdfast.dev/batching" not in returned["metadata"]["annotations"]


def test_the_replica_on_trial_is_told_apart_by_its_series() -> None:
    labels = [item["spec"]["template"]["metadata"]["labels"]["holdfast_revision"] for item in (FIRST, ON_TRIAL)]
    assert len(set(labels)) == 2


@pytest.mark.parametrize("tuned", [TRIAL, KEPT, Tuned(BatchingLimits(512, None), BEST, "")])
def test_the_deployment_remembers_its_limits(tuned: Tuned) -> None:
    manifest = chat_h100(service(OFF), context(tuned=tuned))
    assert live(manifest).tuned == tuned
    found: Placement = placement_from_deployment(manifest)
    assert (found.batching, found.batching_before) == (tuned.limits, tuned.before)
    assert found.revision == manifest["spec"]["template"]["metadata"]["labels"]["holdfast_revision"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "7",
        "[]",
        "{}",
        pytest.param("[" * 100_000, id="nested"),
        '{"limits": [1], "before": null, "revision": ""}',
    ]
    + [json.dumps({"limits": [bad, None], "before": None, "revision": ""}) for bad in (0, -1, 1.5, True, "9", [])],
)
def test_what_nobody_of_us_wrote_is_no_memory(text: str) -> None:
    assert Tuned.from_json(text) is None


def test_limits_leave_open_what_they_do_not_name() -> None:
    declared = service({"batching": {"maxNumSeqs": 64, "maxNumBatchedTokens": 4096}})
    found = with_limits(declared, BEST).spec.batching
    assert (found.mode, found.max_num_seqs, found.max_num_batched_tokens) == ("Auto", 64, 1024)
    assert with_limits(declared, DEFAULT) is declared


def planned(of: LLMService, target: BatchingTarget | None, manifest: Manifest) -> Tuned | None:
    part = parts(of, sizes={"h100": 2})
    part = replace(part, deployed=(ObservedDeployment(placement_from_deployment(manifest), rendered=live(manifest)),))
    decided = replace(decision(part, Action.HOLD, h100=2), batching=target)
    changes = plan(part, decided, Inventory(()), pod_monitor=False, admission=lambda *_: 7)
    return changes.context.facts("h100").tuned


@pytest.mark.parametrize(
    ("target", "manifest", "tuned"),
    [
        (None, FIRST, None),
        (BatchingTarget("h100", DEFAULT), FIRST, None),
        (BatchingTarget("h100", BEST, DEFAULT), FIRST, TRIAL),
        (None, ON_TRIAL, TRIAL),
        (BatchingTarget("l40s", DEFAULT), ON_TRIAL, TRIAL),
        (BatchingTarget("h100", BEST, DEFAULT), ON_TRIAL, TRIAL),
        (BatchingTarget("h100", BEST), ON_TRIAL, KEPT),
        (BatchingTarget("h100", DEFAULT), ON_TRIAL, None),
    ],
    ids=["nothing", "as it is", "begin", "no decision", "another accelerator", "go on", "keep", "return"],
)
def test_what_is_decided_is_what_is_rendered(
    target: BatchingTarget | None, manifest: Manifest, tuned: Tuned | None
) -> None:
    assert planned(service(OFF), target, manifest) == tuned


def test_another_model_makes_chosen_limits_void_and_other_objectives_do_not() -> None:
    kept = chat_h100(service(OFF), context(tuned=KEPT))
    target = BatchingTarget("h100", BEST)
    assert planned(service({**OFF, "model": {"uri": "Qwen/Qwen3-32B"}}), target, kept) is None
    assert planned(service({**OFF, "slo": {"ttft": "1s"}}), target, kept) == KEPT


def test_fixed_limits_are_those_declared_whatever_was_chosen() -> None:
    fixed = service({**OFF, "batching": {"mode": "Fixed", "maxNumSeqs": 256, "maxNumBatchedTokens": 8192}})
    for target in (None, BatchingTarget("h100", BEST, DEFAULT)):
        assert planned(fixed, target, ON_TRIAL) is None


LEFT = {**OFF, "accelerators": [{"name": "h100", "max": 0}, {"name": "l40s"}], "engine": {"args": ["--enforce-eager"]}}


def test_limits_of_an_accelerator_that_is_being_left_stay_those_of_its_pods() -> None:
    tuned = chat_h100(service(OFF), context(tuned=KEPT))
    assert planned(service(LEFT), BatchingTarget("h100", BEST, DEFAULT), tuned) == KEPT


@pytest.mark.parametrize(
    ("edit", "rolling", "kept"),
    [
        ({}, False, True),
        ({"accelerators": [{"name": "h100", "max": 1}]}, False, False),
        ({}, True, False),
        ({"engine": {"tlsSecretRef": {"name": "tls"}}}, False, False),
    ],
    ids=["left", "may have some", "in the middle of a rollout", "clients will use TLS"],
)
def test_pods_that_are_to_go_are_kept_as_they_are(edit: dict[str, Any], rolling: bool, kept: bool) -> None:
    part = parts(service({**LEFT, **edit}), sizes={"h100": 2})
    placement = replace(placement_from_deployment(FIRST), rolling_out=rolling)
    part = replace(part, deployed=(ObservedDeployment(placement, rendered=live(FIRST)),))
    hold = decision(part, Action.HOLD, h100=2)
    changes = plan(part, hold, Inventory(()), pod_monitor=False, admission=lambda *_: 7)
    assert changes.context.facts("h100").kept is kept

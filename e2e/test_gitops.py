"""What Flux, Helm and `kubectl apply` see of services that Holdfast sizes, judged by kstatus itself.

python -m e2e.cluster run -- python -m pytest e2e/test_gitops.py -m cluster
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from e2e import stack
from e2e.cluster.toolset import KSTATUS
from e2e.kubectl import Json, Kubectl, KubectlError, condition
from e2e.load.steady import SteadyLoad
from e2e.patience import Promised
from tests.docs.health import CURRENT, FAILED, IN_PROGRESS, TABLE

pytestmark = pytest.mark.cluster

_FLUX = Path(__file__).parents[1] / "examples" / "gitops" / "flux.yaml"
_READY_SECONDS, _TOLD_SECONDS = 120.0, Promised(30.0)
_SIZES = (2, 3, 4, 3, 2)
_SERVER_SIDE = ("--server-side", "--field-manager=kustomize-controller")
_OUTSIDE = "PinnedOutsideManifest"


def _expressions() -> Json:
    (services,) = (each for each in yaml.safe_load_all(_FLUX.read_text()) if each["kind"] == "Kustomization")
    found: Json = services["spec"]["healthCheckExprs"][0]
    return found


def judged(objects: Sequence[Json]) -> list[str]:
    """What kstatus says of each object; Flux's expressions must say the same."""
    lines = "\n".join(json.dumps(each) for each in objects)
    command = [KSTATUS.built_program("kstatus"), json.dumps(_expressions())]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(objects)
    assert [each["flux"] for each in answers] == [each["kstatus"] for each in answers]
    return [each["kstatus"] for each in answers]


class Story(NamedTuple):
    """The states of one service, in order: new, pinned to five sizes one after the other, and under load."""

    new: list[Json]
    pinned: list[Json]
    loaded: list[Json]


@pytest.fixture(scope="module")
def services(operator: None, place: Kubectl) -> Kubectl:
    """Services that cannot run as declared, and two that people pin."""
    place.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "taken"}, "spec": {"ports": [{"port": 1}]}}
    )
    invalid, taken = stack.small_service("invalid"), stack.small_service("taken")
    invalid["spec"]["template"] = {"spec": {"hostPID": True}}
    place.apply([invalid, taken, stack.small_service("classic")])
    _apply(place, _pinned_in_git(), *_SERVER_SIDE)
    return place


@pytest.fixture(scope="module")
def story(services: Kubectl) -> Story:
    """The life of `chat`, which Git applies on the server."""
    with services.recorded("llms", "of=story", 300) as states:
        _apply(services, _chat(), *_SERVER_SIDE)
        ready = services.wait_for("llms", "chat", _is_ready, _READY_SECONDS, "the first replica")
        for size in _SIZES:
            services.scale("llms", "chat", size)
            services.wait_for("deployment", stack.deployment_of("chat"), _has_size(size), _TOLD_SECONDS, f"size {size}")
        services.wait_for("llms", "chat", lambda found: _ready(found) == 2, _READY_SECONDS, "two replicas")
        _apply(services, _chat(), *_SERVER_SIDE)
        services.wait_for("llms", "chat", _is_at_rest(_OUTSIDE), _TOLD_SECONDS, "the pin to be told and kept")
        services.run("patch", "llms", "chat", "--type=json", '--patch=[{"op": "remove", "path": "/spec/replicas"}]')
        services.wait_for("llms", "chat", _reason_is("FollowingSLO"), _TOLD_SECONDS, "no pin")
        with SteadyLoad(ready["status"]["url"], ready["spec"]["model"]["uri"], 3.0):
            services.wait_for("llms", "chat", lambda found: _ready(found) > 2, _READY_SECONDS, "more replicas")
        seen = states()
    pinned = [at for at, found in enumerate(seen) if "replicas" in found["spec"]]
    first, last = pinned[0], pinned[-1] + 1
    return Story(seen[:first], seen[first:last], seen[last:])


def test_kstatus_and_flux_see_what_the_table_says() -> None:
    found = dict(zip(TABLE, judged([each for each, _, _ in TABLE.values()]), strict=True))
    assert found == {name: expected for name, (_, expected, _) in TABLE.items()}


def test_a_new_service_is_waited_for_from_its_creation_to_its_first_replica(story: Story) -> None:
    first, *_, last = judged(story.new)
    assert story.new[0]["status"] == {"observedGeneration": -1}
    assert (first, last) == (IN_PROGRESS, CURRENT)
    states = dict(zip(map(_is_ready, story.new), judged(story.new), strict=True))
    assert states == {False: IN_PROGRESS, True: CURRENT}


def test_a_pinned_size_is_waited_for(story: Story) -> None:
    states = judged(story.pinned)
    assert IN_PROGRESS in states
    assert CURRENT in [state for found, state in zip(story.pinned, states, strict=True) if _is_last(found, story)]
    short = [
        state
        for found, state in zip(story.pinned, states, strict=True)
        if _is_observed(found) and _ready(found) < found["spec"]["replicas"]
    ]
    assert set(short) == {IN_PROGRESS}


def test_replicas_that_start_because_of_the_load_are_not_waited_for(story: Story) -> None:
    states = zip(story.loaded, judged(story.loaded), strict=True)
    loaded = list(dropwhile(lambda each: each[1] != CURRENT, states))  # the pin was removed: an edit
    assert any(_ready(found) < found["status"]["replicas"]["desired"] for found, _ in loaded)
    told = [(condition(found, "Ready"), condition(found, "Reconciling")) for found, state in loaded if state != CURRENT]
    # For a tick at most, where the machine is so busy that Kubernetes has not observed a new size when it is read back.
    assert [each for each in told if each[1].get("reason") != "SpecNotObserved"] == []
    assert len(told) < len(loaded) / 2


@pytest.mark.parametrize(("name", "reason"), [("invalid", "Invalid"), ("taken", "NameConflict")])
def test_what_a_person_must_mend_has_failed(name: str, reason: str, services: Kubectl) -> None:
    stalled = services.wait_for("llms", name, lambda found: bool(condition(found, "Stalled")), _TOLD_SECONDS, "Stalled")
    assert condition(stalled, "Stalled")["reason"] == reason
    assert judged([stalled]) == [FAILED]


def test_git_finds_nothing_to_change_after_five_sizes(story: Story, services: Kubectl) -> None:
    resized = [entry for entry in stack.written(services.namespace) if stack.is_resize(entry)]
    assert len([entry for entry in resized if entry["objectRef"]["name"] == stack.deployment_of("chat")]) >= len(_SIZES)
    _assert_nothing_to_change(services, _chat(), *_SERVER_SIDE)


def test_an_apply_keeps_a_pin_that_the_manifest_lacks_and_diff_does_not_show_it(services: Kubectl) -> None:
    classic = stack.small_service("classic")
    services.scale("llms", "classic", 2)
    services.wait_for("llms", "classic", _reason_is(_OUTSIDE), _TOLD_SECONDS, "the pin to be told")
    _assert_nothing_to_change(services, classic)
    _apply(services, classic)
    found = services.get_json("llms", "classic")
    assert found["spec"]["replicas"] == 2
    assert _owners(services, "classic") == set()
    assert "kubectl apply applied last does not set this size" in condition(found, "ScalingActive")["message"]
    events = [event for event in services.items("events") if event["involvedObject"]["name"] == "classic"]
    assert {event["type"] for event in events if event["reason"] == _OUTSIDE} == {"Normal"}


def test_a_pin_in_git_is_git_s_until_somebody_scales(services: Kubectl) -> None:
    services.wait_for("llms", "owned", _reason_is("Pinned"), _TOLD_SECONDS, "the pin to be told")
    assert _owners(services, "owned") == {"kustomize-controller"}
    services.scale("llms", "owned", 2)
    services.wait_for("llms", "owned", _reason_is(_OUTSIDE), _TOLD_SECONDS, "the other pin to be told")
    with pytest.raises(KubectlError, match="conflict"):
        _apply(services, _pinned_in_git(), *_SERVER_SIDE)
    _apply(services, _pinned_in_git(), *_SERVER_SIDE, "--force-conflicts")
    services.wait_for("llms", "owned", _reason_is("Pinned"), _TOLD_SECONDS, "Git's pin to be told")
    unpinned = _pinned_in_git()
    del unpinned["spec"]["replicas"]
    _apply(services, unpinned, *_SERVER_SIDE)
    assert "replicas" not in services.get_json("llms", "owned")["spec"]
    assert _owners(services, "owned") == set()


def _chat() -> Json:
    made = stack.small_service("chat")
    made["metadata"]["labels"] = {"of": "story"}
    return made


def _pinned_in_git() -> Json:
    made = stack.small_service("owned")
    made["spec"]["replicas"] = 1
    return made


def _apply(place: Kubectl, manifest: Json, *flags: str) -> None:
    place.run("apply", *flags, "--filename", "-", stdin=json.dumps(manifest))


def _assert_nothing_to_change(place: Kubectl, manifest: Json, *flags: str) -> None:
    """Neither a dry run on the server nor a diff changes anything, in any field."""
    place.run("diff", *flags, "--filename", "-", stdin=json.dumps(manifest))  # fails on a difference
    name = manifest["metadata"]["name"]
    before = place.get_json("llms", name)
    dry = place.run("apply", *flags, "--dry-run=server", "--output=json", "--filename", "-", stdin=json.dumps(manifest))
    after = json.loads(dry)
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def _owners(place: Kubectl, name: str) -> set[str]:
    """The field managers that own the pinned size."""
    found = json.loads(place.run("get", "llms", name, "--output=json", "--show-managed-fields"))
    entries = found["metadata"]["managedFields"]
    return {entry["manager"] for entry in entries if "f:replicas" in entry["fieldsV1"].get("f:spec", {})}


def _has_size(size: int) -> Any:
    return lambda found: found["spec"]["replicas"] == size


def _reason_is(reason: str) -> Any:
    return lambda found: _is_observed(found) and condition(found, "ScalingActive").get("reason") == reason


def _is_at_rest(reason: str) -> Any:
    told = _reason_is(reason)
    return lambda found: told(found) and condition(found, "Reconciling").get("status") != "True"


def _is_last(found: Json, story: Story) -> bool:
    """Whether nobody changed the pin after this state."""
    return bool(found["metadata"]["generation"] == story.pinned[-1]["metadata"]["generation"])


def _is_observed(found: Json) -> bool:
    return bool(found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])


def _is_ready(found: Json) -> bool:
    return condition(found, "Ready").get("status") == "True"


def _ready(found: Json) -> int:
    return int(found.get("status", {}).get("replicas", {}).get("ready", 0))

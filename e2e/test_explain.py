"""`holdfast explain` on a real cluster: the leader is asked through the API server, the past from Events."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from e2e import stack
from e2e.kubectl import Json, Kubectl
from e2e.patience import patient

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def served(operator: None, place: Kubectl) -> Json:
    """A small service, Ready and looked at."""
    place.apply(stack.small_service("told"))
    return place.wait_for("llms", "told", _is_ready, 120, "Ready")


def _is_ready(found: Json) -> bool:
    return found.get("status", {}).get("replicas", {}).get("ready", 0) > 0


def explain(
    place: Kubectl, *arguments: str, program: Sequence[str] = (sys.executable, "-m", "holdfast.cli.main")
) -> dict[str, Any]:
    command = [*program, "explain", f"{place.namespace}/told", "--json"]
    command += ["--operator-namespace", stack.NAMESPACE, *arguments]
    # kubectl finds its plugins on PATH: pip puts ours beside the interpreter.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=patient(60.0), check=True, env={**os.environ, "PATH": path}
    )
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def explained_now(place: Kubectl, **how: Any) -> dict[str, Any]:
    """What the leader decides now; asked again where another one takes over just then."""
    found: dict[str, Any] = {}

    def is_of_now() -> bool:
        found.clear()
        found.update(explain(place, **how))
        return bool(found["source"] == "now")

    place.wait_until(is_of_now, 60, "an answer of the leader", poll_seconds=1.0)
    return found


def test_the_leader_tells_of_the_decision_it_takes_now(served: Json, place: Kubectl) -> None:
    found = explained_now(place)
    assert found["decision"]["action"] == "Hold"
    assert found["decision"]["inputs"]["perReplicaRps"] > 0
    assert [each["accelerator"] for each in found["decision"]["candidates"]] == ["l40s"]


def test_kubectl_says_the_same_through_its_plugin(served: Json, place: Kubectl) -> None:
    found = explained_now(place, program=("kubectl", "holdfast"))
    assert found["decision"]["action"] == "Hold"


def test_the_change_before_stands_in_status_and_in_its_event(served: Json, place: Kubectl) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat()
    found = explain(place, "--at", now)
    past, again = found["decision"], found["decidedAgain"]
    assert (past["action"], past["reason"]) == ("Create", "FirstSize")
    assert again == past
    last = place.get_json("llms", "told")["status"]["lastDecision"]
    assert last["candidates"] == past["candidates"]


def test_who_finds_no_operator_gets_the_last_change(served: Json, place: Kubectl) -> None:
    found = explain(place, "--lease-name", "another")
    assert found["source"].startswith("the last change")
    assert found["decision"]["action"] == "Create"

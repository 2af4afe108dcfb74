"""The health script for Argo CD, run as it is shipped against statuses as the operator writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lupa
import pytest

from tests.docs.health import CURRENT, FAILED, IN_PROGRESS, TABLE, Status, seen, told
from tests.policy.views import view

SCRIPT = (Path(__file__).parents[2] / "docs" / "argocd" / "health.lua").read_text()
WORDS = {CURRENT: "Healthy", IN_PROGRESS: "Progressing", FAILED: "Degraded"}


def health(body: Status) -> tuple[str, str]:
    """What Argo CD makes of the object: health and message."""
    runtime = lupa.LuaRuntime(unpack_returned_tuples=True)
    script: Callable[[Any], Any] = runtime.eval(f"function(obj)\n{SCRIPT}\nend")
    answer = script(runtime.table_from(body, recursive=True))
    return answer["status"], answer["message"]


@pytest.mark.parametrize(("found", "expected", "message"), TABLE.values(), ids=TABLE.keys())
def test_argo_cd_sees_the_same_health_as_flux_and_helm(found: Status, expected: str, message: str) -> None:
    assert health(found) == (WORDS[expected], message)


@pytest.mark.parametrize("found", [{"metadata": {"generation": 1}}, told(), told(observedGeneration=1)])
def test_argo_cd_waits_where_nothing_is_told(found: Status) -> None:
    assert health(found) == ("Progressing", "waiting for Holdfast")


@pytest.mark.parametrize("condition", ["Ready", "SLOMet", "ScalingActive", "MetricsAvailable", "CapacityAvailable"])
def test_kubectl_wait_finds_every_condition_in_each_status(condition: str) -> None:
    """`kubectl wait --for=condition=X` waits for status True of the type, once observedGeneration has caught up."""
    found = [item for item in seen(view())["status"]["conditions"] if item["type"] == condition]
    assert [item["status"] for item in found] == ["True"]
    assert found[0]["observedGeneration"] == 1

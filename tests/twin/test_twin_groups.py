"""Replicas of several nodes in the twin: their GPUs, their end as a whole, and the restart of one that is stalled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.twin.policies import Holdfast, Static
from tests.twin.test_twin_runs import Script, _run
from tests.twin.test_twin_stalled import hanging, late_attainment
from tests.twin.twin_builders import play


def of_groups(content: dict[str, Any], gpus: int = 16) -> dict[str, Any]:
    """The same with groups of two pods of one GPU each, which count as two GPUs that are one engine."""
    (accelerator,) = content["services"][0]["spec"]["accelerators"]
    accelerator |= {"count": 2, "nodes": 2}
    content["services"][0]["spec"]["scaling"]["min"] = 3
    content["cluster"]["accelerators"]["h100"]["gpus"] = gpus
    return content


def test_a_group_holds_the_gpus_of_all_its_pods(tmp_path: Path) -> None:
    run = play(of_groups(hanging(3), gpus=5), tmp_path, Static(3))
    assert sum(pod.placed_at is not None for pod in run.services[0].everything) == 2


def test_a_group_ends_as_a_whole_and_is_made_anew_with_its_number(tmp_path: Path) -> None:
    content = of_groups(hanging(3)) | {"faults": [{"at": "2m", "kind": "node-loss", "replica": 1}]}
    service = play(content, tmp_path, Static(3)).services[0]
    (gone,) = service.gone
    assert gone.gone_at == 120.0
    assert sorted(pod.index for pod in service.pods) == [0, 1, 2]
    assert next(pod for pod in service.pods if pod.index == gone.index).created_at == 120.0


def test_the_highest_number_goes_first(tmp_path: Path) -> None:
    policy = Script({60.0: 1})
    service = _run(policy, tmp_path, of_groups(hanging(3)) | {"faults": []}).services[0]
    assert [pod.index for pod in service.staying("h100")] == [0]


def test_the_policy_restarts_a_stalled_group_and_the_rest_keeps_serving(tmp_path: Path) -> None:
    static, own = (play(of_groups(hanging(3)), tmp_path, policy) for policy in (Static(3), Holdfast(fast_loop=False)))
    (hung,) = [pod for pod in own.services[0].gone if pod.index == 1]
    assert hung.leaving_at is not None
    assert 180.0 <= hung.leaving_at <= 240.0
    assert any(pod.index == 1 and pod.created_at == hung.leaving_at for pod in own.services[0].everything)
    assert late_attainment(static) < 0.8
    assert late_attainment(own) > 0.99

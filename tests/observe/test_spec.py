"""An LLMService as declared, reduced to what decisions need: every field arrives, in SI units."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast.api.llmservice import LLMService
from holdfast.domain.service import (
    AcceleratorOption,
    BatchClass,
    BatchingLimits,
    Hardware,
    Schedule,
    ServiceKey,
    ServiceSpec,
    Slo,
)
from holdfast.domain.taints import Toleration
from holdfast.observe.objects.spec import to_spec

SMALLEST: dict[str, Any] = {
    "metadata": {"name": "chat", "namespace": "prod", "uid": "u", "generation": 4},
    "spec": {
        "model": {"uri": "Qwen/Qwen3-8B"},
        "slo": {"ttft": "500ms", "tpot": "30ms"},
        "accelerators": [{"name": "h100"}],
    },
}
LARGEST = {
    "metadata": {"name": "chat", "namespace": "prod", "uid": "u", "generation": 4},
    "spec": {
        "model": {"uri": "Qwen/Qwen3-8B", "maxModelLen": 8192, "quantization": "fp8"},
        "slo": {"ttft": "0.5s", "tpot": "30ms", "e2e": "20s", "objective": "99.5%", "window": "2h"},
        "accelerators": [
            {"name": "h100", "costPerHour": 2.5, "count": 2, "max": 4, "nodeSelector": {"zone": "a", "gpu": "H100"}},
            {"name": "l40s", "costPerHour": 0.8, "resource": "example.com/gpu", "spot": True},
        ],
        "scaling": {"min": 2, "max": 20, "minOnDemand": 1},
        "replicas": 3,
        "mode": "Recommend",
        "budget": {"maxCostPerHour": 50},
        "batching": {"mode": "Fixed", "maxNumSeqs": 64, "maxNumBatchedTokens": 4096},
        "rollout": {"maxSurge": 0},
    },
}


def revisions(told: dict[str, Any]) -> list[str]:
    """Those of the engines on each accelerator."""
    return [option.revision for option in to_spec(LLMService.parse(told)).accelerators]


def pods(told: dict[str, Any]) -> list[str]:
    """What tells the pods on each accelerator from others."""
    return [option.pods for option in to_spec(LLMService.parse(told)).accelerators]


def edited(**parts: Any) -> dict[str, Any]:
    return {**LARGEST, "spec": {**LARGEST["spec"], **parts}}


def test_the_revision_of_engines_changes_with_what_they_are_and_with_nothing_else() -> None:
    before = revisions(LARGEST)
    assert len(set(before)) == 2
    for same in ({"scaling": {"min": 3}}, {"budget": {}}, {"mode": "Auto"}, {"priority": 7}):
        assert revisions(edited(**same)) == before
    for other in ({"model": {"uri": "Qwen/Qwen3-14B"}}, {"engine": {"args": ["--enforce-eager"]}}):
        assert not set(revisions(edited(**other))) & set(before)


def test_hardware_arrives_and_replaces_no_pod() -> None:
    hardware = {"memoryGiB": 141.5, "bandwidthGBs": 4800, "teraflops": 989}
    described = [{**accelerator, "hardware": hardware} for accelerator in LARGEST["spec"]["accelerators"]]
    found = to_spec(LLMService.parse(edited(accelerators=described))).accelerators
    assert [option.hardware for option in found] == [Hardware(141.5, 4800.0, 989.0)] * 2
    assert (pods(edited(accelerators=described)), revisions(edited(accelerators=described))) == (
        pods(LARGEST),
        revisions(LARGEST),
    )
    assert [option.hardware for option in to_spec(LLMService.parse(LARGEST)).accelerators] == [None, None]


def test_parallelism_arrives_and_counts_as_gpus() -> None:
    ways = {"tensor": 2, "pipeline": 3}
    told = edited(accelerators=[{"name": "h100", "parallelism": ways}], budget={})
    (option,) = to_spec(LLMService.parse(told)).accelerators
    assert (option.gpus_per_replica, option.pipeline, option.data) == (6, 3, 1)


def test_what_the_arguments_say_about_memory_and_formats_arrives_per_accelerator() -> None:
    accelerators = [
        {"name": "h100"},
        {"name": "l40s", "args": ["--gpu_memory_utilization", "0.8", "-qawq", "--kv-cache-dtype=auto"]},
        {"name": "a100", "args": ["--gpu-memory-utilization=1.7"]},
    ]
    engine = {"args": ["--gpu-memory-utilization=0.95", "--kv-cache-dtype", "fp8_e5m2", "--seed=1"]}
    found = to_spec(LLMService.parse(edited(engine=engine, accelerators=accelerators, budget={}))).accelerators
    assert [(each.memory_utilization, each.kv_cache_dtype, each.quantization) for each in found] == [
        (0.95, "fp8_e5m2", None),
        (0.8, "auto", "awq"),
        (None, "fp8_e5m2", None),
    ]


@pytest.mark.parametrize("value", ["", "=", "=nan", "=0", "=-1", "=1.01", "=inf", "=0,9", "=all"])
def test_a_share_of_memory_that_vllm_refuses_is_not_believed(value: str) -> None:
    told = edited(engine={"args": [f"--gpu-memory-utilization{value}"]})
    assert {each.memory_utilization for each in to_spec(LLMService.parse(told)).accelerators} == {None}


def test_pods_are_others_with_their_template_and_not_with_bounds_and_prices() -> None:
    before = pods(LARGEST)
    assert len(set(before)) == 2
    cheaper = [{**accelerator, "costPerHour": 0.1, "max": 9} for accelerator in LARGEST["spec"]["accelerators"]]
    for same in ({"scaling": {"min": 3}}, {"budget": {}}, {"mode": "Auto"}, {"priority": 7}, {"accelerators": cheaper}):
        assert pods(edited(**same)) == before
    for other in ({"template": {"spec": {"priorityClassName": "high"}}}, {"engine": {"args": ["--enforce-eager"]}}):
        assert not set(pods(edited(**other))) & set(before)


def test_the_smallest_service_has_the_defaults_of_the_api() -> None:
    assert to_spec(LLMService.parse(SMALLEST)) == ServiceSpec(
        key=ServiceKey("prod", "chat"),
        uid="u",
        generation=4,
        model_uri="Qwen/Qwen3-8B",
        slo=Slo(0.5, 0.03, 0.99, 3600.0),
        accelerators=(AcceleratorOption("h100", revision=revisions(SMALLEST)[0], pods=pods(SMALLEST)[0]),),
    )


@pytest.mark.parametrize(
    ("declared", "most", "counts"), [(100, 10, 10), (10, 10, 10), (-5, 10, -5), (0, -1_000_000_000, -1_000_000_000)]
)
def test_no_priority_counts_above_that_of_the_namespace(declared: int, most: int, counts: int) -> None:
    spec = to_spec(LLMService.parse(edited(priority=declared)), most)
    assert (spec.priority, spec.declared_priority) == (counts, declared)
    unlimited = to_spec(LLMService.parse(edited(priority=declared)))
    assert (unlimited.priority, unlimited.declared_priority) == (declared, declared)


def test_every_declared_field_arrives() -> None:
    spec = to_spec(LLMService.parse(LARGEST))
    first, second = (dict(revision=r, pods=p) for r, p in zip(revisions(LARGEST), pods(LARGEST), strict=True))
    assert spec.slo == Slo(0.5, 0.03, pytest.approx(0.995), 7200.0, 20.0)
    assert spec.accelerators == (
        AcceleratorOption("h100", "nvidia.com/gpu", 2, 2.5, 4, (("gpu", "H100"), ("zone", "a")), **first),
        AcceleratorOption("l40s", "example.com/gpu", 1, 0.8, spot=True, **second),
    )
    assert (spec.min_replicas, spec.max_replicas, spec.pinned_replicas) == (2, 20, 3)
    assert spec.min_on_demand == 1
    assert (spec.recommend_only, spec.max_cost_per_hour) == (True, 50.0)
    assert (spec.max_model_len, spec.quantization) == (8192, "fp8")
    assert spec.batching == BatchingLimits(64, 4096)
    assert not spec.may_surge


def test_batch_classes_arrive_apart_from_objectives_where_requests_may_claim_them() -> None:
    classes = [
        {"name": "night", "kind": "Batch", "finishWithin": "8h", "priority": -1},
        {"name": "rest", "kind": "Batch"},
        {"name": "bulk", "ttft": "5s"},
    ]
    slo = LARGEST["spec"]["slo"] | {"classes": classes}
    spec = to_spec(LLMService.parse(edited(slo=slo)))
    assert spec.batch == (BatchClass("night", -1, 28_800.0), BatchClass("rest"))
    assert [each.name for each in spec.slo.classes] == ["bulk"]
    assert to_spec(LLMService.parse(edited(slo=slo | {"claim": "None"}))).batch == ()


@pytest.mark.parametrize(
    ("template", "own", "found"),
    [
        (None, None, [Toleration("gpu", "Exists")]),
        (
            {"spec": {"tolerations": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}},
            {"spec": {"tolerations": [{"operator": "Exists"}]}},
            [Toleration("gpu", "Exists"), Toleration("team", "Equal", "a", "NoSchedule"), Toleration("", "Exists")],
        ),
        ({"spec": {"tolerations": None}}, None, []),
        ({"spec": None}, {"spec": {}}, [Toleration("gpu", "Exists")]),
    ],
)
def test_tolerations_are_those_that_the_pods_will_have(template: Any, own: Any, found: list[Toleration]) -> None:
    h100 = {"name": "h100", "tolerations": [{"key": "gpu", "operator": "Exists"}], "template": own}
    service = LLMService.parse({**SMALLEST, "spec": {**SMALLEST["spec"], "accelerators": [h100], "template": template}})
    assert to_spec(service).accelerators[0].tolerations == tuple(found)


def scheduled(**schedule: object) -> ServiceSpec:
    item = {"name": "office", "timezone": "Europe/Berlin", "start": "08:00", "end": "18:00", "min": 4, **schedule}
    return to_spec(LLMService.parse({**SMALLEST, "spec": {**SMALLEST["spec"], "scaling": {"schedules": [item]}}}))


@pytest.mark.parametrize(
    ("times", "minutes"),
    [
        (("08:00", "18:00"), (480, 1080)),
        (("22:00", "06:30"), (1320, 1830)),
        (("00:00", "24:00"), (0, 1440)),
        (("12:00", "00:00"), (720, 1440)),
        (("23:59", "23:58"), (1439, 2878)),
    ],
)
def test_a_schedule_arrives_in_minutes_of_its_first_day(times: tuple[str, str], minutes: tuple[int, int]) -> None:
    (found,) = scheduled(start=times[0], end=times[1], days=["Sat", "Mon"]).schedules
    assert found == Schedule("office", "Europe/Berlin", ZoneInfo("Europe/Berlin"), *minutes, frozenset({0, 5}), 4)


def test_a_schedule_without_days_holds_every_day() -> None:
    assert scheduled().schedules[0].days == frozenset(range(7))


@pytest.mark.parametrize("name", ["Europe/Atlantis", "europe/berlin_", "Europe", "A" * 64, "a/" * 20 + "a"])
def test_a_time_zone_that_nobody_knows_is_kept_by_name_alone(name: str) -> None:
    (found,) = scheduled(timezone=name).schedules
    assert (found.timezone, found.zone) == (name, None)


def test_the_same_object_read_twice_is_equal() -> None:
    assert scheduled() == scheduled()

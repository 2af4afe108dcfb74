"""The types refuse what the API server refuses, with the same words."""

from typing import Any

import pytest

from holdfast.api.llmbenchmark import InvalidLLMBenchmark, LLMBenchmark
from holdfast.api.llmservice import InvalidLLMService, LLMService
from tests.api import benchmark_refusals
from tests.api.refusals import ACCEPTED, REFUSALS, Accepted, Refusal, changed


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.sentence)
def test_refused_with_the_field_and_the_remedy(case: Refusal) -> None:
    with pytest.raises(InvalidLLMService) as refusal:
        LLMService.parse(case.body)
    assert case.at in str(refusal.value)
    assert case.remedy in str(refusal.value)


def test_a_fault_in_the_only_item_of_a_list_is_told_once() -> None:
    faulty = next(case for case in REFUSALS if case.sentence == "an accelerator in capitals")
    with pytest.raises(InvalidLLMService) as refusal:
        LLMService.parse(faulty.body)
    assert "at least 1 item" not in str(refusal.value)


@pytest.mark.parametrize(
    ("slo", "at"),
    [
        ({"e2e": "20s", "classes": [{"name": "a"}, {"name": "bulk", "ttft": "30s"}]}, "spec.slo.classes[1].ttft"),
        ({"ttft": "1s", "classes": [{"name": "bulk", "e2e": "500ms"}]}, "spec.slo.classes[0].e2e"),
        ({"ttft": "1s", "classes": [{"name": "bulk", "e2e": "1s"}]}, "spec.slo.classes[0].e2e"),
    ],
)
def test_bounds_of_a_class_fit_those_of_the_service_that_it_leaves_out(slo: dict[str, Any], at: str) -> None:
    with pytest.raises(InvalidLLMService, match="set both in the class") as refusal:
        LLMService.parse(changed({"slo": slo}))
    assert at in str(refusal.value)


def test_bounds_of_an_adapter_fit_those_of_the_service_that_it_leaves_out() -> None:
    adapters = [{"name": "sql", "uri": "/sql"}, {"name": "long", "uri": "/long", "slo": {"ttft": "30s"}}]
    with pytest.raises(InvalidLLMService, match="set both in the class") as refusal:
        LLMService.parse(changed({"slo": {"e2e": "20s"}, "model": {"lora": {"adapters": adapters}}}))
    assert "spec.model.lora.adapters[1].slo.ttft" in str(refusal.value)


@pytest.mark.parametrize(
    ("bound", "own", "looser"), [("ttft", "1s", "2s"), ("tpot", "40ms", "50ms"), ("e2e", "20s", "1m")]
)
def test_a_class_with_a_bound_that_is_looser_beyond_its_share_is_refused(bound: str, own: str, looser: str) -> None:
    def parse(**terms: str) -> LLMService:
        classes = [{"name": "plain"}, {"name": "capped", **terms}]
        return LLMService.parse(changed({"slo": {"ttft": "1s", "tpot": "40ms", "e2e": "20s", "classes": classes}}))

    parse(maxShare="20%", **{bound: own})
    parse(**{bound: looser})
    with pytest.raises(InvalidLLMService, match=f"remove maxShare, or lower {bound}") as refusal:
        parse(maxShare="20%", **{bound: looser})
    assert f"spec.slo.classes[1].{bound}" in str(refusal.value)


def test_shares_of_all_classes_leave_half_to_the_highest_priority() -> None:
    def parse(*shares: str) -> LLMService:
        classes = [{"name": f"c{number}", "minShare": share} for number, share in enumerate(shares)]
        return LLMService.parse(changed({"slo": {"classes": classes}}))

    assert parse("20%", "30%").spec.slo.classes[1].min_share == "30%"
    parse(*["1.5625%"] * 32)
    with pytest.raises(InvalidLLMService, match=r"together is 50\.1%, and may be 50% at most") as refusal:
        parse("20%", "30.1%")
    assert "spec.slo.classes" in str(refusal.value)


def test_bounds_of_a_class_may_be_looser_than_those_of_the_service() -> None:
    classes = [{"name": "bulk", "ttft": "30s", "e2e": "1m"}, {"name": "quick", "ttft": "100ms"}, {"name": "plain"}]
    assert (
        len(LLMService.parse(changed({"slo": {"ttft": "1s", "e2e": "20s", "classes": classes}})).spec.slo.classes) == 3
    )


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.sentence)
def test_accepted(case: Accepted) -> None:
    assert LLMService.parse(case.body).metadata.name == case.name


@pytest.mark.parametrize("case", benchmark_refusals.REFUSED, ids=lambda case: case.sentence)
def test_a_benchmark_is_refused_with_the_field_and_the_remedy(case: Refusal) -> None:
    with pytest.raises(InvalidLLMBenchmark) as refusal:
        LLMBenchmark.parse(case.body)
    assert case.at in str(refusal.value)
    # Durations are one rule for all fields: it names the unit, the path the field.
    assert case.remedy in str(refusal.value)


@pytest.mark.parametrize("case", benchmark_refusals.ACCEPTED, ids=lambda case: case.sentence)
def test_a_benchmark_is_accepted(case: Accepted) -> None:
    assert LLMBenchmark.parse(case.body).metadata.name == case.name


def test_every_sentence_names_one_case() -> None:
    sentences = [case.sentence for case in (*REFUSALS, *ACCEPTED)]
    assert len(sentences) == len(set(sentences))


_FOUR = {"limits": {"nvidia.com/gpu": "4"}}
_ENGINE_WITH_FOUR = {"spec": {"containers": [{"name": "vllm", "resources": _FOUR}]}}


@pytest.mark.parametrize(
    ("spec", "at"),
    [
        ({"engine": {"resources": _FOUR}}, "spec.engine.resources.limits"),
        ({"engine": {"resources": {"requests": {"nvidia.com/gpu": 2}}}}, "spec.engine.resources.requests"),
        ({"template": _ENGINE_WITH_FOUR}, "spec.template.spec.containers.resources.limits"),
        (
            {"accelerators": [{"name": "h100", "template": _ENGINE_WITH_FOUR}]},
            "spec.accelerators[0].template.spec.containers.resources.limits",
        ),
    ],
)
def test_gpus_that_another_field_asks_for_are_those_of_the_accelerator(spec: dict[str, Any], at: str) -> None:
    with pytest.raises(InvalidLLMService, match=r"set accelerators\[\]\.count") as refusal:
        LLMService.parse(changed(spec))
    assert at in str(refusal.value)


@pytest.mark.parametrize("asked", [4, "4", "4000m", "4.0"])
def test_gpus_may_be_said_twice_with_one_number(asked: int | str) -> None:
    four = {"requests": {"nvidia.com/gpu": asked, "cpu": 8}, "limits": {"nvidia.com/gpu": asked}}
    template = {"spec": {"containers": [{"name": "vllm", "resources": four}]}}
    two = {"spec": {"containers": [{"name": "vllm", "resources": {"limits": {"nvidia.com/gpu": 2}}}]}}
    other = {"name": "l40s", "count": 2, "template": two}
    LLMService.parse(
        changed(
            {"engine": {"resources": four}, "template": template, "accelerators": [{"name": "h100", "count": 4}, other]}
        )
    )


def test_gpus_of_a_group_are_those_of_each_pod() -> None:
    groups = [{"name": "h100", "count": 16, "nodes": 2}]
    LLMService.parse(changed({"engine": {"resources": {"limits": {"nvidia.com/gpu": 8}}}, "accelerators": groups}))
    with pytest.raises(InvalidLLMService, match="than 8, which a pod on h100 has"):
        LLMService.parse(changed({"engine": {"resources": {"limits": {"nvidia.com/gpu": 16}}}, "accelerators": groups}))

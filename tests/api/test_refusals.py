"""The types refuse what the API server refuses, with the same words."""

import pytest

from holdfast.api.llmbenchmark import InvalidLLMBenchmark, LLMBenchmark
from holdfast.api.llmservice import InvalidLLMService, LLMService
from tests.api import benchmark_refusals
from tests.api.refusals import ACCEPTED, REFUSALS, Accepted, Refusal


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

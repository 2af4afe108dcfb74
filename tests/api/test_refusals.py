"""The types refuse what the API server refuses, with the same words."""

import pytest

from holdfast.api.llmservice import InvalidLLMService, LLMService
from tests.api.refusals import ACCEPTED, REFUSALS, Accepted, Refusal


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.sentence)
def test_refused_with_the_field_and_the_remedy(case: Refusal) -> None:
    with pytest.raises(InvalidLLMService) as refusal:
        LLMService.parse(case.body)
    assert case.at in str(refusal.value)
    assert case.remedy in str(refusal.value)


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.sentence)
def test_accepted(case: Accepted) -> None:
    assert LLMService.parse(case.body).metadata.name == case.name


def test_every_sentence_names_one_case() -> None:
    sentences = [case.sentence for case in (*REFUSALS, *ACCEPTED)]
    assert len(sentences) == len(set(sentences))

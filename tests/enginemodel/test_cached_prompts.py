"""What a replica carries where the prefix cache holds a part of each prompt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.enginemodel.mix import LengthMix
from holdfast.policy.decide import STEP_LAW
from tests.builders import accelerator, service


@pytest.mark.parametrize("prompt_cv", [0.75, 1.5])
def test_a_larger_cached_share_never_lowers_what_a_replica_carries(prompt_cv: float) -> None:
    spec, option = service().with_ttft(2.0).with_tpot(0.1).spec, accelerator("l40s")
    mixes = [
        LengthMix.from_means(900.0, 156.0, cached_share=share, prompt_cv=prompt_cv, output_cv=1.5)
        for share in (0.0, 0.3, 0.6)
    ]
    rates = [STEP_LAW.rate(spec, option, mix, 1.0).rate_rps for mix in mixes]
    assert rates == sorted(rates)
    assert rates[-1] > 1.3 * rates[0]


@pytest.mark.parametrize(("prompt_tokens", "output_tokens"), [(3000.0, 512.0), (8000.0, 200.0)])
@pytest.mark.parametrize("tpot_seconds", [0.015, 0.03])
def test_fixed_lengths_carry_what_nearly_fixed_lengths_do_where_another_engine_computed_the_prompt(
    prompt_tokens: float, output_tokens: float, tpot_seconds: float
) -> None:
    """A decode engine computes one block of each prompt: all prompts of its steps are then alike, and so is the fit."""
    spec, option = service().with_ttft(0.05).with_tpot(tpot_seconds).spec, accelerator("h100")
    fixed, nearly = (
        LengthMix.from_means(
            prompt_tokens, output_tokens, cached_share=1.0 - 16.0 / prompt_tokens, prompt_cv=cv, output_cv=cv
        )
        for cv in (0.0, 0.05)
    )
    found = STEP_LAW.rate(spec, option, fixed, 1.0)
    assert found.feasible
    assert found.rate_rps == pytest.approx(STEP_LAW.rate(spec, option, nearly, 1.0).rate_rps, rel=0.05)


@pytest.mark.parametrize("cached_share", [0.95, 0.99, 1.0])
@pytest.mark.parametrize("lengths", [LengthMix.from_means, lambda *pair, **more: LengthMix.from_pairs([pair], **more)])
def test_a_token_of_each_prompt_is_computed_however_much_of_it_is_cached(
    lengths: Callable[..., LengthMix], cached_share: float
) -> None:
    """As vLLM does; less than one token is fitted to steps that have one, and gave 3.4 in place of 6.4 req/s."""
    assert lengths(16.0, 200.0, cached_share=cached_share) == lengths(16.0, 200.0, cached_share=15.0 / 16.0)
    assert lengths(1.0, 200.0, cached_share=cached_share) == lengths(1.0, 200.0)

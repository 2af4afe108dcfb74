"""What a replica carries where the prefix cache holds a part of each prompt."""

from __future__ import annotations

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

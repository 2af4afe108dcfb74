"""The limit on queued tokens, from the prior."""

from __future__ import annotations

import pytest

from holdfast.render.admission import admission_tokens, rollout_tokens
from holdfast.rendered.context import Deployed
from holdfast.rendered.declared import inputs
from tests.render.scenes import chat_h100, context, live, service


def limit(
    model: str = "Qwen/Qwen3-8B", accelerator: str = "h100", ttft: str = "500ms", tpot: str = "30ms"
) -> int | None:
    of = service(
        {"model": {"uri": model}, "slo": {"ttft": ttft, "tpot": tpot}, "accelerators": [{"name": accelerator}]}
    )
    return admission_tokens(of, of.spec.accelerators[0])


def test_a_known_model_on_a_known_accelerator_has_a_limit_of_two_digits() -> None:
    tokens = limit()
    assert tokens is not None
    assert 1_000 < tokens < 50_000
    assert int(str(tokens)[2:] or 0) == 0


@pytest.mark.parametrize(("model", "accelerator"), [("me/my-own-model", "h100"), ("Qwen/Qwen3-8B", "mystery")])
def test_what_is_unknown_has_the_limit_of_a_guess(model: str, accelerator: str) -> None:
    assert limit(model, accelerator, ttft="2s", tpot="100ms") is not None


def test_objectives_out_of_reach_have_no_limit() -> None:
    assert limit(ttft="1ms", tpot="1ms") is None


def test_a_longer_ttft_allows_a_longer_queue() -> None:
    short, longer = limit(ttft="200ms"), limit(ttft="2s")
    assert short is not None
    assert longer is not None
    assert longer > short


@pytest.mark.parametrize("accelerator", ["h100", "l40s"])
def test_a_short_ttft_still_lets_some_ordinary_prompts_queue(accelerator: str) -> None:
    tokens = limit(accelerator=accelerator, ttft="700ms", tpot="80ms")
    assert tokens is not None
    assert tokens > 4 * 1155


def test_a_small_batch_leaves_little_room_for_a_queue() -> None:
    slo = {"ttft": "2s", "tpot": "100ms"}
    batching = {"mode": "Fixed", "maxNumSeqs": 8, "maxNumBatchedTokens": 2048}
    of = service({"accelerators": [{"name": "l40s"}], "batching": batching, "slo": slo})
    small, large = admission_tokens(of, of.spec.accelerators[0]), limit(accelerator="l40s", **slo)
    assert small is not None
    assert large is not None
    assert small < large


def test_what_is_deployed_keeps_its_limit_until_something_rolls_it_out() -> None:
    of = service()
    accelerator = of.spec.accelerators[0]
    kept = Deployed(inputs(of, accelerator), "{}", 0, admission_tokens=123)
    edited = Deployed("other", "{}", 0, admission_tokens=123)
    assert rollout_tokens(of, accelerator, kept) == 123
    assert rollout_tokens(of, accelerator, edited) == admission_tokens(of, accelerator)
    assert rollout_tokens(of, accelerator, None) == admission_tokens(of, accelerator)


def test_a_measured_limit_outlives_every_edit_but_one_of_the_engine() -> None:
    of = service({"engine": {"plugin": "Disabled"}})
    measured = live(chat_h100(of, context(admission_tokens=123, admission_changed_at=1_800_000_000)))
    relabelled = service({"engine": {"plugin": "Disabled"}, "template": {"metadata": {"labels": {"team": "search"}}}})
    other_model = service({"engine": {"plugin": "Disabled"}, "model": {"uri": "Qwen/Qwen3-14B"}})
    accelerator = of.spec.accelerators[0]
    assert rollout_tokens(relabelled, accelerator, measured) == 123
    assert rollout_tokens(other_model, accelerator, measured) == admission_tokens(other_model, accelerator)

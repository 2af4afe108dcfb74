"""What engines with the plugin are told."""

import math

from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.llmservice import LLMService
from holdfast.render.engine_limits import engine_limits, limits_text
from holdfast_engine.rules import Objectives, Overload, parse_limits
from tests.api.refusals import changed


def service(spec: dict[str, object]) -> LLMService:
    return LLMService.parse(changed(spec))


def test_the_engine_reads_what_is_written() -> None:
    chat = service({"slo": {"e2e": "20s"}, "overload": "Reject"})
    written = engine_limits(chat, chat.spec.accelerators[0], 7, active_sequences=96, tokens_per_step=2048)
    text = limits_text(chat, chat.spec.accelerators[0], 7, active_sequences=96, tokens_per_step=2048)
    assert parse_limits(text) == written
    assert written.version == 7
    assert written.objectives == Objectives(0.5, 0.03, 20.0)
    assert (written.active_sequences, written.tokens_per_step, written.adapt) == (96, 2048, True)
    assert written.overload is Overload.REJECT


def test_fixed_batching_is_kept_as_given() -> None:
    chat = service({"batching": {"mode": "Fixed", "maxNumSeqs": 64, "maxNumBatchedTokens": 4096}})
    limits = engine_limits(chat, chat.spec.accelerators[0], active_sequences=8, tokens_per_step=512)
    assert (limits.active_sequences, limits.tokens_per_step, limits.adapt) == (64, 4096, False)


def test_a_known_model_on_a_known_accelerator_comes_with_its_step_law() -> None:
    chat = service({"accelerators": [{"name": "h100"}, {"name": "l40s"}, {"name": "abacus"}]})
    h100, l40s, abacus = (engine_limits(chat, accelerator).prior for accelerator in chat.spec.accelerators)
    assert h100 is not None
    assert l40s is not None
    assert h100.seconds(256, 16, 16_000, 50_000) < l40s.seconds(256, 16, 16_000, 50_000) < 1.0
    assert abacus is None


def test_depth_and_age_of_the_queue_are_left_to_the_engine() -> None:
    chat = service({})
    limits = engine_limits(chat, chat.spec.accelerators[0])
    assert limits.max_queued_requests is None
    assert limits.max_queued_seconds is None


@given(st.floats(0.001, 86_400.0), st.sampled_from(["h100", "l40s", "a100", "mi300x", "x"]))
def test_every_service_gets_limits_that_the_engine_takes(ttft_seconds: float, name: str) -> None:
    chat = service({"slo": {"ttft": f"{ttft_seconds:.3f}s"}, "accelerators": [{"name": name}]})
    limits = parse_limits(limits_text(chat, chat.spec.accelerators[0], 1))
    assert limits == engine_limits(chat, chat.spec.accelerators[0])
    assert math.isclose(limits.objectives.ttft_seconds, ttft_seconds, abs_tol=1e-3)

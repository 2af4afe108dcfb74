"""What engines with the plugin are told."""

import math

from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.llmservice import LLMService
from holdfast.observe.objects.spec import to_spec
from holdfast.render.engine_limits import engine_limits
from holdfast_engine.objectives.rules import UNBOUNDED, Claim, Kind, Objectives, Overload, RequestClass, parse_limits
from tests.api.refusals import changed


def service(spec: dict[str, object]) -> LLMService:
    return LLMService.parse(changed(spec))


def test_the_engine_reads_what_is_written() -> None:
    chat = service({"slo": {"e2e": "20s"}, "overload": "Reject"})
    written = engine_limits(chat, chat.spec.accelerators[0], 7, active_sequences=96, tokens_per_step=2048)
    text = engine_limits(chat, chat.spec.accelerators[0], 7, active_sequences=96, tokens_per_step=2048).to_json()
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


def test_a_class_has_the_bounds_of_the_service_where_it_has_none_of_its_own() -> None:
    classes = [{"name": "premium", "ttft": "200ms", "priority": 7}, {"name": "bulk", "tpot": "1s", "e2e": "10m"}]
    chat = service({"slo": {"e2e": "20s", "classes": classes, "claim": "Body"}})
    limits = engine_limits(chat, chat.spec.accelerators[0])
    assert limits.classes == (
        RequestClass("premium", Objectives(0.2, 0.03, 20.0), 7),
        RequestClass("bulk", Objectives(0.5, 1.0, 600.0)),
    )
    assert limits.claim is Claim.BODY
    assert parse_limits(limits.to_json()) == limits
    plain = service({"slo": {"classes": classes[:1]}})
    assert engine_limits(plain, plain.spec.accelerators[0]).claim is Claim.HEADER


def test_an_adapter_with_objectives_is_a_class_that_its_name_selects() -> None:
    adapters = [{"name": "sql", "uri": "/sql", "slo": {"ttft": "200ms", "priority": 5}}, {"name": "plain", "uri": "/p"}]
    chat = service({"slo": {"classes": [{"name": "premium"}]}, "model": {"lora": {"adapters": adapters}}})
    limits = engine_limits(chat, chat.spec.accelerators[0])
    assert limits.classes[1:] == (RequestClass("sql", Objectives(0.2, 0.03), 5, adapter=True),)
    assert parse_limits(limits.to_json()) == limits
    assert [(each.name, each.ttft_seconds) for each in to_spec(chat).slo.classes] == [("premium", 0.5), ("sql", 0.2)]


def test_batch_has_no_bounds_and_a_share_is_a_part_of_one() -> None:
    classes = [
        {"name": "night", "kind": "Batch", "priority": 3},
        {"name": "free", "minShare": "12.5%", "maxShare": "30%"},
    ]
    chat = service({"slo": {"classes": classes}})
    limits = engine_limits(chat, chat.spec.accelerators[0])
    night, free = limits.classes
    assert night == RequestClass("night", UNBOUNDED, 3, Kind.BATCH)
    assert (free.min_share, free.max_share) == (0.125, 0.3)
    assert [each.name for each in to_spec(chat).slo.classes] == ["free"], "batch has no objectives to size for"
    assert parse_limits(limits.to_json()) == limits


def test_depth_and_age_of_the_queue_are_left_to_the_engine() -> None:
    chat = service({})
    limits = engine_limits(chat, chat.spec.accelerators[0])
    assert limits.max_queued_requests is None
    assert limits.max_queued_seconds is None


@given(st.floats(0.001, 86_400.0), st.sampled_from(["h100", "l40s", "a100", "mi300x", "x"]))
def test_every_service_gets_limits_that_the_engine_takes(ttft_seconds: float, name: str) -> None:
    chat = service({"slo": {"ttft": f"{ttft_seconds:.3f}s"}, "accelerators": [{"name": name}]})
    limits = parse_limits(engine_limits(chat, chat.spec.accelerators[0], 1).to_json())
    assert limits == engine_limits(chat, chat.spec.accelerators[0])
    assert math.isclose(limits.objectives.ttft_seconds, ttft_seconds, abs_tol=1e-3)

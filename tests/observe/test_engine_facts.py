"""What engines say of themselves: the KV cache of one engine, and never a number that nobody said."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.engine import EngineFacts
from holdfast.domain.service import ServiceKey
from holdfast.observe.series import queries
from holdfast.observe.series.client import PrometheusAddress
from holdfast.observe.series.promql import OURS
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals import slow_queries
from holdfast.observe.signals.engine_facts import engine_facts
from holdfast.observe.signals.prometheus import PrometheusSource
from holdfast.observe.signals.slow_queries import SlowCache
from holdfast_engine.law.model_figures import ModelFigures
from tests.fakes import FakePrometheus
from tests.observe.observe_builders import CHAT, NOW, known_queries, ready, request, row, sample

OLD = {"block_size": "16", "num_gpu_blocks": "1000", "engine": "0"}
"""What vLLM told before it had kv_cache_size_tokens."""
NEW = OLD | {"kv_cache_size_tokens": "15992", "gpu_memory_utilization": "0.92", "cache_dtype": "fp8"}


def cache(engines: float = 1.0, **labels: str) -> Sample:
    return sample(engines, metric="cache_config_info", **labels)


def read(*rows: Sample) -> EngineFacts | None:
    """The facts of the only accelerator; None without any."""
    found = engine_facts(rows)
    return found[CHAT][0][1] if found else None


def test_the_kv_cache_is_what_vllm_counts_itself() -> None:
    assert read(cache(**NEW)) == EngineFacts(kv_tokens=15_992.0, block_tokens=16.0, memory_share=0.92, kv_dtype="fp8")


def test_an_older_vllm_tells_blocks_and_their_size() -> None:
    assert read(cache(**OLD)) == EngineFacts(kv_tokens=16_000.0, block_tokens=16.0)


def test_a_hybrid_model_is_not_measured_by_its_blocks() -> None:
    facts = read(cache(**OLD | {"block_size": "8", "num_gpu_blocks": "320", "kv_cache_size_tokens": "463459"}))
    assert facts is not None
    assert facts.kv_tokens == 463_459.0


def test_blocks_that_vllm_sums_over_data_parallel_engines_are_divided_among_them() -> None:
    facts = read(*(cache(3.0, **OLD | {"engine": str(engine), "num_gpu_blocks": "4000"}) for engine in range(4)))
    assert facts is not None
    assert facts.kv_tokens == 16_000.0
    facts = read(*(cache(3.0, **NEW | {"engine": str(engine), "num_gpu_blocks": "4000"}) for engine in range(4)))
    assert facts is not None
    assert facts.kv_tokens == 15_992.0


def test_of_engines_that_differ_the_least_counts_and_the_word_of_most() -> None:
    rows = [
        cache(1.0, **NEW | {"kv_cache_size_tokens": "20000", "cache_dtype": "auto"}),
        cache(2.0, **NEW | {"kv_cache_size_tokens": "18000", "gpu_memory_utilization": "0.9"}),
        cache(1.0, **NEW | {"kv_cache_size_tokens": "19000", "block_size": "32", "cache_dtype": "auto"}),
    ]
    expected = EngineFacts(kv_tokens=18_000.0, block_tokens=16.0, memory_share=0.9, kv_dtype="auto")
    assert read(*rows) == read(*reversed(rows)) == expected


def test_an_engine_that_is_scraped_twice_changes_nothing() -> None:
    assert read(cache(2.0, **NEW)) == read(cache(**NEW), cache(**NEW)) == read(cache(**NEW))


NONSENSE = ["", "None", "0", "-5", "NaN", "nan", "inf", "1e5", "16.0", "1_000", "²", " 7 ", "9" * 11, "9" * 400]


@pytest.mark.parametrize("text", NONSENSE)
def test_a_label_that_makes_no_sense_is_unknown_and_never_zero(text: str) -> None:
    for label in ("num_gpu_blocks", "block_size"):
        facts = read(cache(**OLD | {label: text}), cache(**OLD | {label: text, "kv_cache_size_tokens": text}))
        assert facts is None or facts.kv_tokens is None
    facts = read(cache(**NEW | {"gpu_memory_utilization": text, "cache_dtype": ""}))
    assert facts == EngineFacts(kv_tokens=15_992.0, block_tokens=16.0)


@pytest.mark.parametrize("text", ["", "None", "0", "-5", "NaN"])
def test_without_its_own_count_vllms_blocks_are_taken(text: str) -> None:
    facts = read(cache(**NEW | {"kv_cache_size_tokens": text}))
    assert facts is not None
    assert facts.kv_tokens == 16_000.0


def test_one_engine_with_nonsense_does_not_hide_the_facts_of_another() -> None:
    facts = read(cache(**dict.fromkeys(NEW, "None")), cache(**NEW))
    assert facts is not None
    assert (facts.kv_tokens, facts.kv_dtype) == (15_992.0, "fp8")


def test_rows_that_name_no_accelerator_or_count_no_engine_are_ignored() -> None:
    assert engine_facts([cache(**NEW, holdfast_accelerator="")]) == {}
    assert engine_facts([cache(math.nan, **NEW), cache(-1.0, **NEW), cache(math.inf, **NEW)]) == {}
    assert engine_facts([sample(1.0, **NEW), sample(1.0, **NEW, metric="other"), cache()]) == {}


INFO = {
    "max_model_len": "32768",
    "dtype": "bfloat16",
    "quantization": "none",
    "tensor_parallel": "4",
    "pipeline_parallel": "2",
    "graph_edge": "512",
    "speculative_tokens": "0",
    "model_shape": "",
}
"""What the plugin tells of how vLLM was started."""
STARTED = EngineFacts(
    dtype="bfloat16",
    quantization="none",
    max_model_len=32_768,
    parallel_gpus=8,
    graph_edge_tokens=512,
    speculative_tokens=0,
)


def info(engines: float = 1.0, **labels: str) -> Sample:
    return sample(engines, metric="engine_info", **labels)


def test_the_plugin_tells_how_vllm_was_started() -> None:
    assert read(info(**INFO)) == STARTED
    merged = dataclasses.replace(STARTED, kv_tokens=16_000.0, block_tokens=16.0)
    assert read(info(**INFO), cache(**OLD)) == merged


def test_data_parallel_engines_of_a_pod_share_its_gpus() -> None:
    facts = read(info(**INFO | {"tensor_parallel": "1"}), *(cache(**OLD | {"engine": str(each)}) for each in range(4)))
    assert facts is not None
    assert facts.parallel_gpus == 8
    assert read(info(**INFO | {"tensor_parallel": "100000"})) == dataclasses.replace(STARTED, parallel_gpus=None)


@pytest.mark.parametrize("text", ["", "None", "-5", "NaN", "1e5", "16.0", "²", "9" * 400])
def test_what_the_plugin_does_not_know_is_unknown(text: str) -> None:
    assert read(info(**INFO | {"dtype": "x" * 65, "quantization": "None"} | {"graph_edge": text})) == (
        dataclasses.replace(STARTED, dtype=None, quantization=None, graph_edge_tokens=None)
    )
    for label in ("max_model_len", "tensor_parallel", "pipeline_parallel"):
        facts = read(info(**INFO | {label: text}))
        assert facts is not None
        assert (facts.max_model_len is None, facts.parallel_gpus is None) == (
            label == "max_model_len",
            label != "max_model_len",
        )


def test_no_graph_and_no_speculation_are_facts_but_no_model_is_zero_tokens_long() -> None:
    facts = read(info(**INFO | {"graph_edge": "0", "speculative_tokens": "3", "max_model_len": "0"}))
    assert facts == dataclasses.replace(STARTED, graph_edge_tokens=0, speculative_tokens=3, max_model_len=None)


SHAPE = "layers=8 hidden=128 heads=4 kv_heads=2 head_dim=32 parameters=1441792 active_parameters=1441792"
SHAPE += " embedding_parameters=262144 kv_latent=0 kv_layers=8 weight_bits=0"


def test_the_model_is_the_one_of_most_engines_and_never_a_mixture() -> None:
    other = SHAPE.replace("layers=8", "layers=4")
    facts = read(*(info(2.0, **INFO | {"model_shape": text}) for text in (SHAPE, other, SHAPE, "layers=1", "x" * 500)))
    assert facts == dataclasses.replace(STARTED, model=ModelFigures.read(SHAPE))
    assert facts.model is not None
    assert (facts.model.layers, facts.model.parameters, str(facts.model)) == (8, 1_441_792, SHAPE)
    for nonsense in ("layers=1", SHAPE.replace("heads=4", "heads=0"), SHAPE + " ", "None"):
        assert read(info(9.0, **INFO | {"model_shape": nonsense}), info(**INFO)) == STARTED


def drafted(accepted: float, drafts: float, accelerator: str = "h100") -> list[Sample]:
    counts = {queries.ACCEPTED: accepted, queries.DRAFTS: drafts}
    return [sample(value, metric=name, holdfast_accelerator=accelerator) for name, value in counts.items()]


def test_accepted_draft_tokens_are_per_draft_and_none_accepted_is_a_fact() -> None:
    assert read(*drafted(240.0, 120.0)) == EngineFacts(accepted_drafts=2.0)
    assert read(*drafted(0.0, 120.0)) == EngineFacts(accepted_drafts=0.0)
    found = engine_facts([*drafted(240.0, 120.0), *drafted(0.0, 0.0, "l40s"), cache(**OLD)])[CHAT]
    assert found == (("h100", EngineFacts(kv_tokens=16_000.0, block_tokens=16.0, accepted_drafts=2.0)),)


@pytest.mark.parametrize("accepted", [math.nan, math.inf, -5.0, 1e300, 200.0])
@pytest.mark.parametrize("drafts", [0.0, math.nan, math.inf, -5.0, 1e-300, 100.0])
def test_drafts_that_make_no_sense_say_nothing(accepted: float, drafts: float) -> None:
    facts = read(*drafted(accepted, drafts))
    assert (facts is None) is ((accepted, drafts) != (200.0, 100.0))
    assert read(*drafted(accepted, drafts)[:1]) is None
    assert read(*drafted(accepted, drafts)[1:]) is None


def lag(seconds: float) -> Sample:
    return sample(seconds, metric=queries.LAG)


def test_the_front_end_and_its_longest_lag_are_facts() -> None:
    facts = read(info(**INFO | {"front_end": "Python"}), lag(0.0123), lag(0.047))
    assert facts == dataclasses.replace(STARTED, front_end="Python", front_end_lag_seconds=0.05)
    rust = read(info(**INFO | {"front_end": "Rust"}), *map(lag, (0.0, math.nan, math.inf, -1.0, 1e9)))
    assert rust == dataclasses.replace(STARTED, front_end="Rust")
    assert facts.updated(rust) == rust, "a lag of before says nothing of now"


def test_while_engines_are_replaced_the_word_of_most_counts() -> None:
    facts = read(info(2.0, **INFO), info(3.0, **INFO | {"dtype": "float16", "max_model_len": "16384"}))
    assert facts == dataclasses.replace(STARTED, dtype="float16", max_model_len=16_384)


def test_accelerators_and_services_are_kept_apart_and_sorted() -> None:
    found = engine_facts(
        [
            cache(**OLD, holdfast_accelerator="l40s"),
            cache(**OLD | {"num_gpu_blocks": "9000"}),
            cache(**OLD | {"num_gpu_blocks": "7"}, namespace="test"),
        ]
    )
    assert [(name, facts.kv_tokens) for name, facts in found[CHAT]] == [("h100", 144_000.0), ("l40s", 16_000.0)]
    assert [facts.kv_tokens for _, facts in found[ServiceKey("test", "chat")]] == [112.0]


LABELS: st.SearchStrategy[str] = st.sampled_from([*NONSENSE, "16", "128", "1000", "0.5", "auto"]) | st.text(max_size=5)


@given(st.lists(st.tuples(st.floats(), st.dictionaries(st.sampled_from(sorted(NEW | INFO)), LABELS)), max_size=5))
def test_facts_are_positive_finite_and_the_same_in_any_order(drawn: list[tuple[float, dict[str, str]]]) -> None:
    rows = [made(value, **labels) for value, labels in drawn for made in (cache, info)]
    facts = read(*rows)
    assert read(*reversed(rows)) == facts
    for number in dataclasses.astuple(facts) if facts else ():
        assert number is None or isinstance(number, str) or 0.0 <= number <= 1e22
    assert facts is None or facts.kv_tokens is None or 0.0 < facts.kv_tokens <= 1e10


def test_facts_are_asked_once_a_minute_in_one_query_and_not_at_every_tick() -> None:
    (asked,) = (query.promql for query in queries.slow_queries() if queries.CACHE_CONFIG in query.promql)
    assert set(re.findall(r"vllm:cache_config_info\{([^}]*)\}", asked)) == {OURS}
    fast = queries.fast_queries(queries.window(5.0, 15.0), queries.Edges(ttft=(0.5,)))
    assert not any("cache_config_info" in query.promql for query in fast)


def test_facts_outlive_a_failed_query_but_not_five_minutes() -> None:
    kept = SlowCache(tuple(query.name for query in slow_queries.ALL), 60.0, 300.0)
    kept.store("facts", [cache(**OLD)], NOW)
    assert CHAT in kept.signals(NOW + 300.0).facts
    assert kept.signals(NOW + 301.0).facts == {}


async def test_facts_of_every_accelerator_arrive_with_the_first_traffic_after_a_start() -> None:
    async with FakePrometheus(known_queries()) as fake:
        fake.rows["engines"] = [row(NOW - 3, pod="chat-0")]
        fake.rows["facts"] = [row(1, **OLD, metric="cache_config_info")]
        source = PrometheusSource(PrometheusAddress(fake.url, timeout_seconds=30.0))
        traffic = (await source.observe([request(ready("chat-0"))], NOW))[CHAT]
        await source.close()
    assert traffic.facts == (("h100", EngineFacts(kv_tokens=16_000.0, block_tokens=16.0)),)

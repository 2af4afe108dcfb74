"""The emulator's /metrics against a real vLLM's, and the counting behind it."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.domain.engine import EngineFacts
from holdfast.domain.service import ServiceKey
from holdfast.emulator.families import FAMILIES, BucketKind, bucket_edges, cache_config
from holdfast.emulator.metrics import BadBuckets, EngineMetrics, checked_buckets
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals.engine_facts import engine_facts
from tests.shared_data import shared_data

Series = dict[str, set[frozenset[tuple[str, str]]]]
FREE_LABELS = set(cache_config(1600, 16, 2048, 0.92)) | {"model_name"}


def metrics(**custom: list[float]) -> EngineMetrics:
    return EngineMetrics("./tiny", 2048, 1.5e9, cache_config(1600, 16, 2048, 0.92), custom)


def shape(text: str) -> tuple[dict[str, tuple[str, str]], Series]:
    """Type and help by name, and label sets by sample name; values of labels that depend on the model left out."""
    heads: dict[str, tuple[str, str]] = {}
    helps: dict[str, str] = {}
    series: Series = defaultdict(set)
    for line in text.splitlines():
        if line.startswith("# HELP vllm:"):
            name, _, helps[line.split()[2]] = line[7:].partition(" ")
        elif line.startswith("# TYPE vllm:"):
            name, kind = line[7:].split(" ")
            heads[name] = (kind, helps[name])
        elif line.startswith("vllm:"):
            match = re.fullmatch(r"([^{]+)\{(.*)\} (\S+)", line)
            assert match is not None
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
            series[match[1]].add(frozenset((k, "" if k in FREE_LABELS else v) for k, v in labels.items()))
    return heads, series


@pytest.mark.data
def test_names_types_help_labels_and_edges_are_those_of_a_real_vllm() -> None:
    real = shape(shared_data("vllm_metrics", "vllm-0.32.0-cpu.prom").read_text())
    ours = shape(metrics().render().decode())
    assert ours[0] == real[0]
    assert ours[1] == real[1]


@pytest.mark.data
def test_families_come_in_the_order_of_a_real_vllm() -> None:
    real = re.findall(r"^# TYPE (vllm:\S+)", shared_data("vllm_metrics", "vllm-0.32.0-cpu.prom").read_text(), re.M)
    assert re.findall(r"^# TYPE (vllm:\S+)", metrics().render().decode(), re.M) == real


def test_the_text_is_what_prometheus_reads() -> None:
    counted = metrics()
    counted.add("vllm:prompt_tokens", 2_500_000)
    counted.observe("vllm:time_to_first_token_seconds", 0.3)
    samples = {
        (sample.name, sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(counted.render().decode())
        for sample in family.samples
    }
    assert samples["vllm:prompt_tokens_total", None] == 2_500_000
    assert samples["vllm:time_to_first_token_seconds_bucket", "0.25"] == 0
    assert samples["vllm:time_to_first_token_seconds_bucket", "0.5"] == 1
    assert samples["vllm:time_to_first_token_seconds_bucket", "+Inf"] == 1
    assert samples["vllm:time_to_first_token_seconds_sum", None] == 0.3


def test_an_edge_belongs_to_its_bucket() -> None:
    counted = metrics(time_to_first_token=[0.5, 1.0])
    for value in (0.5, 0.500001, 1.0, 1.1):
        counted.observe("vllm:time_to_first_token_seconds", value)
    assert counted.histograms["vllm:time_to_first_token_seconds"].counts == [1, 2, 1]


def test_token_edges_follow_the_model_length() -> None:
    assert bucket_edges(BucketKind.REQUEST_TOKENS, 2048)[-1] == 2000.0
    assert bucket_edges(BucketKind.REQUEST_TOKENS, 40_960)[-3:] == (5000.0, 10000.0, 20000.0)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("inter_token_latency", {"inter_token_latency_seconds", "request_time_per_output_token_seconds"}),
        ("time_to_first_token", {"time_to_first_token_seconds"}),
        (
            "request_latency",
            {
                "e2e_request_latency_seconds",
                "request_queue_time_seconds",
                "request_inference_time_seconds",
                "request_prefill_time_seconds",
                "request_decode_time_seconds",
            },
        ),
        ("iteration_tokens", {"iteration_tokens_total"}),
        ("kv_cache_residency", set()),
    ],
)
def test_custom_edges_reach_every_metric_of_their_family(family: str, names: set[str]) -> None:
    changed = metrics(**{family: [0.25, 0.75]}).histograms
    assert {name for name, histogram in changed.items() if histogram.edges == (0.25, 0.75)} == {
        f"vllm:{name}" for name in names
    }


@pytest.mark.parametrize(
    ("custom", "complaint"),
    [
        ({"ttft": [1.0]}, "unknown family 'ttft'; use one of time_to_first_token"),
        ({"time_to_first_token": []}, "at least one edge"),
        ({"time_to_first_token": [1.0, 1.0]}, "positive and ascending"),
        ({"time_to_first_token": [0.0, 1.0]}, "positive and ascending"),
        ({"time_to_first_token": [float("nan")]}, "positive and ascending"),
        ({"time_to_first_token": ["1"]}, "must be numbers"),
        ({"time_to_first_token": 3}, "at least one edge"),
    ],
)
def test_bad_edges_are_refused_with_a_remedy(custom: dict[str, list[float]], complaint: str) -> None:
    with pytest.raises(BadBuckets, match=re.escape(complaint)):
        checked_buckets(custom)


def test_the_operator_reads_its_kv_cache_off_the_labels() -> None:
    families = text_string_to_metric_families(metrics().render().decode())
    (info,) = (sample for family in families for sample in family.samples if sample.name == "vllm:cache_config_info")
    of_service = {"namespace": "prod", "holdfast_service": "chat", "holdfast_accelerator": "h100"}
    labels = dict(info.labels) | of_service | {"metric": "cache_config_info"}
    expected = EngineFacts(kv_tokens=1600.0, block_tokens=16.0, memory_share=0.92, kv_dtype="auto")
    assert engine_facts([Sample(labels, info.value)]) == {ServiceKey("prod", "chat"): (("h100", expected),)}


def test_label_values_are_escaped() -> None:
    odd = EngineMetrics('a"b\\c\nd', 2048, 0.0, cache_config(1600, 16, 2048, 0.92))
    assert 'model_name="a\\"b\\\\c\\nd"' in odd.render().decode()


def test_no_two_families_share_a_name() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)

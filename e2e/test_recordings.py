"""Recording rules over exactly known series, played by promtool: the value of what they record.

Needs `promtool` only: no cluster and no Prometheus that runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.rules_world import CHAT, ENGINE, World, counted, led, of_chat
from holdfast.domain.service import ServiceKey
from holdfast.monitoring import series
from holdfast.observe.series.queries import ACCEPTED, DRAFTS
from holdfast.page import recall

FAST, SLOW = "HoldfastErrorBudgetFastBurn", "HoldfastErrorBudgetSlowBurn"


@pytest.fixture
def world() -> World:
    """A world in which an operator leads and ticks."""
    return led()


def test_shares_are_of_all_requests_and_no_mean_of_engines_shares(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.judged("chat", 90.0, lambda _: 0.0, "busy")
    world.judged("chat", 10.0, lambda _: 1.0, "idle")
    world.expect(20.0, f"{of_chat(series.BAD)} / {of_chat(series.JUDGED)}", (CHAT, 0.1))
    world.expect(
        20.0, of_chat(series.BAD_BY_CAUSE), ('{cause="ttft", namespace="prod", holdfast_service="chat"}', 10.0)
    )
    world.play(tmp_path)


def test_classes_are_recorded_apart_and_counted_with_all_others(world: World, tmp_path: Path) -> None:
    world.service("chat")
    own = world.judged("chat", 30.0, lambda _: 0.0)
    for cause, bad in (("ttft", 4.0), ("tpot", 1.0)):
        world.add(
            "holdfast:requests_bad_total", own | {"class": "premium", "cause": cause}, counted(lambda _, bad=bad: bad)
        )
    world.add("holdfast:requests_good_total", own | {"class": "premium"}, counted(lambda _: 15.0))
    labels = '{class="premium", namespace="prod", holdfast_service="chat"}'
    world.expect(20.0, of_chat(series.CLASS_JUDGED), (CHAT, 30.0), (labels, 20.0))
    world.expect(20.0, of_chat(series.CLASS_BAD), (CHAT, 0.0), (labels, 5.0))
    world.expect(20.0, of_chat(series.JUDGED), (CHAT, 50.0))
    world.play(tmp_path)


def with_prefill(world: World) -> None:
    """A replica that judges 10 requests a second, all handed over to it by a pool that fails and refuses 3 more."""
    world.service("chat")
    world.judged("chat", 10.0, lambda _: 0.1)
    pool = world.judged("chat.prefill", 0.0, lambda _: 0.0)
    world.add("holdfast:requests_arrived_total", pool | {"class": ""}, counted(lambda _: 13.0))
    world.add("holdfast:requests_handed_over_total", pool, counted(lambda _: 10.0))
    world.add("vllm:request_success_total", pool | {"finished_reason": "length"}, counted(lambda _: 10.0))
    for cause, rps in (("error", 2.0), ("rejected", 1.0)):
        world.add("holdfast:requests_bad_total", pool | {"cause": cause}, counted(lambda _, rps=rps: rps))


def test_what_a_prefill_pool_fails_is_its_services_and_what_it_hands_over_is_counted_once(
    world: World, tmp_path: Path
) -> None:
    with_prefill(world)
    world.service("alone")
    world.judged("alone", 5.0, lambda _: 0.2)
    alone = CHAT.replace("chat", "alone")
    for recorded, expected, of_alone in (
        (series.ARRIVED, 13.0, 5.0),
        (series.JUDGED, 13.0, 5.0),
        (series.GOOD, 9.0, 4.0),
        (series.BAD, 4.0, 1.0),
        (series.CLASS_JUDGED, 13.0, 5.0),
        (series.CLASS_BAD, 4.0, 1.0),
    ):
        world.expect(20.0, series.of(recorded), (CHAT, expected), (alone, of_alone))
    causes = (("ttft", "chat", 1.0), ("error", "chat", 2.0), ("rejected", "chat", 1.0), ("ttft", "alone", 1.0))
    rows = ((f'{{cause="{cause}", namespace="prod", holdfast_service="{name}"}}', rps) for cause, name, rps in causes)
    world.expect(20.0, f"{series.of(series.BAD_BY_CAUSE)} > 0", *rows)
    world.play(tmp_path)


def test_a_pod_that_names_a_pool_and_its_service_alike_fails_the_rules_of_nobody(world: World, tmp_path: Path) -> None:
    with_prefill(world)
    for name in ("forged", "forged.prefill", "forged.prefill.prefill"):
        forged = ENGINE | {"holdfast_service": name, "pod": "forged", "instance": "forged:8000", "cause": "ttft"}
        world.add("holdfast:requests_bad_total", forged, counted(lambda _: 1.0))
    world.expect(20.0, series.of(series.BAD), (CHAT, 4.0))
    world.play(tmp_path)


def test_the_status_page_reads_back_what_the_rules_record_and_nothing_that_was_scraped(
    world: World, tmp_path: Path
) -> None:
    world.service("chat")
    world.service("other")
    labels = world.judged("chat", 10.0, lambda _: 0.1)
    world.operator("chat", service_forecast_rps=12.0, slo_attainment_ratio=0.9, slo_budget_remaining_ratio=-9.0)
    for state, count in (("desired", 2.0), ("ready", 1.0), ("failing", 1.0)):
        world.told("service_replicas", count, "chat", accelerator="h100", state=state)
    world.told("service_capacity_rps", 8.0, "chat", accelerator="h100", bound_by="TPOT")
    world.add(series.FORECAST, labels, lambda _: 99.0)
    asked = recall.query([ServiceKey("prod", "chat")]).promql
    named = f'label_replace({asked}, "recorded", "$1", "__name__", "(.+)")'
    counts = {
        series.ARRIVED: 1.0, series.GOOD: 1.0, series.BAD_BY_CAUSE: 1.0, series.FORECAST: 1.0, series.ATTAINMENT: 1.0,
        series.BUDGET_LEFT: 1.0, series.REPLICAS: 3.0, series.CAPACITY: 1.0,
    }  # fmt: skip
    expected = [(f'{{recorded="{name}"}}', count) for name, count in counts.items()]
    world.expect(20.0, f"count by (recorded) ({named})", *expected)
    forecast = asked.replace("{", f'{{__name__="{series.FORECAST}", ', 1)
    world.expect(20.0, f"max ({forecast})", ("{}", 12.0))
    world.play(tmp_path)


def test_engines_without_the_plugin_are_judged_by_the_edges_of_their_objectives(world: World, tmp_path: Path) -> None:
    world.service("plain")
    labels = world.engine("plain")
    for reason, rps in (("stop", 8.0), ("length", 2.0), ("error", 0.5), ("abort", 1.0)):
        world.add("vllm:request_success_total", labels | {"finished_reason": reason}, counted(lambda _, rps=rps: rps))
    for edge, rps in (("0.4", 8.0), ("0.5", 9.0), ("1.0", 10.0), ("+Inf", 10.0)):
        world.add("vllm:time_to_first_token_seconds_bucket", labels | {"le": edge}, counted(lambda _, rps=rps: rps))
    for edge, rps in (("0.05", 9.5), ("+Inf", 10.0)):
        bucket = labels | {"le": edge}
        world.add("vllm:request_time_per_output_token_seconds_bucket", bucket, counted(lambda _, rps=rps: rps))
    for latency, edge in (("ttft", "0.4"), ("ttft", "0.5"), ("tpot", "0.05"), ("tpot", "0.04")):
        world.told("slo_edge", 1.0, "plain", latency=latency, le=edge)
    plain = '{namespace="prod", holdfast_service="plain"}'
    world.expect(20.0, series.of(series.JUDGED), (plain, 10.5))
    world.expect(20.0, series.of(series.BAD), (plain, 2.0))  # 1 late, 0.5 slow, 0.5 failed
    world.expect(20.0, f"max ({series.of(series.QUANTILES[0][1], latency='ttft')})", ("{}", 0.25))
    world.fires(20.0, (FAST, "plain"), (SLOW, "plain"))
    world.play(tmp_path)


def test_of_native_histograms_percentiles_are_recorded_and_no_verdict_is_made_up(world: World, tmp_path: Path) -> None:
    """Case C03: no expression can compare a native histogram with the objective of each service."""
    world.service("plain")
    labels = world.engine("plain")
    world.add("vllm:request_success_total", labels | {"finished_reason": "stop"}, counted(lambda _: 10.0))
    each = "{{schema:-53 sum:60 count:150 custom_values:[0.1 0.5 1] buckets:[75 60 15]}}"
    for family in ("time_to_first_token_seconds", "request_time_per_output_token_seconds"):
        world.add_native(f"vllm:{family}", labels, each)
    for latency in ("ttft", "tpot"):
        world.told("slo_edge", 1.0, "plain", latency=latency, le="0.5")
    world.expect(20.0, f"max ({series.of(series.QUANTILES[0][1], latency='ttft')})", ("{}", 0.1))
    world.expect(20.0, f"max ({series.of(series.QUANTILES[1][1], latency='tpot')})", ("{}", 0.75))
    world.expect(20.0, series.of(series.JUDGED))
    world.expect(20.0, series.of(series.BAD))
    world.fires(20.0)
    world.play(tmp_path)


def test_half_a_rollout_is_judged_by_bounds_as_the_operator_does(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.judged("chat", 10.0, lambda _: 0.0)
    world.engine("chat", "without")
    world.expect(20.0, of_chat(series.JUDGED_EXACTLY))
    world.expect(20.0, of_chat(series.JUDGED))
    world.play(tmp_path)


def test_gpus_their_use_and_the_fullest_cache_are_recorded_of_all_engines(world: World, tmp_path: Path) -> None:
    world.service("chat")
    for pod, flops, usage in (("a", 3e14, 0.3), ("b", 5e14, 0.7)):
        labels = world.engine("chat", pod)
        world.add("vllm:kv_cache_usage_perc", labels, lambda _, usage=usage: usage)
        for name, rate in (("flops", flops), ("read_bytes", 1e12), ("write_bytes", 5e11)):
            world.add(f"vllm:estimated_{name}_per_gpu_total", labels, counted(lambda _, rate=rate: rate))
    for what, peak in (("flops", 1e15), ("bytes", 3e12)):
        world.told("service_gpu_peak", peak, "chat", accelerator="h100", of=what)
    world.told("service_gpus_per_replica", 2.0, "chat", accelerator="h100")
    world.told("service_replicas", 3.0, "chat", accelerator="h100", state="ready")
    h100 = f'{CHAT[:-1]}, holdfast_accelerator="h100", '
    world.expect(20.0, of_chat(series.KV_MEAN), (CHAT, 0.5))
    world.expect(20.0, of_chat(series.KV_MOST), (CHAT, 0.7))
    world.expect(20.0, of_chat(series.GPU_USE, of="flops"), (f'{h100}of="flops"}}', 0.4))
    world.expect(20.0, of_chat(series.GPU_USE, of="bytes"), (f'{h100}of="bytes"}}', 0.5))
    world.expect(20.0, of_chat(series.GPUS), (f'{h100}state="ready"}}', 6.0))
    world.play(tmp_path)


def test_accepted_draft_tokens_are_of_all_drafts_and_absent_where_nothing_is_drafted(
    world: World, tmp_path: Path
) -> None:
    for name in ("chat", "plain", "idle"):
        world.service(name)
    for pod, accepted, drafts in (("a", 240.0, 100.0), ("b", 0.0, 20.0)):
        labels = world.engine("chat", pod)
        world.add(f"vllm:{ACCEPTED}", labels, counted(lambda _, rate=accepted: rate))
        world.add(f"vllm:{DRAFTS}", labels, counted(lambda _, rate=drafts: rate))
    world.engine("plain", "c")
    idle = world.engine("idle", "d")
    for name in (ACCEPTED, DRAFTS):
        world.add(f"vllm:{name}", idle, lambda _: 7.0)
    found = f'{CHAT[:-1]}, holdfast_accelerator="h100"}}'
    world.expect(
        20.0,
        f"sum by (namespace, holdfast_service, holdfast_accelerator) ({series.of(series.ACCEPTED_DRAFTS)})",
        (found, 2.0),
    )
    world.play(tmp_path)


def test_engines_that_say_the_same_of_themselves_are_counted_together(world: World, tmp_path: Path) -> None:
    world.service("chat")
    for pod, blocks in (("a", "1000"), ("b", "1000"), ("c", "900")):
        labels = world.engine("chat", pod)
        world.add("vllm:cache_config_info", labels | {"num_gpu_blocks": blocks, "engine": "0"}, lambda _: 1.0)
        world.add("holdfast:engine_info", labels | {"dtype": "float16", "graph_edge": ""}, lambda _: 1.0)
    h100 = f'{CHAT[:-1]}, holdfast_accelerator="h100", '
    counted_engines = ((f'{h100}num_gpu_blocks="1000"}}', 2.0), (f'{h100}num_gpu_blocks="900"}}', 1.0))
    world.expect(20.0, of_chat(series.BY_CACHE), *counted_engines)
    world.expect(20.0, of_chat(series.BY_START), (f'{h100}dtype="float16"}}', 3.0))
    world.play(tmp_path)


def test_limits_are_of_the_lowest_engine_else_what_engines_were_started_with(world: World, tmp_path: Path) -> None:
    for name in ("chat", "plain"):
        world.service(name)
        for accelerator, tokens in (("h100", 4096.0), ("l40s", 2048.0)):
            labels = {"accelerator": accelerator, "name": "tokens_per_step"}
            world.told("service_batching_limit", tokens, name, **labels)
    for pod, tokens in (("a", 1024.0), ("b", 512.0)):
        labels = world.engine("chat", pod) | {"name": "tokens_per_step"}
        world.add("holdfast:limits", labels, lambda _, tokens=tokens: tokens)
    limit = '{{namespace="prod", holdfast_service="{}", name="tokens_per_step"}}'
    samples = ((limit.format("chat"), 512.0), (limit.format("plain"), 2048.0))
    world.expect(20.0, f"sum by (namespace, holdfast_service, name) ({series.of(series.ENGINE_LIMIT)})", *samples)
    world.play(tmp_path)


def test_costs_are_of_the_tokens_and_good_requests_of_the_same_time(world: World, tmp_path: Path) -> None:
    world.service("chat")
    world.judged("chat", 10.0, lambda _: 0.2)
    world.operator("chat", service_cost_dollars_per_hour=7.2)
    labels = ENGINE | {"holdfast_service": "chat", "pod": "chat-a", "instance": "chat-a:8000"}
    for kind, rate in (("prompt", 900.0), ("generation", 100.0)):
        world.add(f"vllm:{kind}_tokens_total", labels, counted(lambda _, rate=rate: rate))
    world.expect(20.0, of_chat(series.COST_OF_TOKENS), (CHAT, 2.0))
    world.expect(20.0, of_chat(series.COST_OF_GOOD), (CHAT, 0.25))
    world.play(tmp_path)

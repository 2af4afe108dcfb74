"""Rules over a Deployment of somebody else, played by promtool: what is recorded of it equals that of an own service.

Each test has the same engine twice: with Holdfast's labels, and with nothing but namespace and pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from e2e.rules_world import World, counted, led, since
from holdfast.monitoring import series
from holdfast.observe.series.queries import ACCEPTED, DRAFTS

POD = "my-vllm-7d9f8c6b5d-x2x4z"
ADOPTED = '{namespace="prod", holdfast_service="adopted"}'
OF_ENGINES = (
    *(series.BUCKETS, series.FINISHED, series.FAILED, series.REJECTED, series.LATE, series.JUDGED, series.BAD),
    *(series.GOOD, series.BAD_BY_CAUSE, series.ARRIVED, series.TOKENS, series.PREEMPTIONS, series.ACCEPTED_DRAFTS),
    *(series.IN_FLIGHT, series.KV_MEAN, series.KV_MOST, series.BY_CACHE, series.GPU_USE, series.TIERED_BAD),
    *(name for _, name in series.QUANTILES),
)


@pytest.fixture
def world() -> World:
    """An operator that leads, a service of its own and one with a target: the same objectives."""
    world = led()
    for name in ("chat", "adopted"):
        world.service(name)
        for latency, edge in (("ttft", "0.5"), ("tpot", "0.05")):
            world.told("slo_edge", 1.0, name, latency=latency, le=edge)
        for what in ("flops", "bytes"):
            world.told("service_gpu_peak", 1e3, name, accelerator="h100", of=what)
    world.told("service_target_pod", 1.0, "adopted", accelerator="h100", engine_pod=POD)
    return world


def own() -> dict[str, str]:
    return _at("prod", "chat-a") | {"holdfast_service": "chat", "holdfast_accelerator": "h100"}


def _at(namespace: str, pod: str) -> dict[str, str]:
    return {"namespace": namespace, "pod": pod, "instance": f"{pod}:8000", "model_name": "m"}


def busy(world: World, labels: Mapping[str, str]) -> None:
    """An engine that is late with a fifth of its requests from minute 30 on."""
    late = since(30.0, 0.2)
    for gauge, value in (("num_requests_running", 6.0), ("num_requests_waiting", 2.0), ("kv_cache_usage_perc", 0.4)):
        world.add(f"vllm:{gauge}", labels, lambda _, value=value: value)
    for counter in ("prompt_tokens", "generation_tokens", "num_preemptions", "estimated_flops_per_gpu"):
        world.add(f"vllm:{counter}_total", labels, counted(lambda _: 7.0))
    for counter in (ACCEPTED, DRAFTS):
        world.add(f"vllm:{counter}", labels, counted(lambda _: 3.0))
    for what in ("read", "write"):
        world.add(f"vllm:estimated_{what}_bytes_per_gpu_total", labels, counted(lambda _: 9.0))
    world.add("vllm:request_success_total", labels | {"finished_reason": "stop"}, counted(lambda _: 10.0))
    world.add("vllm:request_success_total", labels | {"finished_reason": "error"}, counted(lambda _: 0.05))
    for family, edge in (("time_to_first_token_seconds", "0.5"), ("request_time_per_output_token_seconds", "0.05")):
        world.add(f"vllm:{family}_bucket", labels | {"le": edge}, counted(lambda at: 10.0 * (1.0 - late(at))))
        for name in (f"{family}_count", f"{family}_bucket"):
            more = {"le": "+Inf"} if name.endswith("bucket") else {}
            world.add(f"vllm:{name}", labels | more, counted(lambda _: 10.0))
    world.add("vllm:cache_config_info", labels | {"kv_cache_size_tokens": "640000"}, lambda _: 1.0)


def expect_the_same(world: World, minute: float, *names: str) -> None:
    for name in names:
        chat, adopted = (series.of(name, holdfast_service=each) for each in ("chat", "adopted"))
        world.expect(minute, f"count({chat}) - count({chat} == ignoring (holdfast_service) {adopted})", ("{}", 0.0))


def test_all_that_is_recorded_of_engines_is_recorded_of_those_of_a_target(world: World, tmp_path: Path) -> None:
    for labels in (own(), _at("prod", POD)):
        busy(world, labels)
    expect_the_same(world, 40.0, *OF_ENGINES)
    world.expect(40.0, series.of(series.BAD, holdfast_service="adopted"), (ADOPTED, 4.05))
    world.play(tmp_path)


def test_the_budget_of_a_target_calls_somebody(world: World, tmp_path: Path) -> None:
    busy(world, _at("prod", POD))
    world.calls(29.5, "HoldfastErrorBudgetFastBurn")
    world.calls(36.0, "HoldfastErrorBudgetFastBurn", "adopted")
    world.play(tmp_path)


def test_native_histograms_of_a_target_give_quantiles(world: World, tmp_path: Path) -> None:
    for labels in (own(), _at("prod", POD)):
        world.add_native(
            "vllm:time_to_first_token_seconds", labels, "{{schema:0 sum:30 count:20 buckets:[5 5 10] offset:-2}}"
        )
    expect_the_same(world, 40.0, *(name for _, name in series.QUANTILES))
    world.play(tmp_path)


def test_engines_of_others_are_not_those_of_a_target(world: World, tmp_path: Path) -> None:
    for labels in (own(), _at("prod", POD)):
        busy(world, labels)
    strangers = (
        _at("other", POD),
        _at("prod", "my-vllm-b-7d9f8c6b5d-x2x4z"),
        _at("prod", POD) | {"holdfast_accelerator": "forged"},  # would be the same series as the engine's own
    )
    for labels in strangers:
        busy(world, labels)
    expect_the_same(world, 40.0, *OF_ENGINES)
    world.play(tmp_path)


def test_two_services_that_claim_a_pod_end_no_rule(world: World, tmp_path: Path) -> None:
    world.service("rival")
    world.told("service_target_pod", 1.0, "rival", accelerator="h100", engine_pod=POD)
    for labels in (own(), _at("prod", POD)):
        busy(world, labels)
    world.expect(40.0, f"count({series.of(series.TARGET_POD)})", ("{}", 1.0))
    world.expect(40.0, f"sum({series.of(series.FINISHED, holdfast_service='~adopted|rival')})", ("{}", 10.0))
    world.expect(40.0, f"count({series.of(series.FINISHED, holdfast_service='chat')})", ("{}", 1.0))
    world.play(tmp_path)


def test_an_operator_that_is_gone_leaves_alerts_of_targets_for_a_while(tmp_path: Path) -> None:
    world = led()
    for name in ("chat", "adopted"):
        world.operator(
            name, slo_objective_ratio=lambda at: 0.99 if at < 30.0 else None, slo_window_seconds=lambda _: 3600.0
        )
    world.told(
        "service_target_pod",
        lambda at: 1.0 if at < 30.0 else None,
        "adopted",
        accelerator="h100",
        engine_pod=POD,
    )
    busy(world, _at("prod", POD))
    finished = series.of(series.FINISHED, holdfast_service="adopted")
    world.expect(40.0, f"count({finished})", ("{}", 1.0))
    world.expect(50.0, f"count({finished})")
    world.play(tmp_path)

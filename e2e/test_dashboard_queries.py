"""Every query of every dashboard over series in which everything happens that it shows, played by promtool."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.rules_world import World, counted, since
from holdfast.monitoring.dashboards import dashboards
from holdfast.monitoring.panels import Dashboard
from holdfast.monitoring.rules import recordings
from holdfast.observe.series.queries import ACCEPTED, DRAFTS

_MINUTE = 50.0
HISTOGRAMS = {
    "time_to_first_token_seconds": "0.5",
    "request_time_per_output_token_seconds": "0.05",
    "inter_token_latency_seconds": "0.05",
    "e2e_request_latency_seconds": "10.0",
}
"""Families of histograms, with an edge of each."""


@pytest.fixture
def eventful() -> World:
    """A service that burns its budget, wants more than there is and was changed; another without the fast loop."""
    world = World()
    _operator(world)
    _told(world)
    chat = world.judged("chat", 10.0, since(30.0, 0.2))
    _engine(world, chat)
    for count, more in (("good", {}), ("bad", {"cause": "ttft"})):
        world.add(f"holdfast:requests_{count}_total", chat | {"class": "premium"} | more, counted(lambda _: 1.0))
    labels = world.engine("plain")
    world.service("plain")
    for edge in ("0.5", "+Inf"):
        world.add("vllm:time_to_first_token_seconds_bucket", labels | {"le": edge}, counted(lambda _: 1.0))
    world.add("vllm:request_success_total", labels | {"finished_reason": "stop"}, counted(lambda _: 1.0))
    world.told("slo_edge", 1.0, "plain", latency="ttft", le="0.5")
    world.add("holdfast:plugin_info", labels | {"mode": "off"}, lambda _: 1.0)
    world.service("native")
    native = world.engine("native")
    for family in HISTOGRAMS:
        world.add_native(
            f"vllm:{family}", native, "{{schema:-53 sum:6 count:15 custom_values:[0.1 1] buckets:[7 7 1]}}"
        )
    return world


@pytest.mark.parametrize("dashboard", dashboards(), ids=lambda dashboard: dashboard.uid)
def test_every_query_returns_what_there_is_to_show(dashboard: Dashboard, eventful: World, tmp_path: Path) -> None:
    for _, target in dashboard.targets():
        _expect_rows(eventful, target.expr)
    for annotation in dashboard.annotations:
        _expect_rows(eventful, annotation.expr)
    eventful.play(tmp_path)


def test_every_recording_has_something_to_record(eventful: World, tmp_path: Path) -> None:
    for recording in recordings():
        labels = ", ".join(f'{name}="{value}"' for name, value in recording.labels if name != "tier")
        _expect_rows(eventful, f"{recording.record}{{{labels}}}")
    eventful.play(tmp_path)


def _expect_rows(world: World, expr: str) -> None:
    chosen = expr.replace("$namespace", "prod").replace("$service", "chat")
    world.expect(_MINUTE, f"count({chosen}) > bool 0", ("{}", 1.0))


def _operator(world: World) -> None:
    scraped = {"namespace": "holdfast-system", "pod": "holdfast-0"}
    world.add("holdfast_leader", scraped, lambda _: 1.0)
    for edge in ("0.1", "+Inf"):
        world.add("holdfast_tick_seconds_bucket", scraped | {"le": edge}, counted(lambda _: 0.2))
    changed = {"exported_namespace": "prod", "service": "chat", "action": "ScaleUp", "reason": "BudgetBurning"}
    world.add("holdfast_decisions_total", scraped | changed, counted(lambda _: 0.01))
    world.add("holdfast_errors_total", scraped | {"phase": "act"}, counted(lambda _: 0.01))
    world.add("holdfast_node_gpus", scraped | {"product": "H100", "resource": "gpu", "state": "free"}, lambda _: 1.0)


def _told(world: World) -> None:
    world.service("chat")
    world.operator(
        "chat",
        slo_attainment_ratio=0.95,
        slo_budget_remaining_ratio=-4.0,
        service_forecast_rps=12.0,
        service_cost_dollars_per_hour=6.0,
        service_cost_limit_dollars_per_hour=20.0,
        service_cold_start_seconds=900.0,
        service_holding=1.0,
        service_startup_timeout_seconds=3600.0,
    )
    since = "service_replica_waits_since_timestamp_seconds"
    world.told(since, 1800.0, "chat", accelerator="h100", state="unschedulable")
    for latency, seconds in (("ttft", 0.5), ("tpot", 0.05), ("e2e", 10.0)):
        world.told("slo_bound_seconds", seconds, "chat", latency=latency)
        world.told("slo_edge", 1.0, "chat", latency=latency, le=str(seconds))
    for state in ("desired", "ready", "unschedulable"):
        world.told("service_replicas", 2.0, "chat", accelerator="h100", state=state)
    for kind, status, reason in (
        ("Ready", "True", "Serving"),
        ("SLOMet", "False", "CapacityLimited"),
        ("CapacityAvailable", "False", "InsufficientGPUs"),
    ):
        world.told("service_condition", 1.0, "chat", type=kind, status=status, reason=reason)
    world.told("service_replicas_limit", 4.0, "chat", limit="max")
    world.told("service_gpus_per_replica", 1.0, "chat", accelerator="h100")
    world.told("service_capacity_rps", 4.0, "chat", accelerator="h100", bound_by="TPOT")
    world.told("service_last_change_timestamp_seconds", 60.0, "chat", action="ScaleUp", reason="BudgetBurning")
    world.told("service_target_pod", 1.0, "adopted", accelerator="h100", engine_pod="vllm-7d9f8c6b5d-x2x4z")
    for what, peak in (("flops", 1e15), ("bytes", 3e12)):
        world.told("service_gpu_peak", peak, "chat", accelerator="h100", of=what)
        world.told("service_roof_ratio", 0.5, "chat", accelerator="h100", phase="decode", of=what)


def _engine(world: World, labels: dict[str, str]) -> None:
    """What vLLM and the plugin export beside verdicts."""
    for family, edge in HISTOGRAMS.items():
        for le in (edge, "+Inf"):
            world.add(f"vllm:{family}_bucket", labels | {"le": le}, counted(lambda _: 10.0))
    for reason in ("stop", "error"):
        world.add("vllm:request_success_total", labels | {"finished_reason": reason}, counted(lambda _: 5.0))
    for name in ("prompt_tokens_total", "generation_tokens_total", "num_preemptions_total", ACCEPTED, DRAFTS):
        world.add(f"vllm:{name}", labels, counted(lambda _: 100.0))
    for name in ("flops", "read_bytes", "write_bytes"):
        world.add(f"vllm:estimated_{name}_per_gpu_total", labels, counted(lambda _: 1e9))
    world.add("vllm:kv_cache_usage_perc", labels, lambda _: 0.5)
    world.add("vllm:cache_config_info", labels | {"block_size": "16", "num_gpu_blocks": "1000"}, lambda _: 1.0)
    world.add("holdfast:engine_info", labels | {"dtype": "bfloat16"}, lambda _: 1.0)
    world.add("holdfast:limits", labels | {"name": "tokens_per_step"}, lambda _: 2048.0)

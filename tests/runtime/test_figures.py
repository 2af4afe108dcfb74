"""Figures of services as Prometheus reads them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prometheus_client import generate_latest

from holdfast.api.llmservice import NO_RESOURCE
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Adoption, NodeOffer, Replica, ReplicaPhase, Workload
from holdfast.domain.decision import Action, CapacityView, Decision, Explanation, SloView
from holdfast.domain.engine import StepSums
from holdfast.domain.service import BatchingLimits, ServiceKey
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.observe.objects.cluster import Invalid, PrefillPool, ServiceParts
from holdfast.runtime.telemetry import Telemetry
from tests.control.parts import decision, llmservice, parts

CHAT = {"namespace": "prod", "service": "chat"}


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Operator:
    """What /metrics says after a tick."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.told = Telemetry(wall=self.clock)

    def tick(
        self,
        *seen: tuple[ServiceParts, Decision],
        invalid: Sequence[Invalid] = (),
        nodes: Sequence[NodeOffer] = (),
    ) -> None:
        self.told.pictured([part for part, _ in seen], [made for _, made in seen], invalid, nodes)
        for _, made in seen:
            self.told.decided(made)

    def value(self, name: str, /, **labels: str) -> float | None:
        return self.told.registry.get_sample_value(f"holdfast_{name}", CHAT | labels)

    def rows(self, name: str) -> list[dict[str, str]]:
        found = [metric for metric in self.told.registry.collect() if metric.name == f"holdfast_{name}"]
        return [sample.labels for metric in found for sample in metric.samples]


def chat(*phases: ReplicaPhase, action: Action = Action.HOLD, **spec: Any) -> tuple[ServiceParts, Decision]:
    part = parts(llmservice("chat", **spec))
    replicas = tuple(Replica(f"chat-{number}", "h100", phase, created_at=0.0) for number, phase in enumerate(phases))
    part = replace(part, replicas=replicas)
    return part, decision(part, action, h100=len(phases) or 1)


def test_what_the_spec_declares_is_told() -> None:
    operator = Operator()
    operator.tick(
        chat(
            slo={"ttft": "750ms", "tpot": "50ms", "objective": "99.5%", "window": "2h"},
            scaling={"min": 2, "max": 7},
            budget={"maxCostPerHour": 12.5},
            replicas=3,
        )
    )
    assert operator.value("slo_objective_ratio") == 0.995
    assert operator.value("slo_window_seconds") == 7200.0
    assert [operator.value("slo_bound_seconds", latency=name) for name in ("ttft", "tpot", "e2e")] == [0.75, 0.05, None]
    assert [operator.value("service_replicas_limit", limit=name) for name in ("min", "max", "pinned")] == [2, 7, 3]
    assert operator.value("service_cost_limit_dollars_per_hour") == 12.5


def test_replicas_are_counted_by_accelerator_and_state() -> None:
    operator = Operator()
    ready, starting = ReplicaPhase.READY, ReplicaPhase.STARTING
    operator.tick(chat(ready, ready, starting, ReplicaPhase.UNSCHEDULABLE))
    rows = operator.rows("service_replicas")
    states = {row["state"]: operator.value("service_replicas", **_only(row)) for row in rows}
    assert states == {"desired": 4.0, "ready": 2.0, "starting": 1.0, "unschedulable": 1.0}
    assert operator.value("service_cost_dollars_per_hour") == 9.0
    assert operator.value("service_gpus_per_replica", accelerator="h100") == 1.0


def _only(row: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in row.items() if name not in CHAT}


def test_the_replica_that_waits_for_longest_is_told_by_accelerator_and_state() -> None:
    operator = Operator()
    part, made = chat(ReplicaPhase.READY)
    starting, failing = ReplicaPhase.STARTING, ReplicaPhase.FAILING
    replicas = (
        Replica("a", "h100", starting, created_at=300.0),
        Replica("b", "h100", starting, created_at=200.0),
        Replica("c", "l40s", starting, created_at=100.0),
        Replica("d", "h100", failing, created_at=1.0, unready_at=400.0),  # it was Ready until then
    )
    operator.tick((replace(part, replicas=(*part.replicas, *replicas)), made))
    name = "service_replica_waits_since_timestamp_seconds"
    told = {tuple(_only(row).values()): operator.value(name, **_only(row)) for row in operator.rows(name)}
    assert told == {("h100", "starting"): 200.0, ("l40s", "starting"): 100.0, ("h100", "failing"): 400.0}


def test_who_holds_requests_is_told_of_services_that_may_rest() -> None:
    operator = Operator()
    operator.tick(chat())
    assert operator.value("service_holding") is None
    part, made = chat(scaling={"min": 0, "max": 2})
    operator.tick((part, made))
    assert (operator.value("service_holding"), operator.value("service_cold_start_seconds")) == (0.0, None)
    operator.tick((part, replace(made, holding=True, cold_start_seconds=480.0)))
    assert (operator.value("service_holding"), operator.value("service_cold_start_seconds")) == (1.0, 480.0)


def test_edges_are_spelt_as_vllm_spells_them() -> None:
    operator = Operator()
    operator.tick(chat(slo={"ttft": "1s", "tpot": "30ms"}))
    edges = {(row["latency"], row["le"]) for row in operator.rows("slo_edge")}
    assert edges == {("ttft", "1.0"), ("ttft", "0.75"), ("tpot", "0.03"), ("tpot", "0.025")}


def test_what_is_measured_and_decided_is_told_where_it_is_known() -> None:
    operator = Operator()
    part, made = chat(ReplicaPhase.READY)
    operator.tick((part, made))
    assert operator.value("slo_attainment_ratio") is None
    assert operator.value("service_forecast_rps") is None
    known = replace(
        made,
        slo=SloView(attainment=0.997, budget_remaining=-0.25),
        capacity=CapacityView("h100", 8.9, "TPOT", 0.9),
        explanation=Explanation(41.2, quantile=0.97, lead_time_seconds=75.0, backlog_requests=3.0, wanted_replicas=5),
    )
    operator.tick((part, known))
    assert operator.value("slo_attainment_ratio") == 0.997
    assert operator.value("slo_budget_remaining_ratio") == -0.25
    assert operator.value("service_capacity_rps", accelerator="h100", bound_by="TPOT") == 8.9
    assert operator.value("service_forecast_rps") == 41.2
    inputs = ("forecast_quantile_ratio", "lead_time_seconds", "backlog_requests", "wanted_replicas")
    assert [operator.value(f"service_{name}") for name in inputs] == [0.97, 75.0, 3.0, 5.0]


def test_batching_limits_are_told_as_engines_were_started_with_them() -> None:
    operator = Operator()
    operator.tick((plain := parts(sizes={"h100": 1}), decision(plain, Action.HOLD, h100=1)))
    assert operator.rows("service_batching_limit") == []
    part = parts(llmservice("chat", batching={"maxNumSeqs": 64}), sizes={"h100": 1, "l40s": 1})
    h100, l40s = part.deployed
    tried = replace(h100, placement=replace(h100.placement, batching=BatchingLimits(96, 4096)))
    operator.tick((replace(part, deployed=(tried, l40s)), decision(part, Action.HOLD, h100=1)))
    told = {tuple(_only(row).values()): operator.value("service_batching_limit", **_only(row))
            for row in operator.rows("service_batching_limit")}  # fmt: skip
    assert told == {
        ("h100", "active_sequences"): 96.0,
        ("h100", "tokens_per_step"): 4096.0,
        ("l40s", "active_sequences"): 64.0,
    }


def test_numbers_that_are_none_are_no_samples() -> None:
    operator = Operator()
    part, made = chat()
    odd = replace(made, slo=SloView(attainment=float("nan")), explanation=Explanation(forecast_rps=float("inf")))
    operator.tick((part, odd))
    assert (operator.value("slo_attainment_ratio"), operator.value("service_forecast_rps")) == (None, None)


def test_conditions_are_told_as_they_are_now_and_no_more_as_they_were() -> None:
    operator = Operator()
    part, made = chat()
    (ready,) = made.conditions
    operator.tick((part, made))
    operator.tick((part, replace(made, conditions=(replace(ready, status=None, reason=Reason.ENGINE_HUNG),))))
    assert operator.rows("service_condition") == [CHAT | {"type": "Ready", "status": "Unknown", "reason": "EngineHung"}]


def test_a_service_without_a_prefill_engine_is_as_ready_as_its_status_says() -> None:
    operator = Operator()
    part, made = chat(ReplicaPhase.READY, router={}, replicas=1, prefill={"replicas": 2})
    operator.tick((replace(part, prefill=PrefillPool()), made))
    assert operator.rows("service_condition") == [
        CHAT | {"type": "Ready", "status": "False", "reason": "PrefillNotReady"}
    ]


def test_a_service_that_cannot_be_acted_on_is_stalled_and_has_no_figures() -> None:
    operator = Operator()
    operator.tick(invalid=[Invalid(ServiceKey("prod", "chat"), 1, "spec.slo.ttft: is odd")])
    assert operator.value("service_condition", type="Stalled", status="True", reason="Invalid") == 1.0
    assert operator.value("slo_objective_ratio") is None


def test_a_service_that_waits_for_its_turn_in_a_tick_keeps_its_figures() -> None:
    operator = Operator()
    part, made = chat()
    operator.told.pictured([part], [made], (), ())
    assert operator.value("slo_objective_ratio") == 0.99


def test_the_last_change_has_the_time_at_which_it_was_first_decided() -> None:
    operator = Operator()
    change = chat(action=Action.SCALE_UP)
    name, labels = "service_last_change_timestamp_seconds", {"action": "ScaleUp", "reason": "ForecastAboveCapacity"}
    for now in (1_000.0, 1_005.0):  # the watch shows our own write a tick late
        operator.clock.now = now
        operator.tick(change)
    operator.clock.now = 1_010.0
    operator.tick(chat())
    assert operator.value(name, **labels) == 1_000.0
    operator.clock.now = 1_200.0
    operator.tick(change)
    assert operator.value(name, **labels) == 1_200.0
    operator.tick(chat(action=Action.SCALE_DOWN))
    assert [row["action"] for row in operator.rows(name)] == ["ScaleDown"]
    operator.tick()
    assert operator.rows(name) == []


def test_gpus_of_nodes_are_counted_by_product() -> None:
    operator = Operator()
    product, gpu = ("nvidia.com/gpu.product", "H100"), "nvidia.com/gpu"
    nodes = [
        NodeOffer("a", (product,), ((gpu, 8),), ((gpu, 3),)),
        NodeOffer("b", (product,), ((gpu, 4),), ((gpu, 5),)),  # a pod that is gone from the node's count
        NodeOffer("c", (), ((NO_RESOURCE, 10_000), (gpu, 1))),
    ]
    operator.tick(nodes=nodes)
    found = {
        (row["product"], row["state"]): operator.told.registry.get_sample_value("holdfast_node_gpus", row)
        for row in operator.rows("node_gpus")
    }
    assert found == {("H100", "used"): 7.0, ("H100", "free"): 5.0, ("", "used"): 0.0, ("", "free"): 1.0}


def test_the_peaks_of_known_gpus_are_told() -> None:
    operator = Operator()
    operator.tick(chat(accelerators=[{"name": "h100"}, {"name": "abacus"}]))
    assert operator.value("service_gpu_peak", accelerator="h100", of="bytes") == 3.35e12
    assert {row["accelerator"] for row in operator.rows("service_gpu_peak")} == {"h100"}


def test_the_peaks_of_declared_hardware_are_told_instead() -> None:
    operator = Operator()
    hardware = {"memoryGiB": 64, "bandwidthGBs": 1600, "teraflops": 181}
    shared = {"name": "l40s", "resource": "nvidia.com/gpu.shared"}
    operator.tick(chat(accelerators=[{"name": "abacus", "hardware": hardware}, shared]))
    assert operator.value("service_gpu_peak", accelerator="abacus", of="bytes") == 1.6e12
    assert operator.value("service_gpu_peak", accelerator="abacus", of="flops") == 1.81e14
    assert {row["accelerator"] for row in operator.rows("service_gpu_peak")} == {"abacus"}


def test_each_phase_is_told_with_its_distance_to_both_roofs() -> None:
    operator = Operator()
    part, made = chat(model={"uri": "Qwen/Qwen3-8B"}, accelerators=[{"name": "h100"}, {"name": "l40s"}])
    # A thousand steps of 20 ms with 32 decodes at 1,200 tokens and 400 prompt tokens each.
    sums = StepSums(1e3, 4e5, 3.2e4, 3.2e4 * 1200.0, 4e5 * 500.0, 20.0)
    seen = AcceleratorTraffic(prompt_tokens=1e5, length_samples=100.0, prompt_length_sum=1e5)
    traffic = Traffic(SignalState.FRESH, by_accelerator=(("h100", seen),), steps=(("h100", sums),))
    told = operator.told
    told.pictured([part], [made], (), (), {part.spec.key: traffic})
    found = {
        (row["phase"], row["of"]): operator.value("service_roof_ratio", **row | {"accelerator": "h100"})
        for row in operator.rows("service_roof_ratio")
    }
    assert found.keys() == {(phase, of) for phase in ("prefill", "decode") for of in ("flops", "bytes")}
    assert all(0.0 < (share or 0.0) <= 1.0 for share in found.values())
    assert found["prefill", "flops"] > found["prefill", "bytes"]  # type: ignore[operator]
    assert found["decode", "bytes"] > found["decode", "flops"]  # type: ignore[operator]
    told.pictured([part], [made], (), (), {part.spec.key: replace(traffic, state=SignalState.ABSENT)})
    assert not operator.rows("service_roof_ratio")


def test_only_the_pods_of_targets_are_named() -> None:
    own, theirs = chat(ReplicaPhase.READY), chat(ReplicaPhase.READY, ReplicaPhase.STARTING)
    operator, name = Operator(), "service_target_pod"
    operator.tick(own)
    assert operator.rows(name) == []
    operator.tick((replace(theirs[0], adoption=Adoption(Workload("my-vllm"), "app=vllm")), theirs[1]))
    assert [row["engine_pod"] for row in operator.rows(name)] == ["chat-0", "chat-1"]
    assert operator.value(name, accelerator="h100", engine_pod="chat-1") == 1.0


def test_a_thousand_services_are_told_without_work_in_the_tick() -> None:
    operator = Operator()
    seen = []
    for number in range(1_000):
        part = parts(llmservice(f"s{number}"))
        seen.append((part, decision(part, Action.HOLD, h100=1)))
    operator.tick(*seen)
    started = time.process_time()
    page = generate_latest(operator.told.registry)
    print(f"{len(page) / 1e6:.1f} MB in {time.process_time() - started:.2f} s of CPU")
    assert page.count(b'service="s999"') > 10

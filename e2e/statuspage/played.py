"""The ticks of a played load, as the loop of a real operator would hand them to the page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from holdfast.api.conditions import ConditionType, conditions_of, merge_conditions
from holdfast.api.llmservice import LLMService
from holdfast.api.reasons import Reason
from holdfast.cli.simulate import declare
from holdfast.control.status.report import condition_of, iso
from holdfast.domain.cluster import Placement, Replica, ReplicaPhase, Workload
from holdfast.domain.decision import Action, ConditionValue, Decision
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import LatencyQuantiles, SignalState, Traffic
from holdfast.domain.snapshot import ServiceSnapshot, Snapshot, Timing
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.page.board import Board
from holdfast.page.history import SPAN_SECONDS
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from holdfast.twin.arrays.timers import Floats
from holdfast.twin.policies import Holdfast
from holdfast.twin.policy_port import Move
from holdfast.twin.runs.run import simulate
from holdfast.twin.scenarios.scenario import Scenario

LOAD = Path(__file__).with_name("load.yaml")
BACK_OFF = "ImagePullBackOff"
TICKS_A_SPAN = round(SPAN_SECONDS / Holdfast.tick_seconds)
_RECENT_SECONDS = 60.0
_SPANS_WITH_STATUS = 60
"""Half an hour: since when a condition has its status is shown up to there."""

Tick = tuple[float, ServiceParts, Decision]


class _Watched(Holdfast):
    """The operator's policy on stock engines, which the twin plays quickly; what it saw and decided is kept."""

    def __init__(self, services: Mapping[str, LLMService]) -> None:
        super().__init__(fast_loop=False)
        self._services = services
        self.ticks: list[Tick] = []

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        decisions, self._memory = decide(snapshot, self._memory)
        seen = {service.spec.key: service for service in snapshot.services}
        for decision in decisions:
            found = seen[decision.key]
            part = ServiceParts(self._services[decision.key.name], found.spec, found.replicas)
            self.ticks.append((snapshot.now, part, decision))
        changed = (decision for decision in decisions if decision.verdict.action is not Action.HOLD)
        return {d.key: Move(d.verdict.targets, str(d.verdict.reason), d.verdict.message) for d in changed}


def play(path: Path = LOAD) -> list[Tick]:
    """Return the ticks of a scenario of one service, oldest first."""
    scenario = Scenario.read(path)
    declared = [declare(scenario, entry, path, path.parent, seed=1) for entry in scenario.services]
    watched = _Watched({each.spec.key.name: each.service for each in declared})
    requests = simulate(scenario, declared, watched, seed=1).services[0].fleet.requests
    first, last = requests["first_at"], requests["last_at"]
    tpot = (last - first) / np.maximum(requests["output"] - 1, 1)
    began, found = scenario.begins.timestamp(), []
    for at, part, decision in watched.ticks:
        now = at - began
        slo = replace(
            decision.slo,
            ttft=_quantiles(first, first - requests["at"], now),
            tpot=_quantiles(last, tpot, now),
            e2e=_quantiles(last, last - requests["at"], now),
        )
        found.append((at, part, replace(decision, slo=slo)))
    return found


def _quantiles(when: Floats, seconds: Floats, now: float) -> LatencyQuantiles:
    """Percentiles of the minute before, as Prometheus tells an operator; the twin's policy is told none."""
    recent = seconds[(when > now - _RECENT_SECONDS) & (when <= now)]
    return LatencyQuantiles(*map(float, np.percentile(recent, (50, 95, 99)))) if recent.size else LatencyQuantiles()


def without_image(tick: Tick) -> Tick:
    """The same service after somebody named an image that no registry has: what the policy makes of it."""
    at, part, _ = tick
    words = 'Back-off pulling image "registry.example.com/vllm-openai:v9": not found'
    pod = Replica("chat-l40s-5f7c-x2m9k", "l40s", ReplicaPhase.FAILING, at - 900.0, at - 900.0, None, BACK_OFF, words)
    part = replace(part, replicas=(pod,), spec=replace(part.spec, pinned_replicas=1))
    traffic = Traffic(SignalState.ABSENT, "no engine of it is scraped; check Prometheus' targets")
    placements = (Placement("l40s", 1, workload=Workload("chat-l40s")),)
    seen = ServiceSnapshot(part.spec, traffic, part.replicas, placements, born_at=at - 900.0)
    decisions, _ = decide(Snapshot(at, (seen,), (), Timing()), Memory())
    return at, part, decisions[0]


def without_prometheus(tick: Tick, why: str) -> Tick:
    """The same service while Prometheus does not answer."""
    at, part, decision = tick
    cut_off = ConditionValue(ConditionType.METRICS_AVAILABLE, False, Reason.PROMETHEUS_UNREACHABLE, why)
    others = (each for each in decision.conditions if each.type != cut_off.type)
    return at, part, replace(decision, conditions=(*others, cut_off))


def board_of(ticks: Sequence[Tick], now: float, services: int = 1, broken: Collection[int] = ()) -> Board:
    """Return the board of an operator whose last tick is at `now`; each service is elsewhere in the same load.

    Those with the numbers in `broken` have no image.
    """
    board, shift, count = Board(), now - ticks[-1][0], len(ticks)
    lost = without_image(ticks[-1])
    places = [number * count // services for number in range(services)]
    known: dict[ServiceKey, dict[str, object]] = {}
    moving = [index for index, (_, _, decision) in enumerate(ticks) if decision.verdict.action is not Action.HOLD]
    for index in range(TICKS_A_SPAN - 1, count, TICKS_A_SPAN):  # the last tick of a span speaks for it
        shown = dict(
            _renamed(lost if number in broken else ticks[(index - place) % count], number)
            for number, place in enumerate(places)
        )
        at = ticks[index][0] + shift
        if index > count - TICKS_A_SPAN * _SPANS_WITH_STATUS:
            shown = {key: (_published(part, decision, at, known), decision) for key, (part, decision) in shown.items()}
        board.pictured(shown, (), at)
    for number, place in enumerate(places):
        if number in broken:
            continue
        for index in sorted((index + place) % count for index in moving):
            _, (_, decision) = _renamed(ticks[index - place], number)
            board.decided(decision, ticks[index][0] + shift)
    return board


def _published(
    part: ServiceParts, decision: Decision, at: float, known: dict[ServiceKey, dict[str, object]]
) -> ServiceParts:
    """The service with the status that the ticks before have written."""
    key = part.spec.key
    part = replace(part, service=part.service.model_copy(update={"status": known.get(key, {})}))
    decided = [condition_of(value, decision.generation) for value in decision.conditions]
    merged = merge_conditions(conditions_of(part.service.status), decided, iso(at))
    known[key] = {"conditions": [each.to_dict() for each in merged]}
    return part


def _renamed(tick: Tick, number: int) -> tuple[ServiceKey, tuple[ServiceParts, Decision]]:
    _, part, decision = tick
    key = ServiceKey(
        f"team-{number % 7}" if number else "prod", f"{part.spec.key.name}-{number:03}" if number else "chat"
    )
    return key, (replace(part, spec=replace(part.spec, key=key)), replace(decision, key=key))

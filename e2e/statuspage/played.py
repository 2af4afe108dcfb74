"""The ticks of a played load, as the loop of a real operator would hand them to the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from holdfast import policy
from holdfast.api.llmservice import LLMService
from holdfast.cli.simulate import declare
from holdfast.domain.decision import Action, Decision
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import LatencyQuantiles
from holdfast.domain.snapshot import Snapshot
from holdfast.observe.cluster import ServiceParts
from holdfast.page.board import Board
from holdfast.page.history import SPAN_SECONDS
from holdfast.twin.policies import Holdfast
from holdfast.twin.policy_port import Move
from holdfast.twin.run import simulate
from holdfast.twin.scenario import Scenario
from holdfast.twin.timers import Floats

LOAD = Path(__file__).with_name("load.yaml")
TICKS_A_SPAN = round(SPAN_SECONDS / Holdfast.tick_seconds)
_RECENT_SECONDS = 60.0

Tick = tuple[float, ServiceParts, Decision]


class _Watched(Holdfast):
    """The operator's policy on stock engines, which the twin plays quickly; what it saw and decided is kept."""

    def __init__(self, services: Mapping[str, LLMService]) -> None:
        super().__init__(fast_loop=False)
        self._services = services
        self.ticks: list[Tick] = []

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        decisions, self._memory = policy.decide(snapshot, self._memory)
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


def board_of(ticks: Sequence[Tick], now: float, services: int = 1) -> Board:
    """Return the board of an operator whose last tick is at `now`; each service is elsewhere in the same load."""
    board, shift, count = Board(), now - ticks[-1][0], len(ticks)
    places = [number * count // services for number in range(services)]
    moving = [index for index, (_, _, decision) in enumerate(ticks) if decision.verdict.action is not Action.HOLD]
    for index in range(TICKS_A_SPAN - 1, count, TICKS_A_SPAN):  # the last tick of a span speaks for it
        shown = dict(_renamed(ticks[(index - place) % count], number) for number, place in enumerate(places))
        board.pictured(shown, (), ticks[index][0] + shift)
    for number, place in enumerate(places):
        for index in sorted((index + place) % count for index in moving):
            _, (_, decision) = _renamed(ticks[index - place], number)
            board.decided(decision, ticks[index][0] + shift)
    return board


def _renamed(tick: Tick, number: int) -> tuple[ServiceKey, tuple[ServiceParts, Decision]]:
    _, part, decision = tick
    key = ServiceKey(
        f"team-{number % 7}" if number else "prod", f"{part.spec.key.name}-{number:03}" if number else "chat"
    )
    return key, (replace(part, spec=replace(part.spec, key=key)), replace(decision, key=key))

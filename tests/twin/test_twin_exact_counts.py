"""Decisions on what the plugin counts, with its own code in the engines, through an overload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import Snapshot
from holdfast.twin.policies import Holdfast
from holdfast.twin.policy_port import Move
from tests.twin.twin_builders import play, small_scenario

BASE_RPS, OVERLOAD_RPS, BEGINS = 3.0, 9.0, 120.0


@dataclass(frozen=True)
class Look:
    """One decision, `at` seconds into the run."""

    at: float
    source: str
    carried_rps: float
    backlog: float
    late: float


class Watched(Holdfast):
    """The operator's policy, and what it decided."""

    def __init__(self, fast_loop: bool) -> None:
        super().__init__(fast_loop)
        self.looks: list[Look] = []
        self._began: float | None = None

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        self._began = snapshot.now if self._began is None else self._began
        moves, (service,) = super().decide(snapshot), snapshot.services
        last = self._memory.services[service.spec.key].last
        assert last is not None
        assert last.decision.capacity is not None
        size = last.decision.verdict.replicas
        self.looks.append(
            Look(
                snapshot.now - self._began,
                last.decision.slo.source,
                size * last.decision.capacity.per_replica_rps,
                last.decision.explanation.backlog_requests or 0.0,
                sum(traffic.waiting_late for _, traffic in service.traffic.by_accelerator),
            )
        )
        return moves

    def enough_at(self) -> float:
        """When so many replicas had been ordered that they carry the overload."""
        return next(look.at for look in self.looks if look.at >= BEGINS and look.carried_rps >= OVERLOAD_RPS)


def overloaded(fast_loop: bool, folder: Path) -> Watched:
    """Three times the load for three minutes, on replicas that take one minute to start."""
    content: dict[str, Any] = small_scenario() | {"duration": "5m"}
    content["cluster"] = {"accelerators": {"l40s": {"system": "l40s", "gpus": 8, "coldStart": "60s"}}}
    (chat,) = content["services"]
    chat["spec"] |= {"accelerators": [{"name": "l40s"}], "scaling": {"min": 2, "max": 8}}
    steps = [{"at": "0s", "rps": BASE_RPS}, {"at": f"{BEGINS:g}s", "rps": OVERLOAD_RPS}]
    chat["workload"] = {
        "arrivals": {"poisson": steps},
        "lengths": {"fixed": {"promptTokens": 1500, "outputTokens": 250}},
    }
    chat["initialReplicas"] = {"l40s": 2}
    policy = Watched(fast_loop)
    play(content, folder, policy)
    return policy


@pytest.mark.slow
def test_an_overload_that_the_plugin_softens_is_answered_as_fast_as_without_it(tmp_path: Path) -> None:
    softened, stock = overloaded(True, tmp_path), overloaded(False, tmp_path)
    assert {look.source for look in softened.looks if look.at >= 60.0} == {"exact"}
    assert {look.source for look in stock.looks} == {"bounds"}
    assert softened.enough_at() <= stock.enough_at() <= BEGINS + 45.0
    assert max(look.late for look in softened.looks) > 20.0
    assert max(look.backlog for look in softened.looks) < 5.0, "late requests are not sized for a second time"


def slowness(host_factor: float, folder: Path) -> float:
    """What ten minutes of plugins on engines with such a host teach of how long steps take."""
    content: dict[str, Any] = small_scenario() | {"duration": "10m"}
    entry = {"system": "h100_sxm", "gpus": 8, "coldStart": "60s", "hostFactor": host_factor}
    content["cluster"] = {"accelerators": {"h100": entry}}
    policy = Holdfast()
    play(content, folder, policy)
    (service,) = policy._memory.services.values()
    return service.supply.capacity.beliefs[0].correction.slowness


def test_how_long_steps_take_is_learned_from_what_the_plugin_sums_up(tmp_path: Path) -> None:
    assert slowness(1.0, tmp_path) == pytest.approx(1.0, abs=0.1)
    assert slowness(6.0, tmp_path) > 1.2

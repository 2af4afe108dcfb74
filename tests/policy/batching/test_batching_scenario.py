"""The whole decision with a Deployment that obeys: a better limit ends in fewer replicas, a worse one in none less."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Placement, Replica, ReplicaPhase, Workload
from holdfast.domain.decision import Decision
from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceSpec
from holdfast.domain.signals import RevisionTraffic
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.replica_model import ReplicaRate
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from tests.builders import H100, NOW, ServiceBuilder, ServiceView, a_snapshot, node, service, sizes, traffic
from tests.policy.fluid import FixedRates

DEFAULT, BEST = BatchingLimits(), BatchingLimits(None, 1024)
LOAD_RPS, TICK_SECONDS, START_SECONDS = 15.0, 15.0, 90.0
BUSY = service().with_accelerators(H100).with_replicas_between(1, 20)


@dataclass(frozen=True)
class Tunable(FixedRates):
    """An engine that carries 2.6 requests/s as it comes, and twice that at its best."""

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate:
        return ReplicaRate(5.2 if spec.batching == BEST else 2.6, "TPOT", True, 0.8)

    def best_limits(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float
    ) -> BatchingLimits:
        return spec.batching if spec.batching_fixed else BEST


@dataclass
class Deployment:
    """A rollout takes one replica after another, and on trial stops after the first."""

    of: ServiceBuilder
    canary_misses: float = 0.0
    now: float = NOW
    limits: BatchingLimits = DEFAULT
    before: BatchingLimits | None = None
    pods: list[tuple[str, BatchingLimits, float]] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    told: list[Reason] = field(default_factory=list)
    seen_limits: set[int] = field(default_factory=set)
    born: int = 0

    def __post_init__(self) -> None:
        self.resize(8, ready_at=NOW - 3600.0)

    def resize(self, size: int, ready_at: float) -> None:
        while len(self.pods) < size:
            self.born += 1
            self.pods.append((f"pod-{self.born}", self.limits, ready_at))
        del self.pods[size:]

    def tick(self) -> Decision:
        self.now += TICK_SECONDS
        self._roll_out()
        (made,), self.memory = decide(self._snapshot(), self.memory, model=Tunable({"h100": 2.6}))
        target = made.batching
        if target is not None:
            if target.reason is not None and (not self.told or self.told[-1] is not target.reason):
                self.told.append(target.reason)
            self.limits, self.before = target.limits, target.before
        self.resize(sizes(made)["h100"], self.now + START_SECONDS)
        self.seen_limits.add(sum(limits == BEST for _, limits, _ in self.pods))
        return made

    def run(self, seconds: float) -> Decision:
        for _ in range(round(seconds / TICK_SECONDS)):
            made = self.tick()
        return made

    def _roll_out(self) -> None:
        starting = any(ready_at > self.now for _, _, ready_at in self.pods)
        old = next((index for index, pod in enumerate(self.pods) if pod[1] != self.limits), None)
        tried = any(limits == self.limits for _, limits, _ in self.pods)
        if old is not None and not starting and not (self.before is not None and tried):
            del self.pods[old]
            self.resize(len(self.pods) + 1, self.now + START_SECONDS)

    def _snapshot(self):  # type: ignore[no-untyped-def]
        pods = tuple(self._replica(*pod) for pod in self.pods)
        different = len({limits for _, limits, _ in self.pods}) > 1
        revision = str(self.limits.max_num_batched_tokens)
        placement = Placement(
            "h100", len(pods), True, different, Workload("chat-h100"), revision, self.limits, self.before
        )
        seen = traffic(LOAD_RPS, seconds=15.0)
        if self.before is not None:
            seen = replace(
                seen, revisions=(self._revision(revision, 1, self.canary_misses), self._revision("", 7, 0.01))
            )
        full = node("n1", len(pods), used=len(pods))
        view = ServiceView(self.of, seen, pods, (placement,))
        return a_snapshot(view, now=self.now, nodes=(full,), tick=TICK_SECONDS, scrape=15.0)

    def _replica(self, name: str, limits: BatchingLimits, ready_at: float) -> Replica:
        phase = ReplicaPhase.READY if ready_at <= self.now else ReplicaPhase.STARTING
        born = ready_at - START_SECONDS
        ready = ready_at if phase is ReplicaPhase.READY else None
        return Replica(name, "h100", phase, born, born, ready, revision=str(limits.max_num_batched_tokens))

    def _revision(self, revision: str, replicas: int, misses: float) -> RevisionTraffic:
        count = 15.0 * LOAD_RPS * replicas / 8
        return RevisionTraffic("h100", revision, 0.0, count, count * (1.0 - misses), count, count)


def test_better_limits_are_tried_kept_and_save_replicas() -> None:
    chat = Deployment(BUSY, canary_misses=0.01)
    before = sizes(chat.run(900.0))["h100"]
    after = sizes(chat.run(3.0 * 3600.0))["h100"]
    assert chat.told == [Reason.BATCHING_TRIAL, Reason.BATCHING_KEPT]
    assert {limits for _, limits, _ in chat.pods} == {BEST}
    assert after < 0.7 * before


def test_limits_that_miss_more_reach_one_replica_and_no_other() -> None:
    chat = Deployment(BUSY, canary_misses=0.2)
    before, after = (sizes(chat.run(seconds))["h100"] for seconds in (900.0, 3.0 * 3600.0))
    assert chat.told == [Reason.BATCHING_TRIAL, Reason.BATCHING_RETURNED]
    assert max(chat.seen_limits) == 1
    assert {limits for _, limits, _ in chat.pods} == {DEFAULT}
    assert after == before


FIXED = replace(BUSY.spec, batching=BatchingLimits(256, 4096), batching_fixed=True)


@pytest.mark.parametrize("of", [BUSY.recommending(), BUSY], ids=["Recommend", "Fixed"])
def test_what_people_hold_themselves_is_left_alone(of: ServiceBuilder) -> None:
    chat = Deployment(of)
    if of is BUSY:
        chat.of = _Declared(FIXED)  # type: ignore[assignment]
    made = chat.run(2.0 * 3600.0)
    assert (chat.told, chat.seen_limits) == ([], {0})
    told = "" if made.recommendation is None else made.recommendation.message
    said = "with 1024 tokens per step, one h100 replica would carry 5.2 req/s instead of 2.6"
    assert told.endswith(said) == (of is not BUSY)


@dataclass(frozen=True)
class _Declared:
    spec: ServiceSpec

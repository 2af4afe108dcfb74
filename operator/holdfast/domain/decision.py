"""Decisions as data, with the reason that reaches condition, Event, log line and metric unchanged."""

from __future__ import annotations

import enum

from holdfast.api.reasons import Reason
from holdfast.domain.benchmark import Measured
from holdfast.domain.cluster import QueueLimit
from holdfast.domain.engine import EngineFacts
from holdfast.domain.service import BatchingLimits, ServiceKey
from holdfast.domain.signals import UNKNOWN_CONCURRENCY, UNKNOWN_QUANTILES, Concurrency, LatencyQuantiles
from holdfast.domain.value import value


@value
class ConditionValue:
    """One condition as decided now; `status` None means Unknown, `type` is defined in holdfast.api.conditions."""

    type: str
    status: bool | None
    reason: str
    message: str


class Action(enum.StrEnum):
    """What changes; HOLD writes nothing."""

    CREATE = "Create"
    SCALE_UP = "ScaleUp"
    SCALE_DOWN = "ScaleDown"
    SWITCH = "Switch"
    HOLD = "Hold"


@value
class PlacementTarget:
    """Desired replicas of one accelerator.

    `remove_first` names the replicas to remove first, the best first; Kubernetes learns it through pod-deletion-cost.
    Replicas with fewer requests precede, except for `lost` ones, whose requests are lost or late, or that go anyway.
    `observed_replicas` is the size the decision was based on: act writes only if it is unchanged.
    """

    accelerator: str
    replicas: int
    observed_replicas: int | None = None
    remove_first: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@value
class Verdict:
    """Action, reason and a message for people."""

    action: Action
    reason: Reason
    message: str
    targets: tuple[PlacementTarget, ...] = ()

    @property
    def replicas(self) -> int:
        return sum(target.replicas for target in self.targets)


@value
class BadByCause:
    """Requests per second outside the objectives, over the last counting interval; `e2e_rps` None without an objective.

    `exact`: the plugin counts each request once, at the objective it missed first. Otherwise vLLM's histograms are the
    source: a request that missed two objectives counts twice, and an aborted one does not count.
    """

    ttft_rps: float
    tpot_rps: float
    e2e_rps: float | None
    rejected_rps: float
    error_rps: float
    exact: bool = False


@value
class ClassView:
    """One class over the window as shown in status; None where too few requests were judged."""

    name: str
    objective: float
    attainment: float | None = None
    budget_remaining: float | None = None
    judged: float = 0.0


@value
class BatchView:
    """Batch work of one class: requests that wait or run, and the rate at which they are done; None if unknown."""

    name: str
    unfinished: float | None
    done_rps: float
    finish_seconds: float | None


@value
class SloView:
    """The objective as shown in status; None for unknown values.

    Attainment and budget are those of `hardest`, the class that burned most of its budget; empty is the service's own.
    `pending`: the history of the window is still being read, so that what status says of it holds.
    """

    attainment: float | None = None
    budget_remaining: float | None = None
    good_rps: float | None = None
    arrival_rps: float | None = None
    tokens_per_second: float | None = None  # prompt and output together
    ttft: LatencyQuantiles = UNKNOWN_QUANTILES
    tpot: LatencyQuantiles = UNKNOWN_QUANTILES
    e2e: LatencyQuantiles = UNKNOWN_QUANTILES
    concurrency: Concurrency = UNKNOWN_CONCURRENCY
    bad: BadByCause | None = None
    source: str = "bounds"  # or exact, or engine: exact but for the time that the API server takes
    pending: bool = False
    classes: tuple[ClassView, ...] = ()
    hardest: str = ""
    batch: tuple[BatchView, ...] = ()


@value
class CapacityView:
    """Capacity of one replica of the accelerator in use, its limiting factor, and the benchmark it started from.

    Observation corrects the model: capacity by the factor `learned_gain`, step time by `learned_slowness`.
    """

    accelerator: str
    per_replica_rps: float
    bound_by: str
    confidence: float
    measured: Measured | None = None
    learned_gain: float = 1.0
    learned_slowness: float = 1.0


@value
class Candidate:
    """One accelerator that was considered, and why it was rejected (empty for the chosen one)."""

    accelerator: str
    replicas: int
    per_replica_rps: float
    cost_per_hour: float | None
    lost_because: str = ""


@value
class Explanation:
    """The inputs of a verdict, for `holdfast explain`."""

    forecast_rps: float | None = None
    quantile: float | None = None
    lead_time_seconds: float | None = None
    backlog_requests: float | None = None
    wanted_replicas: int | None = None
    candidates: tuple[Candidate, ...] = ()
    guards: tuple[str, ...] = ()


@value
class BatchingTarget:
    """Limits for the engines of one accelerator; on trial on one replica while `before` has the replaced limits.

    `reason` and `message` are set only in the tick of a change.
    """

    accelerator: str
    limits: BatchingLimits
    before: BatchingLimits | None = None
    reason: Reason | None = None
    message: str = ""


@value
class QueueLimitTarget:
    """Another queue limit for the engines of one accelerator, which is a rollout; `message` says why."""

    accelerator: str
    limit: QueueLimit
    message: str


@value
class Restart:
    """A sick group of pods whose leader is deleted, so that all of its pods are made anew, and why."""

    leader: str
    reason: Reason
    message: str


@value
class Decision:
    """The complete result of one tick for one service.

    `verdict` will be carried out; `recommendation` is set if it is only published (Recommend mode, pinned).
    `holding`: requests go to the activator, which holds them until a replica serves. `benchmarked` are results of
    benchmarks with the factor by which each exceeds the engine model; None for a result that cannot be used. `engines`
    are what engines report of themselves, by accelerator. `max_unavailable`: replicas that an eviction may leave
    unavailable. `restart`: a group that is restarted, as long as it is seen sick.
    """

    key: ServiceKey
    generation: int
    verdict: Verdict
    conditions: tuple[ConditionValue, ...]
    slo: SloView
    capacity: CapacityView | None = None
    cold_start_seconds: float | None = None
    recommendation: Verdict | None = None
    explanation: Explanation = Explanation()
    batching: BatchingTarget | None = None
    queue_limit: QueueLimitTarget | None = None
    holding: bool = False
    benchmarked: tuple[tuple[Measured, float | None], ...] = ()
    engines: tuple[tuple[str, EngineFacts], ...] = ()
    max_unavailable: int = 1
    restart: Restart | None = None

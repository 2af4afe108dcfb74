"""What was decided, as data, with the reason that travels unchanged to condition, Event, log line and metric."""

from __future__ import annotations

import enum

from holdfast.api.reasons import Reason
from holdfast.domain.benchmark import Measured
from holdfast.domain.service import BatchingLimits, ServiceKey
from holdfast.domain.signals import UNKNOWN_QUANTILES, LatencyQuantiles
from holdfast.domain.value import value


@value
class ConditionValue:
    """One condition as decided now; `status` None means Unknown, `type` is one of holdfast.api.conditions."""

    type: str
    status: bool | None
    reason: str
    message: str


class Action(enum.Enum):
    """What changes; HOLD writes nothing."""

    CREATE = "Create"
    SCALE_UP = "ScaleUp"
    SCALE_DOWN = "ScaleDown"
    SWITCH = "Switch"
    HOLD = "Hold"


@value
class PlacementTarget:
    """How many replicas of one accelerator shall run.

    `remove_first` names replicas whose removal costs least, best first: Kubernetes is told by pod-deletion-cost.
    Those among them with fewer requests come first, but for `lost` ones: what these hold is lost or late anyway.
    `observed_replicas` is the size the decision was made on: act writes only if it still stands.
    """

    accelerator: str
    replicas: int
    observed_replicas: int | None = None
    remove_first: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@value
class Verdict:
    """Action, reason and a message that says what a person needs to know."""

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

    `exact`: each counts once, at the objective that it missed first, as plugins judged it. Else vLLM's histograms tell:
    who missed two objectives counts at both, and whom its client gave up at none.
    """

    ttft_rps: float
    tpot_rps: float
    e2e_rps: float | None
    rejected_rps: float
    error_rps: float
    exact: bool = False


@value
class SloView:
    """What status shows of the objective; None where too little is known to say."""

    attainment: float | None = None
    budget_remaining: float | None = None
    good_rps: float | None = None
    arrival_rps: float | None = None
    tokens_per_second: float | None = None  # prompt and output together
    ttft: LatencyQuantiles = UNKNOWN_QUANTILES
    tpot: LatencyQuantiles = UNKNOWN_QUANTILES
    e2e: LatencyQuantiles = UNKNOWN_QUANTILES
    bad: BadByCause | None = None
    source: str = "bounds"


@value
class CapacityView:
    """What one replica of the accelerator in use carries, and what binds it; `measured` is what that started from.

    As observed it carries `learned_gain` times that, and steps take `learned_slowness` times as long as the model says.
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
    """One accelerator that was considered, and why it lost (empty for the one taken)."""

    accelerator: str
    replicas: int
    per_replica_rps: float
    cost_per_hour: float | None
    lost_because: str = ""


@value
class Explanation:
    """The inputs behind a verdict, for `holdfast explain`."""

    forecast_rps: float | None = None
    quantile: float | None = None
    lead_time_seconds: float | None = None
    backlog_requests: float | None = None
    wanted_replicas: int | None = None
    candidates: tuple[Candidate, ...] = ()
    guards: tuple[str, ...] = ()


@value
class BatchingTarget:
    """Limits for the engines of one accelerator; on trial, on one replica, while `before` says what they replace.

    `reason` and `message` are set in the tick in which that changes.
    """

    accelerator: str
    limits: BatchingLimits
    before: BatchingLimits | None = None
    reason: Reason | None = None
    message: str = ""


@value
class Decision:
    """Everything that follows for one service from one tick.

    `verdict` is what will be done; `recommendation` is set where it is only published (Recommend mode, pinned).
    `holding`: requests go to the activator, which holds them until a replica serves. `implausible` are results of
    benchmarks that capacity could not start from, for the engine model cannot be scaled to them.
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
    holding: bool = False
    implausible: tuple[Measured, ...] = ()

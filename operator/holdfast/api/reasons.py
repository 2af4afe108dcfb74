"""Every reason, once: the same word reaches condition, Event, log line and metric label."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a condition or a decision is as it is."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> "Reason":
        """A reason with its one-line meaning."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    # Ready
    SERVING = "Serving", "At least one replica has served a token."
    INVALID = "Invalid", "The object cannot be acted on; the message names the field and the remedy."
    NO_REPLICAS = "NoReplicas", "No replica has served a token yet."
    ENGINE_FAILING = "EngineFailing", "The engine exits or fails its probes; the message carries its last words."
    ENGINE_HUNG = "EngineHung", "Ready replicas hold requests and make no token; the message names them."
    ENGINE_LAGGING = "EngineLagging", "A Ready replica answers late what others answer in time; the message names it."
    NODE_LOST = "NodeLost", "The node of a replica does not answer; the replica counts as none."
    IMAGE_UNSUPPORTED = "ImageUnsupported", "The image holds no vLLM, or one older than what Holdfast supports."
    IMAGE_PULL_FAILING = "ImagePullFailing", "The image cannot be pulled."
    MODEL_NOT_FOUND = "ModelNotFound", "There is no model at model.uri."
    SECRET_MISSING = "SecretMissing", "A Secret or a key of it that the spec names does not exist."
    VOLUME_MISSING = "VolumeMissing", "A PersistentVolumeClaim that the spec names does not exist."
    NAME_CONFLICT = "NameConflict", "An object of that name exists and belongs to someone else; it is left alone."
    PODS_FORBIDDEN = "PodsForbidden", "The cluster's admission refuses the pods."
    DELETION_HELD = "DeletionHeld", "It is being deleted, and a finalizer holds it; the message names it."
    APPLY_FAILED = "ApplyFailed", "The API server refused a write; the message carries its answer."

    # SLOMet
    OBJECTIVE_MET = "ObjectiveMet", "Attainment over the window is at least the objective."
    BELOW_CAPACITY = "BelowCapacity", "More load than the replicas carry within the objectives."
    COLD_START = "ColdStart", "Requests were lost while further replicas started."
    SLO_INFEASIBLE = "SLOInfeasible", "The objectives cannot be met even without load; the message says on what."
    LOAD_IMBALANCED = "LoadImbalanced", "Some replicas have more than they carry beside others with less."
    ENGINE_SLOW = "EngineSlow", "An engine is slower than its load explains."
    WARMING_UP = "WarmingUp", "Too few requests to judge: one bad request would use up the error budget."

    # ScalingActive
    FOLLOWING_SLO = "FollowingSLO", "Sizes follow the SLO."
    PINNED = "Pinned", "spec.replicas pins the size; remove it to resume SLO scaling."
    RECOMMEND = "Recommend", "mode is Recommend: the decision is published and nothing moves."
    METRICS_HOLD = "MetricsHold", "Metrics are missing or stale: the size is held, nothing is lowered."

    # MetricsAvailable
    METRICS_FRESH = "MetricsFresh", "Every signal is fresh."
    PROMETHEUS_UNREACHABLE = "PrometheusUnreachable", "Prometheus does not answer or answers with an error."
    METRICS_MISSING = "MetricsMissing", "No series of the service; the message names what is missing."
    METRICS_STALE = "MetricsStale", "The newest sample is older than three scrape intervals."
    CLOCK_SKEW = "ClockSkew", "Samples carry times in the future: two clocks differ."
    METRICS_PARTIAL = "MetricsPartial", "Some replicas or some signals have no usable series."
    FOREIGN_ENGINES = "ForeignEngines", "Engines beside the pods of this cluster are counted; the message names them."

    # CapacityAvailable
    ALL_PLACED = "AllPlaced", "Every wanted replica could be placed."
    INSUFFICIENT_GPUS = "InsufficientGPUs", "No free GPU for a wanted replica."
    QUOTA_EXCEEDED = "QuotaExceeded", "A ResourceQuota stops a wanted replica."
    NO_MATCHING_NODES = "NoMatchingNodes", "No node matches the accelerator's nodeSelector and tolerations."
    ACCELERATOR_UNAVAILABLE = (
        "AcceleratorUnavailable",
        "Replicas found no place or never became ready: the next accelerator is tried.",
    )

    # FastLoopActive
    LIMITS_APPLIED = "LimitsApplied", "Engines show that they work with the limits last written."
    LIMITS_PENDING = "LimitsPending", "No engine has shown yet that it works with its limits."
    LIMITS_NOT_APPLIED = "LimitsNotApplied", "Engines do not show the limits written for them; the message names them."
    PLUGIN_OFF = "PluginOff", "The plugin turned itself off: these engines run with vLLM's own scheduling."

    # Reconciling, Stalled
    ROLLOUT_UNDER_WAY = "RolloutUnderWay", "Replicas are being replaced; sizes are not lowered meanwhile."
    REPLICAS_STARTING = "ReplicasStarting", "Replicas are starting; they count as capacity to come."
    PROGRESS_DEADLINE_EXCEEDED = (
        "ProgressDeadlineExceeded",
        "Replicas did not become ready for far longer than a cold start.",
    )

    TIMEZONE_UNKNOWN = "TimezoneUnknown", "A schedule names no time zone that is known: its floor does not hold."

    # Decisions: up
    FIRST_SIZE = "FirstSize", "The first size of a new service."
    FORECAST_ABOVE_CAPACITY = "ForecastAboveCapacity", "The forecast at the lead time is above what the replicas carry."
    BACKLOG_TO_DRAIN = "BacklogToDrain", "Waiting requests need more capacity to be served in time."
    BUDGET_BURNING = "BudgetBurning", "The error budget burns faster than the window allows."
    AT_MINIMUM = "AtMinimum", "scaling.min or scaling.minOnDemand bounds the size."
    REQUESTS_HELD = "RequestsHeld", "Requests are held until a replica serves."
    ACTIVATOR_SILENT = "ActivatorSilent", "Nothing answers that would hold requests: a replica runs all the time."
    SCHEDULED_FLOOR = "ScheduledFloor", "A floor of scaling.schedules bounds the size; the message names it."

    # Decisions: down
    DEMAND_BELOW_CAPACITY = "DemandBelowCapacity", "Fewer replicas carried the forecast for long enough."

    IDLE = "Idle", "No request came for longer than usual: no replica runs, and the next request is held for one."

    # Decisions: placement
    SWITCHING_ACCELERATOR = "SwitchingAccelerator", "Another accelerator is taken; the message says why."

    # Decisions: batching
    BATCHING_TRIAL = "BatchingTrial", "One replica runs with other batching limits and is compared with the rest."
    BATCHING_KEPT = "BatchingKept", "The replica on trial missed no more than the rest: the rest follows."
    BATCHING_RETURNED = "BatchingReturned", "The replica on trial missed more than the rest: it goes back."

    # Decisions: hold and bound
    STEADY = "Steady", "The size fits the forecast."
    AT_MAXIMUM = "AtMaximum", "scaling.max or an accelerator's max bounds the size."
    BUDGET_LIMITED = "BudgetLimited", "budget.maxCostPerHour bounds the size."
    CAPACITY_LIMITED = "CapacityLimited", "No more accelerators can be had."
    DOWN_HOLD = "DownHold", "Fewer replicas would do now, but not yet for as long as capacity takes to come back."
    FLAP_LIMITED = "FlapLimited", "The size changed direction too often within a lead time."
    STEP_LIMITED = "StepLimited", "A step up is at most the larger of double and four more."
    PREDICTION_NOT_FINITE = "PredictionNotFinite", "A prediction is not a finite number: the size is held."
    SPEC_NOT_OBSERVED = "SpecNotObserved", "The newest generation of the spec has not been seen yet."

    # Complete, of an LLMBenchmark
    MEASURED = "Measured", "The benchmark ended with a result."
    BENCHMARK_RUNNING = "BenchmarkRunning", "A benchmark loads its target: that load is real load."
    QUEUED = "Queued", "Another benchmark of the same target runs."
    TARGET_NOT_READY = "TargetNotReady", "The service that is to be measured does not exist or serves nobody."
    NO_IMAGE = "NoImage", "The operator was not told its own image, which makes the measurement."
    TARGET_UNREACHABLE = "TargetUnreachable", "Nobody answered as an OpenAI-compatible server would."
    CLIENT_OVERLOADED = "ClientOverloaded", "The client itself was too slow: its figures are refused."
    BENCHMARK_FAILED = "BenchmarkFailed", "The run ended without a result; the message carries its last words."
    TIMED_OUT = "TimedOut", "The run did not end within spec.timeout."

    # CapacityInUse, of an LLMBenchmark
    IN_FORCE = "InForce", "Sizing of the services that the message names starts from this result."
    OLDER_ENGINE = "OlderEngine", "It is in force, but the engine that was measured has been edited since."
    SUPERSEDED = "Superseded", "A newer result of the same engine is in force; the message names the benchmark."
    NO_SUCH_ENGINE = "NoSuchEngine", "No LLMService of the namespace has an engine like the one that was measured."
    IMPLAUSIBLE = "Implausible", "The engine model cannot be scaled to it: sizing starts from the model alone."

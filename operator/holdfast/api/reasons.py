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
    SERVING = "Serving", "At least one replica is ready and has served a token."
    INVALID = "Invalid", "The object is not valid; the message names the field and the fix."
    NO_REPLICAS = "NoReplicas", "No replica has served a token yet."
    ENGINE_FAILING = "EngineFailing", "The engine exits or fails its probes; the message has its last output."
    POD_ENDED = "PodEnded", "A pod ended before it served: rejected or evicted by its node; the message says why."
    ENGINE_HUNG = "EngineHung", "Ready replicas hold requests but produce no tokens; the message names them."
    ENGINE_ERRORS = (
        "EngineErrors",
        "Most requests of a Ready replica, or most bad requests, end with an error of the engine or with the engine.",
    )
    ENGINE_LAGGING = (
        "EngineLagging",
        "A Ready replica is a straggler: it misses the objectives while its peers meet them; the message names it.",
    )
    NODE_LOST = "NodeLost", "The node of a replica does not respond; the replica does not count as capacity."
    IMAGE_UNSUPPORTED = (
        "ImageUnsupported",
        "The image contains no vLLM, or a version older than Holdfast supports, or is of another architecture.",
    )
    ENGINE_UNSUPPORTED = "EngineUnsupported", "The engine generates no text, or runs without vLLM's Python server."
    IMAGE_PULL_FAILING = "ImagePullFailing", "The image cannot be pulled."
    MODEL_NOT_FOUND = "ModelNotFound", "No model was found at model.uri."
    ADAPTER_NOT_FOUND = "AdapterNotFound", "A LoRA adapter cannot be loaded; the message names it."
    MODEL_FORBIDDEN = "ModelForbidden", "The hub or bucket refuses the download: no access with this token."
    HUB_UNREACHABLE = "HubUnreachable", "The weights cannot be fetched: hub or bucket is away, down or untrusted."
    DISK_FULL = "DiskFull", "The disk of a replica is full."
    SECRET_MISSING = "SecretMissing", "A Secret that the spec names, or a key in it, does not exist."
    VOLUME_MISSING = "VolumeMissing", "A PersistentVolumeClaim that the spec names does not exist or has no volume."
    VOLUME_NOT_SHARED = (
        "VolumeNotShared",
        "A PersistentVolumeClaim can be used on one node only, and replicas on several nodes use it.",
    )
    NAME_CONFLICT = (
        "NameConflict",
        "An object with the required name exists and has another owner; Holdfast does not change it.",
    )
    PODS_FORBIDDEN = "PodsForbidden", "Admission control of the cluster rejects the pods."
    DELETION_HELD = (
        "DeletionHeld",
        "The object is being deleted and waits for a finalizer; the message names the finalizer.",
    )
    TARGET_UNUSABLE = (
        "TargetUnusable",
        "Holdfast cannot size the Deployment of spec.target; the message says why and what to do.",
    )
    APPLY_FAILED = "ApplyFailed", "The API server rejected a write; the message has its answer."

    # SLOMet
    OBJECTIVE_MET = "ObjectiveMet", "Attainment over the window is at least the objective."
    BELOW_CAPACITY = "BelowCapacity", "The load exceeds what the replicas carry within the objectives."
    COLD_START = "ColdStart", "Requests missed the objectives while replicas started."
    SLO_INFEASIBLE = (
        "SLOInfeasible",
        "The objectives cannot be met even without load; the message names the accelerators.",
    )
    LOAD_IMBALANCED = "LoadImbalanced", "Load is uneven: some replicas get more than they carry, others less."
    ENGINE_SLOW = (
        "EngineSlow",
        "Requests are late, and engine steps take longer than expected; the message says how long.",
    )
    CAUSE_UNKNOWN = (
        "CauseUnknown",
        "Requests miss the objectives within the estimated capacity, and nothing that engines report shows why.",
    )
    WARMING_UP = "WarmingUp", "Too few requests to judge: one bad request would use up the error budget."

    # Ready and ScalingActive
    MOST_REQUESTS_BAD = (
        "MostRequestsBad",
        "More than half of the requests of the last minutes missed the objectives, and accelerators are free.",
    )

    # ScalingActive
    FOLLOWING_SLO = "FollowingSLO", "Sizes follow the SLO."
    PINNED = "Pinned", "spec.replicas pins the size; remove it to resume SLO scaling."
    PINNED_OUTSIDE_MANIFEST = (
        "PinnedOutsideManifest",
        "spec.replicas pins the size, and the applied manifest does not set it; remove the field, or add it there.",
    )
    RECOMMEND = "Recommend", "mode is Recommend: decisions are published in status.recommendation and not applied."
    OTHER_AUTOSCALER = (
        "OtherAutoscaler",
        "Somebody else sizes a Deployment of the service, so Holdfast only recommends; the message names them.",
    )
    METRICS_HOLD = "MetricsHold", "Metrics or their history are missing or stale, so the size does not shrink."

    # MetricsAvailable
    METRICS_FRESH = "MetricsFresh", "All metrics are fresh."
    PROMETHEUS_UNREACHABLE = "PrometheusUnreachable", "Prometheus does not answer or answers with an error."
    METRICS_MISSING = "MetricsMissing", "Prometheus has no series of the service; the message names what is missing."
    METRICS_STALE = "MetricsStale", "The newest sample is older than three scrape intervals."
    CLOCK_SKEW = "ClockSkew", "Samples have timestamps in the future: two clocks differ."
    METRICS_PARTIAL = "MetricsPartial", "Some replicas or some signals have no usable series."
    FOREIGN_ENGINES = (
        "ForeignEngines",
        "Engines that are not pods of this cluster report under this service; the message names them.",
    )

    # CapacityAvailable
    ALL_PLACED = "AllPlaced", "Every desired replica has a node."
    INSUFFICIENT_GPUS = "InsufficientGPUs", "There is no free GPU for a desired replica."
    QUOTA_EXCEEDED = "QuotaExceeded", "A ResourceQuota blocks a desired replica."
    NO_MATCHING_NODES = "NoMatchingNodes", "No node matches the accelerator's nodeSelector and tolerations."
    ACCELERATOR_UNAVAILABLE = (
        "AcceleratorUnavailable",
        "The accelerator is in backoff: its replicas found no node or never became ready. Another one is used.",
    )

    # FastLoopActive
    LIMITS_APPLIED = "LimitsApplied", "Engines report the last written limits."
    LIMITS_PENDING = "LimitsPending", "No engine has reported its limits yet."
    LIMITS_NOT_APPLIED = "LimitsNotApplied", "Engines do not report the last written limits; the message names them."
    NOT_OUR_ENGINES = (
        "NotOurEngines",
        "Somebody else made the engines of spec.target, so they run without the plugin; the message says what is lost.",
    )
    PLUGIN_OFF = "PluginOff", "The plugin turned itself off, so these engines run vLLM's own scheduler."

    # Reconciling, Stalled
    ROLLOUT_UNDER_WAY = "RolloutUnderWay", "Replicas are being replaced; the size does not shrink meanwhile."
    REPLICAS_STARTING = (
        "ReplicasStarting",
        "Replicas are starting and count as future capacity; the size does not shrink meanwhile.",
    )
    PROGRESS_DEADLINE_EXCEEDED = (
        "ProgressDeadlineExceeded",
        "Replicas did not become ready for far longer than a cold start.",
    )

    CRD_TOO_OLD = (
        "CrdTooOld",
        "The CRD in the cluster is older than the operator, and fields of the applied manifest were dropped.",
    )
    API_MISSING = "ApiMissing", "The cluster has no API for an object that the spec asks for."
    ROUTER_UNAVAILABLE = "RouterUnavailable", "No pod of the router is ready, so clients reach the replicas without it."
    PREFILL_NOT_READY = (
        "PrefillNotReady",
        "No engine of the prefill pool is ready, so the replicas serve whole requests.",
    )
    TIMEZONE_UNKNOWN = "TimezoneUnknown", "A schedule names an unknown time zone, so it has no effect."

    # Decisions: up
    FIRST_SIZE = "FirstSize", "The first size of a new service."
    FORECAST_ABOVE_CAPACITY = (
        "ForecastAboveCapacity",
        "The forecast for the lead time exceeds the capacity of the replicas.",
    )
    KV_CACHE_PRESSURE = (
        "KVCachePressure",
        "Requests are expected to take more KV cache within the lead time than the replicas have.",
    )
    BACKLOG_TO_DRAIN = "BacklogToDrain", "Queued requests need more capacity to be served in time."
    BATCH_TO_FINISH = (
        "BatchToFinish",
        "Batch work would not be done within finishWithin by what all other requests leave.",
    )
    BUDGET_BURNING = "BudgetBurning", "The error budget burns faster than the window allows."
    AT_MINIMUM = "AtMinimum", "scaling.min or scaling.minOnDemand bounds the size."
    REQUESTS_HELD = "RequestsHeld", "The activator holds requests until a replica is ready."
    ACTIVATOR_SILENT = "ActivatorSilent", "The activator does not answer, so one replica keeps running."
    NODE_CLOSING = (
        "NodeClosing",
        "The node of a serving replica is cordoned or about to be removed; a successor serves before the replica goes.",
    )
    SCHEDULED_FLOOR = (
        "ScheduledFloor",
        "A minimum of scaling.schedules bounds the size; the message names the schedule.",
    )

    # Decisions: down
    DEMAND_BELOW_CAPACITY = (
        "DemandBelowCapacity",
        "Fewer replicas have been enough for the forecast for the whole hold time.",
    )

    IDLE = "Idle", "No request arrived for the idle time, so no replica runs; the activator holds the next request."

    # Decisions: placement
    SWITCHING_ACCELERATOR = "SwitchingAccelerator", "Replicas migrate to another accelerator; the message says why."

    # Decisions: batching
    BATCHING_TRIAL = (
        "BatchingTrial",
        "A canary replica runs with other batching limits and is compared with the others.",
    )
    BATCHING_KEPT = (
        "BatchingKept",
        "The canary missed about as much as the others or less, so all replicas get its limits.",
    )
    BATCHING_RETURNED = (
        "BatchingReturned",
        "The canary missed more than the others, had too few requests or failed, so it returns to the old limits.",
    )

    QUEUE_LIMIT_CHANGED = (
        "QueueLimitChanged",
        "Engines restart in turn with the queue limit that follows from their measured step times.",
    )

    DRIFT_CORRECTED = (
        "DriftCorrected",
        "Somebody else changed or deleted an object of the service, so the operator wrote it again.",
    )

    # Decisions: hold and bound
    STEADY = "Steady", "The size fits the forecast."
    AT_MAXIMUM = "AtMaximum", "scaling.max or an accelerator's max bounds the size."
    BUDGET_LIMITED = "BudgetLimited", "budget.maxCostPerHour bounds the size."
    CAPACITY_LIMITED = "CapacityLimited", "No more accelerators are available."
    DOWN_HOLD = "DownHold", "Fewer replicas would be enough now, but not yet for the whole hold time."
    STEP_LIMITED = "StepLimited", "One step up is limited to twice the size or four more replicas, whichever is larger."
    CAPACITY_UNKNOWN = (
        "CapacityUnknown",
        "What a replica carries is a guess, so the size at most doubles after each observed start.",
    )
    MORE_REPLICAS_DO_NOT_HELP = (
        "MoreReplicasDoNotHelp",
        "Larger sizes served no more requests and no larger share well, so the size returned to the cheapest such one.",
    )
    PREDICTION_NOT_FINITE = "PredictionNotFinite", "A prediction is not a finite number, so the size does not change."
    SPEC_NOT_OBSERVED = "SpecNotObserved", "The last change is not applied or not observed by Kubernetes yet."

    # Complete, of an LLMBenchmark
    MEASURED = "Measured", "The benchmark ended with a result."
    BENCHMARK_RUNNING = "BenchmarkRunning", "The benchmark runs and sends real load to its target."
    QUEUED = "Queued", "Another benchmark of the same target runs."
    TARGET_NOT_READY = "TargetNotReady", "The target service does not exist or has no ready replica."
    NO_IMAGE = "NoImage", "The operator does not know its own image, which runs the benchmark client."
    TARGET_UNREACHABLE = "TargetUnreachable", "The target did not answer like an OpenAI-compatible server."
    CLIENT_OVERLOADED = "ClientOverloaded", "The benchmark client was too slow, so its figures are rejected."
    BENCHMARK_FAILED = "BenchmarkFailed", "The run ended without a result; the message has the last output."
    TIMED_OUT = "TimedOut", "The run did not end within spec.timeout."

    # CapacityInUse, of an LLMBenchmark
    IN_FORCE = "InForce", "Sizing of the named services starts from this result."
    OLDER_ENGINE = "OlderEngine", "The result is used, but the measured engine was edited since."
    SUPERSEDED = "Superseded", "A newer result for the same engine is used; the message names its benchmark."
    NO_SUCH_ENGINE = "NoSuchEngine", "No LLMService in the namespace has an engine like the measured one."
    IMPLAUSIBLE = (
        "Implausible",
        "The benchmark or the engine model found no rate that can be carried, so the result is not used.",
    )

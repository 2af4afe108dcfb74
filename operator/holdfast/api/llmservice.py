"""The LLMService: what a user declares. The CRD is generated from these types."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

from holdfast.api import fields
from holdfast.api.classes import (
    SLO_RULES,
    RequestClass,
    require_bounds_that_fit,
    require_caps_that_lift_nothing,
    require_shares_that_fit,
)
from holdfast.api.engine_flags import AcceleratorArguments, EngineArguments
from holdfast.api.group_set import (
    NAMES_OF_GROUPS_FIT,
    NODES_SHARE_GPUS,
    ONE_ENGINE_IN_A_GROUP,
    SERVICES_OF_GROUPS_ARE_FREE,
)
from holdfast.api.inference_pool import InferencePool
from holdfast.api.lora import NAMED_APART, Lora
from holdfast.api.objectives import Objectives
from holdfast.api.parallelism import COUNT_IS_PRODUCT, MAX_GPUS, Count, Parallelism, require_gpus_said_once
from holdfast.api.parsing import InvalidObject, parsed
from holdfast.api.prefill import NAMES_OF_PREFILL_FIT
from holdfast.api.quantities import parse_duration_seconds
from holdfast.api.router import Router
from holdfast.api.rules import ApiModel, Rule
from holdfast.api.scaling import Scaling
from holdfast.api.spec_rules import SPEC_RULES
from holdfast.api.target import Target
from holdfast.api.template_rules import PodTemplate
from holdfast_engine.objectives.rules import MOST_CLASSES

GROUP = "holdfast.dev"
VERSION = "v1alpha1"
PLURAL = "llmservices"
KIND = "LLMService"
API_VERSION = f"{GROUP}/{VERSION}"
MAX_NAMES_LENGTH = 52
DEFAULT_ENGINE_IMAGE = "vllm/vllm-openai:v0.32.0"
NO_RESOURCE = "None"
"""The resource of engines that request no accelerator: emulated ones."""


class InvalidLLMService(InvalidObject):
    """An object that is no LLMService; the message names every field at fault and the remedy."""


class SecretReference(ApiModel):
    """A Secret in the same namespace."""

    name: fields.ObjectName
    """Name of the Secret."""


class SecretKeyReference(SecretReference):
    """A key of a Secret in the same namespace."""

    key: fields.ShortText
    """Key in the Secret."""


class EmptyDirCache(ApiModel):
    """A cache that lives as long as its pod."""

    size_limit: fields.Quantity | None = None
    """Maximum size of the cache, such as 200Gi."""


_ONE_CACHE = Rule(
    "(has(self.pvc) ? 1 : 0) + (has(self.hostPath) ? 1 : 0) + (has(self.emptyDir) ? 1 : 0) <= 1",
    "cache must have at most one of pvc, hostPath and emptyDir: remove the others",
    lambda cache: sum(kind is not None for kind in (cache.pvc, cache.host_path, cache.empty_dir)) <= 1,
)


class Cache(ApiModel):
    """Where weights and vLLM's compile cache are stored. A volume shortens cold starts most. Default: emptyDir."""

    rules = (_ONE_CACHE,)

    pvc: fields.ObjectName | None = None
    """Name of a PersistentVolumeClaim in the same namespace."""
    host_path: fields.HostPath | None = None
    """Absolute path of a directory on the node."""
    empty_dir: EmptyDirCache | None = None
    """A directory of the pod, deleted with the pod."""


class Model(ApiModel):
    """The model to serve."""

    rules = (NAMED_APART,)

    uri: fields.ModelUri
    """Hugging Face id, absolute path in the image, pvc://claim/path or oci://image (an image volume)."""
    served_name: fields.ShortText | None = None
    """Model name that clients send in requests. Default: uri."""
    revision: fields.ShortText | None = None
    """Branch, tag or commit of a Hugging Face model."""
    max_model_len: Annotated[StrictInt, Field(ge=1, le=100_000_000)] | None = None
    """Maximum context length in tokens (vLLM --max-model-len). Default: the limit of the model."""
    dtype: fields.ShortText | None = None
    """Data type of weights and activations (vLLM --dtype)."""
    quantization: fields.ShortText | None = None
    """Quantization method (vLLM --quantization)."""
    token_secret_ref: SecretKeyReference | None = None
    """Secret with the Hugging Face token."""
    lora: Lora | None = None
    """LoRA adapters that every replica has before it is Ready."""
    cache: Cache = Cache()
    """Where weights and vLLM's compile cache are stored. A volume shortens cold starts most. Default: emptyDir."""

    @property
    def served_model_name(self) -> str:
        """The name by which clients ask for the model."""
        return self.served_name or self.uri


class SLO(Objectives):
    """Objectives of a good request, and the share of requests that must be good."""

    rules = (*Objectives.rules, *SLO_RULES)

    objective: fields.Objective = "99%"
    """Share of the judged requests in the window that must meet all objectives; above 50% and below 100%."""
    window: fields.Window = "1h"
    """Rolling window of attainment and error budget, 5m to 30d."""
    classes: Annotated[
        tuple[RequestClass, ...], Field(max_length=MOST_CLASSES, json_schema_extra=fields.map_keyed_by("name"))
    ] = ()
    """Classes of requests with objectives of their own, at most 32. Requests without a class have those above."""
    claim: Literal["Header", "Body", "None"] | None = None
    """How a request names its class. Header: x-slo-class or x-gateway-inference-objective, which a gateway sets. Body:
    also vllm_xargs, which clients write. None: not at all. Default: Header."""

    @model_validator(mode="after")
    def _classes_fit(self) -> Self:
        by_path = [(f".classes[{number}]", each) for number, each in enumerate(self.classes)]
        require_bounds_that_fit(self, by_path)
        require_caps_that_lift_nothing(self, by_path)
        require_shares_that_fit(self.classes)
        return self

    @property
    def window_seconds(self) -> float:
        """The rolling window."""
        return parse_duration_seconds(self.window)


class Hardware(ApiModel):
    """One device of an accelerator, as a pod gets it, by the data sheet."""

    memory_gib: Annotated[StrictFloat, Field(ge=1, le=100_000, alias="memoryGiB", allow_inf_nan=False)]
    """Memory in GiB, such as 80."""
    bandwidth_gb_s: Annotated[StrictFloat, Field(ge=10, le=1_000_000, alias="bandwidthGBs", allow_inf_nan=False)]
    """Bandwidth of the memory in GB/s, such as 3350."""
    teraflops: Annotated[StrictFloat, Field(ge=1, le=1_000_000, allow_inf_nan=False)]
    """Peak of dense 16-bit arithmetic in TFLOPS, such as 989; without sparsity."""


class PoolAccelerator(ApiModel):
    """A type of GPU node that engines may run on."""

    rules = (COUNT_IS_PRODUCT, NODES_SHARE_GPUS, ONE_ENGINE_IN_A_GROUP, SERVICES_OF_GROUPS_ARE_FREE)

    name: fields.AcceleratorName
    """Name of this accelerator, such as h100."""
    resource: fields.ResourceName = "nvidia.com/gpu"
    """Extended resource that the pods request, such as nvidia.com/gpu. None: no resource, for emulated engines."""
    count: Count = 1
    """Number of GPUs per replica. Default: 1, or the product of the fields of parallelism."""
    parallelism: Parallelism | None = None
    """How these GPUs share the work. Default: all of them compute each layer together (tensor parallel)."""
    nodes: Annotated[StrictInt, Field(ge=1, le=MAX_GPUS)] = 1
    """Number of nodes that a replica takes its GPUs from, one pod on each. Above 1 it needs LeaderWorkerSet."""
    node_selector: fields.NodeSelector = Field(default_factory=dict)
    """Labels of the nodes that have this accelerator."""
    tolerations: fields.Tolerations = ()
    """Tolerations of the pods on this accelerator."""
    hardware: Hardware | None = None
    """What one GPU can do. Set it for accelerators that `holdfast catalog` does not list, and for shared GPUs."""
    cost_per_hour: Annotated[StrictFloat, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None
    """Dollars per hour of one GPU. Set it for all accelerators or for none; without prices the list order decides."""
    image: fields.ImageReference | None = None
    """Engine image for this accelerator instead of engine.image, such as one for ROCm."""
    args: AcceleratorArguments = ()
    """Additional vLLM arguments for this accelerator, after those of engine.args."""
    env: fields.EnvironmentVariables = ()
    """Environment variables for this accelerator; they override those of engine.env with the same name."""

    @model_validator(mode="after")
    def _count_follows(self) -> Self:
        if self.parallelism is not None and "count" not in self.model_fields_set:
            self.__dict__["count"] = self.parallelism.gpus  # frozen for everybody else
        return self

    @property
    def gpus_per_pod(self) -> int:
        """GPUs that each pod of a replica requests."""
        return self.count // self.nodes

    @property
    def sharing(self) -> Parallelism:
        """How its GPUs share the work, declared or not."""
        return self.parallelism or Parallelism(tensor=self.count)

    @property
    def replica_cost_per_hour(self) -> float | None:
        """Dollars per hour of one replica (all its GPUs), None where costs are unknown."""
        return None if self.cost_per_hour is None else self.cost_per_hour * self.count


class Accelerator(PoolAccelerator):
    """A type of GPU node that replicas may run on."""

    max: Annotated[StrictInt, Field(ge=0, le=10_000)] | None = None
    """Maximum number of replicas on this accelerator. 0 drains it."""
    spot: StrictBool = False
    """Whether these are spot nodes, which may be reclaimed at any time. See scaling.minOnDemand."""
    template: PodTemplate | None = None
    """Pod template overlay for this accelerator, merged after spec.template."""

    @property
    def is_left(self) -> bool:
        """Whether no replica of it may come any more."""
        return self.max == 0


_FIXED_NEEDS_VALUES = Rule(
    "self.mode != 'Fixed' || (has(self.maxNumSeqs) && has(self.maxNumBatchedTokens))",
    "batching.mode Fixed needs maxNumSeqs and maxNumBatchedTokens: set both, or remove mode",
    lambda batching: (
        batching.mode != "Fixed" or (batching.max_num_seqs is not None and batching.max_num_batched_tokens is not None)
    ),
)
_TOKENS_COVER_SEQUENCES = Rule(
    "!has(self.maxNumSeqs) || !has(self.maxNumBatchedTokens) || self.maxNumBatchedTokens >= self.maxNumSeqs",
    "maxNumBatchedTokens must be at least maxNumSeqs, one token per sequence: raise it or lower maxNumSeqs",
    lambda batching: (
        batching.max_num_seqs is None
        or batching.max_num_batched_tokens is None
        or batching.max_num_batched_tokens >= batching.max_num_seqs
    ),
    ".maxNumBatchedTokens",
)


class Batching(ApiModel):
    """Batching limits of vLLM's scheduler."""

    rules = (_FIXED_NEEDS_VALUES, _TOKENS_COVER_SEQUENCES)

    mode: Literal["Auto", "Fixed"] = "Auto"
    """Auto: fit the limits to the objectives at run time, up to the values below. Fixed: use exactly these values."""
    max_num_seqs: Annotated[StrictInt, Field(ge=1, le=65_536)] | None = None
    """Maximum number of sequences in one engine step (vLLM --max-num-seqs). Default: vLLM's default."""
    max_num_batched_tokens: Annotated[StrictInt, Field(ge=1, le=4_194_304)] | None = None
    """Maximum number of tokens in one engine step (vLLM --max-num-batched-tokens). Default: vLLM's default."""


class Budget(ApiModel):
    """Limit of the cost."""

    max_cost_per_hour: Annotated[StrictFloat, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None
    """Maximum cost of the service in dollars per hour; needs costPerHour on every accelerator."""


class Engine(ApiModel):
    """Settings of the vLLM container."""

    image: fields.ImageReference = DEFAULT_ENGINE_IMAGE
    """Container image with vLLM."""
    args: EngineArguments = ()
    """Additional vLLM arguments."""
    env: fields.EnvironmentVariables = ()
    """Environment variables, as in a container."""
    resources: fields.Resources = Field(default_factory=dict)
    """Resource requests and limits of the container; the GPUs of the accelerator are added."""
    shutdown_timeout: fields.ShutdownTimeout = "2m"
    """Time for running requests to finish when a replica is removed (drain), 1s to 1h."""
    startup_timeout: fields.StartupTimeout | None = None
    """Maximum start time of an engine, 10s to 1d. Default: the operator's --startup-timeout."""
    image_pull_secrets: Annotated[
        tuple[SecretReference, ...], Field(max_length=16, json_schema_extra=fields.map_keyed_by("name"))
    ] = ()
    """Secrets for pulling the images."""
    api_key_secret_ref: SecretKeyReference | None = None
    """Secret with the API key that clients must send."""
    tls_secret_ref: SecretReference | None = None
    """Secret of type kubernetes.io/tls; the engine then serves HTTPS."""
    front_end: Literal["Python", "Rust"] = "Python"
    """API server of vLLM. Rust: less CPU for each request, from vLLM 0.32; without overload Reject and tlsSecretRef."""
    plugin: Literal["Auto", "Disabled"] = "Auto"
    """Auto: run the fast loop inside vLLM if its version is supported, else plain flags. Disabled: plain flags."""
    plugin_revision: fields.Revision | None = None
    """Any number or word. Change it to restart the engines with the plugin version of the running operator."""

    @property
    def has_rust_front_end(self) -> bool:
        """Whether no Python runs where requests arrive."""
        return self.front_end == "Rust"

    @property
    def shutdown_timeout_seconds(self) -> float:
        """Time that running requests have to finish."""
        return parse_duration_seconds(self.shutdown_timeout)

    @property
    def startup_timeout_seconds(self) -> float | None:
        """Maximum start time; None: as the operator is set."""
        return None if self.startup_timeout is None else parse_duration_seconds(self.startup_timeout)


class Prefill(ApiModel):
    """A second pool of engines: it computes prompts for the replicas. A field that is not set is the service's."""

    replicas: Annotated[StrictInt, Field(ge=1, le=10_000)] | None = None
    """Number of its engines. Required until prefill pools are sized."""
    accelerators: Annotated[
        tuple[PoolAccelerator, ...], Field(min_length=1, max_length=1, json_schema_extra=fields.map_keyed_by("name"))
    ] = ()
    """The accelerator that they run on, exactly one. Default: the first of accelerators."""
    batching: Batching | None = None
    """Batching limits of their scheduler. Default: batching."""
    args: EngineArguments | None = None
    """Additional vLLM arguments. Default: engine.args."""
    env: fields.EnvironmentVariables | None = None
    """Environment variables. Default: engine.env."""


class Rollout(ApiModel):
    """How replicas are replaced when the spec changes."""

    max_surge: fields.MaxSurge = "Auto"
    """Extra replicas during a rollout: Auto (a quarter of the replicas, as far as GPUs are free) or a number.

    0 means downtime at one replica.
    """


def _unread() -> Model:
    """The model of a service with target, until its Deployment is read."""
    return Model.model_construct(uri="")


class LLMServiceSpec(ApiModel):
    """Desired state: a model, its objectives, and the accelerators that it may run on."""

    rules = SPEC_RULES

    target: Target | None = None
    """Deployment of somebody else to size as it is, instead of engines of Holdfast's own."""
    model: Model = Field(default_factory=_unread)
    """The model to serve. Required without target."""
    slo: SLO
    """Objectives of a good request, and the share of requests that must be good."""
    accelerators: Annotated[
        tuple[Accelerator, ...], Field(min_length=1, max_length=16, json_schema_extra=fields.map_keyed_by("name"))
    ] = Field(default_factory=tuple)
    """Accelerators that replicas may run on, 1 to 16; required without target. Without costPerHour, the first is the
    preferred one."""
    scaling: Scaling = Scaling()
    """Limits of the number of replicas over all accelerators."""
    replicas: Annotated[StrictInt, Field(ge=0, le=10_000)] | None = None
    """Pins the number of replicas and pauses SLO scaling; remove it to resume. Only people and kubectl scale set it."""
    batching: Batching = Field(default_factory=Batching)
    """Batching limits of vLLM's scheduler."""
    overload: Literal["Queue", "Reject"] = "Queue"
    """What happens to requests that can no longer meet ttft. Queue: serve them after the others. Reject: 503 with
    Retry-After."""
    mode: Literal["Auto", "Recommend"] | None = None
    """Auto: apply decisions. Recommend: only publish them in status.recommendation. Default: Auto; Recommend with
    target."""
    priority: Annotated[StrictInt, Field(ge=-1_000_000_000, le=1_000_000_000)] = 0
    """Priority when services compete for GPUs: services with a lower one give up GPUs first, but keep scaling.min."""
    budget: Budget = Budget()
    """Limit of the cost."""
    engine: Engine = Field(default_factory=Engine)
    """Settings of the vLLM container."""
    rollout: Rollout = Field(default_factory=Rollout)
    """How replicas are replaced when the spec changes."""
    router: Router | None = None
    """vllm-router in front of the replicas, run by Holdfast; {} for the defaults."""
    inference_pool: InferencePool | None = None
    """An InferencePool of the replicas, for a gateway and an endpoint picker that the platform runs."""
    prefill: Prefill | None = None
    """A second pool of engines that computes prompts; the replicas then generate the answers. Needs router."""
    template: PodTemplate | None = None
    """Pod template overlay (strategic merge patch); the name of the engine container is vllm."""

    @model_validator(mode="after")
    def _adapters_fit(self) -> Self:
        adapters = () if self.model.lora is None else self.model.lora.adapters
        found = ((f".model.lora.adapters[{number}].slo", each.own_class) for number, each in enumerate(adapters))
        require_bounds_that_fit(self.slo, ((path, each) for path, each in found if each is not None))
        return self

    @model_validator(mode="after")
    def _gpus_are_said_once(self) -> Self:
        require_gpus_said_once(self)
        return self

    @property
    def adapter_classes(self) -> tuple[RequestClass, ...]:
        """The classes that the names of adapters select."""
        return () if self.model.lora is None else self.model.lora.classes

    @property
    def all_classes(self) -> tuple[RequestClass, ...]:
        """The classes that requests claim, and those of adapters, in the order of the engine's limits."""
        return *self.slo.classes, *self.adapter_classes

    @property
    def only_recommends(self) -> bool:
        """Whether decisions are published and not applied."""
        return self.mode == "Recommend" or (self.mode is None and self.target is not None)


class ObjectMeta(ApiModel):
    """The part of Kubernetes' metadata that the operator reads."""

    model_config = ConfigDict(extra="ignore")

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    deletion_timestamp: str | None = None


NAME_IS_LABEL = Rule(
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name is also the name of a Service: use lower-case letters, digits and '-', starting with a letter",
    lambda service: fields.is_service_name(service.metadata.name),
)
NAMES_FIT = Rule(
    "!has(self.spec.accelerators)"
    f" || self.spec.accelerators.all(a, self.metadata.name.size() + a.name.size() <= {MAX_NAMES_LENGTH})",
    f"metadata.name and the name of an accelerator must have at most {MAX_NAMES_LENGTH} characters together:"
    " shorten one of them",
    lambda service: all(
        len(service.metadata.name) + len(accelerator.name) <= MAX_NAMES_LENGTH
        for accelerator in service.spec.accelerators
    ),
)


class LLMService(ApiModel):
    """A model served on vLLM so that its latency objectives keep holding at the lowest cost."""

    model_config = ConfigDict(extra="ignore")
    rules = (NAME_IS_LABEL, NAMES_FIT, NAMES_OF_GROUPS_FIT, NAMES_OF_PREFILL_FIT)

    metadata: ObjectMeta
    spec: LLMServiceSpec
    status: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """The typed object of a manifest or a watch event; raises InvalidLLMService."""
        return parsed(cls, body, InvalidLLMService)

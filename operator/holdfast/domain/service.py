"""A declared service, reduced to what decisions need."""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple
from zoneinfo import ZoneInfo

from holdfast.domain.engine import EngineFacts
from holdfast.domain.taints import Toleration
from holdfast.domain.value import value

PREFILL = "prefill"
"""The pool of engines that compute prompts for the replicas."""


class ServiceKey(NamedTuple):
    """Namespace and name of an LLMService, and one of its pools: alike replicas with one role.

    The pool that answers the clients has no name, so that its key is that of the service.
    """

    namespace: str
    name: str
    pool: str = ""

    @property
    def label(self) -> str:
        """What pods and series of the pool say of it: the name of a service has no dot."""
        return f"{self.name}.{self.pool}" if self.pool else self.name

    @property
    def labels(self) -> tuple[str, str]:
        """Namespace and label: what our own series say of it."""
        return self.namespace, self.label

    def __str__(self) -> str:
        return f"{self.namespace}/{self.label}"


def key_of(namespace: str, label: str) -> ServiceKey:
    """Return the pool that a pod or a series with this label belongs to."""
    name, _, pool = label.partition(".")
    return ServiceKey(namespace, name, pool)


@value
class Slo:
    """Bounds of one good request, and the share of judged requests in the window that must be good.

    `classes` are the objectives of requests that claim a `name`; waiting ones of a higher `priority` start first. An
    edit of classes resets nothing that was learned.
    """

    ttft_seconds: float
    tpot_seconds: float
    objective: float
    window_seconds: float
    e2e_seconds: float | None = None
    classes: tuple[Slo, ...] = field(default=(), compare=False)
    name: str = ""
    priority: int = 0

    def of(self, name: str) -> Slo:
        """Return the objectives of a class; its own for requests without one."""
        return next((each for each in self.classes if each.name == name), self)

    @property
    def budget_share(self) -> float:
        """Share of judged requests that may be bad."""
        return 1.0 - self.objective


@value
class BatchClass:
    """Requests that nobody waits for. Those of a higher `priority` start first among them.

    They are to be done within `finish_seconds`; with None they ask for no replicas.
    """

    name: str
    priority: int = 0
    finish_seconds: float | None = None


@value
class BatchingLimits:
    """vLLM's max_num_seqs and max_num_batched_tokens; None leaves vLLM's own default."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


@value
class Hardware:
    """What one GPU can do by its data sheet: memory, its bandwidth, and the peak of dense 16-bit arithmetic."""

    memory_gib: float
    bandwidth_gb_per_second: float
    teraflops: float


@value
class AcceleratorOption:
    """One candidate for placement, in the order the user listed them.

    `revision` changes with the model, image and arguments of its engines, which determine a replica's capacity. `pods`
    changes with every pod field that the user sets, which determine where a replica can run. `pipeline` stages and
    `data` engines share the GPUs; what remains computes each layer together (tensor parallel). `hardware` is what the
    user says about the GPU, None where the catalog is asked. `memory_utilization`, `kv_cache_dtype` and `quantization`
    are what the arguments of its engines say; None is vLLM's default, or what the service says. `facts` are what its
    engines report; nothing in a spec. `is_shared`: whether its pods ask for a share of each GPU. A replica is a group
    of `nodes` pods, each with the same part of its GPUs. They have room for LoRA adapters of `adapter_ranks` in all.
    """

    name: str
    resource: str = "nvidia.com/gpu"
    gpus_per_replica: int = 1
    cost_per_gpu_hour: float | None = None
    max_replicas: int | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    spot: bool = False
    tolerations: tuple[Toleration, ...] = ()
    revision: str = ""
    pods: str = ""
    hardware: Hardware | None = None
    memory_utilization: float | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    facts: EngineFacts = EngineFacts()
    pipeline: int = 1
    data: int = 1
    is_shared: bool = False
    nodes: int = 1
    adapter_ranks: int = 0

    @property
    def tensor(self) -> int:
        """GPUs that share each layer: those of one stage of one data-parallel engine."""
        return max(1, self.gpus_per_replica // (self.pipeline * self.data))

    @property
    def gpus_per_pod(self) -> int:
        """GPUs that one pod of a replica holds on its node."""
        return self.gpus_per_replica // self.nodes

    @property
    def cost_per_replica_hour(self) -> float | None:
        """Dollars one replica costs in an hour."""
        return None if self.cost_per_gpu_hour is None else self.cost_per_gpu_hour * self.gpus_per_replica


@value
class Schedule:
    """A minimum of replicas from `start_minute` to `end_minute`, starting on the given local days (Monday is 0).

    Minutes count from midnight in local time; beyond 1,440 they lie on the next day. `zone` is None if the time zone is
    unknown.
    """

    name: str
    timezone: str
    zone: ZoneInfo | None
    start_minute: int
    end_minute: int
    days: frozenset[int]
    min_replicas: int


@value
class ServiceSpec:
    """The part of an LLMService that decides sizes; `generation` is the one it was read at.

    While any replica runs, `min_on_demand` of them run on accelerators that are not spot. `may_surge`: during a rollout
    one more replica may run than declared. `startup_seconds`: maximum start time of a replica, None where the
    operator's setting counts. `pin_lacked_by`: who last applied the service, if no applied manifest sets
    `pinned_replicas`; else empty. `priority` is what counts; `declared_priority` may be higher than the namespace is
    allowed. `adopted`: the engines are those of somebody else's Deployment, and no field describes them.
    """

    key: ServiceKey
    uid: str
    generation: int
    model_uri: str
    slo: Slo
    accelerators: tuple[AcceleratorOption, ...]
    min_replicas: int = 1
    max_replicas: int = 10
    min_on_demand: int = 0
    schedules: tuple[Schedule, ...] = ()
    pinned_replicas: int | None = None
    pin_lacked_by: str = ""
    recommend_only: bool = False
    max_cost_per_hour: float | None = None
    priority: int = 0
    declared_priority: int = 0
    batching: BatchingLimits = BatchingLimits()
    batching_fixed: bool = False
    max_model_len: int | None = None
    quantization: str | None = None
    may_surge: bool = True
    startup_seconds: float | None = None
    adopted: bool = False
    batch: tuple[BatchClass, ...] = ()

    def accelerator(self, name: str) -> AcceleratorOption | None:
        """Return the candidate of that name; None if it is not (or no longer) listed."""
        return next((option for option in self.accelerators if option.name == name), None)

"""What is believed of an engine before it has served its first request."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from holdfast.domain.engine import EngineFacts
from holdfast.domain.service import AcceleratorOption, Hardware
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.catalog import (
    GENERIC_ACCELERATOR,
    GIB,
    NOTHING_REPORTED,
    AcceleratorShape,
    ModelShape,
    declared_accelerator,
    find_accelerator,
    find_model,
    generic_model,
    guess_model,
)
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.fit import fit_law
from holdfast.enginemodel.host import CAPTURE_EDGE, Graphs, Host, capture_edge, usual_host
from holdfast.enginemodel.memory import EngineMemory, MemoryParts, engine_memory
from holdfast.enginemodel.roofline import roofline_law
from holdfast.enginemodel.steplaw import StepLaw, StepTimer
from holdfast.enginemodel.steptable import StepTable, step_tables

MEMORY_UTILIZATION = 0.92
"""vLLM's gpu_memory_utilization by default."""

LEAST_KV_TOKENS = 16_384
"""Floor of a guess: nobody runs an engine that cannot hold a few requests."""

DEFAULT_PARAMETERS = 8e9

BLACKWELL = ("b200", "b300")
"""Systems on which vLLM captures CUDA graphs of twice as many tokens by default."""

IMPLAUSIBLE_FACTOR = 1.65
"""A table whose lone decode step takes so many times the roofline's is taken for broken.

All tables of 16-bit weights are below 1.49, all of FP8 in blocks above 1.82; public runs refute those (docs/truth.md).
"""


class PriorSource(enum.StrEnum):
    """Where a prior comes from, best first."""

    TABLE = "table"
    ROOFLINE = "roofline"
    UNKNOWN = "unknown"  # the model, the accelerator or both were guessed


CONFIDENCE = {PriorSource.TABLE: 0.8, PriorSource.ROOFLINE: 0.5, PriorSource.UNKNOWN: 0.2}

DEVIATION = {PriorSource.TABLE: 0.15, PriorSource.ROOFLINE: 0.35, PriorSource.UNKNOWN: 1.2}
"""Standard deviation of the logarithm of (what a replica carries / what the prior says).

Source: docs/designs/0021-refutable-belief.md.
"""


@dataclass(frozen=True, slots=True)
class EnginePrior:
    """One engine: the step law of its GPU (and table where there is one), its host, its KV cache in tokens, and vLLM's
    own batching defaults.

    A replica is `data` engines, and a pipeline is modelled as `pipeline` more of each. A token passes all stages, so a
    step takes as long as on the GPUs of one stage with all layers, and each stage meanwhile works on another
    micro-batch. So a micro-batch is an engine with that step law, its share of the sequences and of the KV cache, and
    all tokens of a step, which vLLM's scheduler counts per micro-batch. Not modelled: transfers between stages,
    micro-batches of unequal size, and requests that a shared queue gives to whichever engine is free.

    `kv_tokens` is 0 where the weights of a known model do not fit into the memory. They are those of the default
    limits; engines reported them where `kv_tokens_reported`. `unknown_model` and
    `unknown_accelerator` say which of the two was guessed when `source` is UNKNOWN.
    """

    law: StepLaw
    table: StepTable | None = field(compare=False)  # named by the rest; hashing its points would cost more than it says
    host: Host
    kv_tokens: int
    max_num_seqs_default: int
    max_num_batched_tokens_default: int
    source: PriorSource
    confidence: float
    memory: EngineMemory
    largest_graph_tokens: int = CAPTURE_EDGE
    kv_tokens_reported: bool = False
    unknown_model: bool = False
    unknown_accelerator: bool = False
    pipeline: int = 1
    data: int = 1

    @property
    def engines(self) -> int:
        """How many such engines a replica is."""
        return self.pipeline * self.data

    def limits(self, max_num_seqs: int | None, max_num_batched_tokens: int | None) -> BatchLimits:
        """Return the limits of this engine for the limits of the vLLM process; None stands for vLLM's default."""
        sequences = max_num_seqs or self.max_num_seqs_default
        tokens = max_num_batched_tokens or self.max_num_batched_tokens_default
        return BatchLimits(max(1, sequences // self.pipeline), tokens)

    def parts(self, limits: BatchLimits) -> MemoryParts:
        """What is in the memory of one GPU with these limits, by formula."""
        edge = capture_edge(limits.max_num_seqs, limits.max_num_batched_tokens, self.largest_graph_tokens)
        return self.memory.parts(limits.max_num_seqs, limits.max_num_batched_tokens, edge)

    def kv_tokens_with(self, limits: BatchLimits) -> int:
        """The KV cache with these limits: what engines report, else what fewer sequences or tokens per step leave."""
        if self.kv_tokens_reported or limits == self.limits(None, None):
            return self.kv_tokens
        known = not (self.unknown_model or self.unknown_accelerator)
        return max(self.parts(limits).kv_tokens, 0 if known else LEAST_KV_TOKENS)

    @property
    def gpu(self) -> StepTimer:
        """How long the GPU takes for a step: by the table where there is one, else by the law."""
        return self.table or self.law

    @property
    def timer(self) -> EngineTimer:
        """What a step costs, the host included."""
        return EngineTimer(self.gpu, self.host)


def engine_prior(
    model_uri: str,
    accelerator_name: str,
    node_selector: Mapping[str, str] | None = None,
    tensor: int = 1,
    quantization: str | None = None,
    memory_utilization: float = MEMORY_UTILIZATION,
    *,
    resource: str = "",
    hardware: AcceleratorShape | None = None,
    kv_cache_dtype: str | None = None,
    pipeline: int = 1,
    data: int = 1,
    facts: EngineFacts = NOTHING_REPORTED,
    adapter_ranks: int = 0,
) -> EnginePrior:
    """The prior of a model on `tensor` x `pipeline` x `data` GPUs; whatever is unknown is guessed and said so.

    `hardware` describes one GPU and overrides what name, labels and resource say. `facts` are what such an engine
    reports; they override everything else about it but a declared pipeline or several engines.
    """
    known_model = find_model(model_uri, quantization, kv_cache_dtype, facts)
    known_accelerator = hardware or find_accelerator(accelerator_name, node_selector, resource)
    prior = _prior(
        known_model or assumed_model(model_uri, quantization, kv_cache_dtype, facts),
        known_accelerator or GENERIC_ACCELERATOR,
        tensor if pipeline * data > 1 else facts.parallel_gpus or max(1, tensor),
        pipeline,
        (known_model is None, known_accelerator is None),
        memory_utilization,
        adapter_ranks,
    )
    prior = replace(prior, data=data)
    if facts.kv_tokens is None:
        return prior
    return replace(prior, kv_tokens=int(facts.kv_tokens) // pipeline, kv_tokens_reported=True)


@lru_cache(maxsize=8192)  # asked of every service at every tick
def option_prior(
    model_uri: str, option: AcceleratorOption, quantization: str | None = None, memory_utilization: float | None = None
) -> EnginePrior:
    """The prior of a replica on one of the accelerators of a spec.

    What its engines report comes first, then what their arguments say, then what the service says; a
    `memory_utilization` that is given comes before that of the arguments.
    """
    shares = (memory_utilization, option.memory_utilization, MEMORY_UTILIZATION)
    return engine_prior(
        model_uri,
        option.name,
        dict(option.node_selector),
        option.tensor,
        option.quantization or quantization,
        next(share for share in shares if share is not None),
        resource="shared" if option.is_shared else option.resource,
        hardware=_declared(option.hardware),
        kv_cache_dtype=option.kv_cache_dtype,
        pipeline=option.pipeline,
        data=option.data,
        facts=option.facts,
        adapter_ranks=option.adapter_ranks,
    )


def option_shape(option: AcceleratorOption) -> AcceleratorShape | None:
    """One GPU of an accelerator of a spec; None where it is neither declared nor known."""
    return _declared(option.hardware) or find_accelerator(option.name, dict(option.node_selector), option.resource)


def _declared(hardware: Hardware | None) -> AcceleratorShape | None:
    if hardware is None:
        return None
    return declared_accelerator(hardware.memory_gib, hardware.bandwidth_gb_per_second, hardware.teraflops)


def assumed_model(
    model_uri: str,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    facts: EngineFacts = NOTHING_REPORTED,
) -> ModelShape:
    """The shape of a known model, else one by the size that its name states, else a usual one."""
    given = (model_uri, quantization, kv_cache_dtype, facts)
    return find_model(*given) or guess_model(*given) or generic_model(DEFAULT_PARAMETERS, DEFAULT_PARAMETERS)


@cache
def _prior(
    model: ModelShape,
    accelerator: AcceleratorShape,
    gpus: int,
    pipeline: int,
    unknown: tuple[bool, bool],
    memory_utilization: float,
    adapter_ranks: int,
) -> EnginePrior:
    known = not any(unknown)
    table = _plausible_table(model, accelerator, gpus) if known else None
    source = PriorSource.TABLE if table else PriorSource.ROOFLINE if known else PriorSource.UNKNOWN
    memory = engine_memory(model, accelerator, (gpus, pipeline), memory_utilization, table, adapter_ranks)
    sequences, tokens = default_max_num_seqs(accelerator), default_max_num_batched_tokens(accelerator)
    largest = largest_graph_tokens(accelerator)
    edge = capture_edge(sequences, tokens, largest)
    kv_tokens = memory.parts(sequences, tokens, edge).kv_tokens
    return EnginePrior(
        law=fit_law(table) if table else roofline_law(model, accelerator, gpus),
        table=table,
        host=usual_host(model.layers, Graphs(edge=edge)),
        kv_tokens=kv_tokens if known else max(kv_tokens, LEAST_KV_TOKENS),
        max_num_seqs_default=sequences,
        max_num_batched_tokens_default=tokens,
        source=source,
        confidence=CONFIDENCE[source],
        memory=memory,
        largest_graph_tokens=largest,
        unknown_model=unknown[0],
        unknown_accelerator=unknown[1],
        pipeline=pipeline,
    )


def _plausible_table(model: ModelShape, accelerator: AcceleratorShape, gpus: int) -> StepTable | None:
    """The shipped table, unless its lone decode is far off the roofline: some (FP8) hold slow kernels, or minutes."""
    table = step_tables().get((model.table or "", accelerator.system, gpus))
    if table is None:
        return None
    expected = roofline_law(model, accelerator, gpus).step_seconds((), 1, 512.0)
    return table if table.step_seconds((), 1, 512.0) < IMPLAUSIBLE_FACTOR * expected else None


def default_max_num_seqs(accelerator: AcceleratorShape) -> int:
    """vLLM 0.33's default of the API server."""
    return 1024 if _large(accelerator) else 256


def default_max_num_batched_tokens(accelerator: AcceleratorShape) -> int:
    """vLLM 0.33's default of the API server."""
    if accelerator.memory_bytes >= 160 * GIB:
        return 16_384
    return 8_192 if _large(accelerator) else 2_048


def largest_graph_tokens(accelerator: AcceleratorShape) -> int:
    """The largest step that vLLM captures by default, if limits allow it."""
    return 2 * CAPTURE_EDGE if accelerator.system.startswith(BLACKWELL) else CAPTURE_EDGE


def _large(accelerator: AcceleratorShape) -> bool:
    return accelerator.memory_bytes >= 70 * GIB and not accelerator.system.startswith("a100")

"""One service of a scenario as it was declared, and the engines that it gets in the twin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.api.llmservice import LLMService, LLMServiceSpec
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.enginemodel.catalog import find_model
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.host import Host
from holdfast.enginemodel.prior import MEMORY_UTILIZATION, engine_prior
from holdfast.enginemodel.scheduler import BLOCK_TOKENS, SchedulerLimits
from holdfast.enginemodel.steptable import StepTable, step_tables
from holdfast.render.admission import admission_tokens
from holdfast.twin.arrays.fleet import EngineSpec, Workload
from holdfast.twin.scenarios.inputs import BadInput
from holdfast.twin.scenarios.scenario import AcceleratorEntry, Scenario, ServiceReality


@dataclass(frozen=True, slots=True)
class Declared:
    """One service of a scenario: the object, what decisions need of it, its requests, and how its clients behave.

    `max_num_queued_tokens` is a cap on queued prompts that its engines have under policies without one of their own;
    `kv_tokens` is their KV cache by accelerator, where it is given.
    """

    service: LLMService
    spec: ServiceSpec
    workload: Workload
    initial_replicas: Mapping[str, int]
    max_num_queued_tokens: int | None = None
    reality: ServiceReality = field(default_factory=ServiceReality)
    kv_tokens: Mapping[str, int] = field(default_factory=dict)


def class_numbers(spec: LLMServiceSpec, shares: Mapping[str, float]) -> dict[int, float]:
    """The shares by the numbers of the declared classes; BadInput for a class that no request can have."""
    names = [each.name for each in spec.all_classes]
    if spec.slo.claim == "None" and not shares.keys() <= {each.name for each in spec.adapter_classes}:
        raise BadInput("claim is None, so no request can claim a class: remove slo.claim")
    strange = next((name for name in shares if name not in names), None)
    if strange is not None:
        given = f"give one of {', '.join(names)}" if names else "declare it"
        raise BadInput(f"{strange!r} is no class of slo.classes and no adapter with an slo: {given}")
    return {1 + names.index(name): share for name, share in shares.items()}


def too_long(scenario: Scenario, each: Declared, option: AcceleratorOption) -> tuple[int, int]:
    """How many requests have more tokens than the KV cache of an engine, and how many it holds: it refuses those."""
    kind = engine_kind(each, option, scenario.cluster.accelerators[option.name], admission=False)
    room_tokens = kind.limits.kv_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    return int((each.workload.prompt_tokens + each.workload.output_tokens > room_tokens).sum()), room_tokens


def _with_table(spec: ServiceSpec, gpus: int) -> str:
    """What could be simulated instead."""
    model, tables = find_model(spec.model_uri, spec.quantization), step_tables().values()
    same = [table for table in tables if model is not None and table.model == model.table]
    if not same:
        return f"take another model: {', '.join(sorted({table.model for table in tables}))}"
    systems = sorted({table.system for table in same if table.tensor_parallel == gpus})
    if not systems:
        return f"take another count: {', '.join(map(str, sorted({table.tensor_parallel for table in same})))}"
    return f"take another system: {', '.join(systems)}"


def engine_kind(each: Declared, option: AcceleratorOption, entry: AcceleratorEntry, admission: bool) -> EngineSpec:
    """A replica as it really is in the twin: the step table of model and system, and vLLM's limits."""
    spec = each.spec if entry.model is None else replace(each.spec, model_uri=entry.model, quantization=None)
    if option.pipeline * option.data > 1:
        raise BadInput(
            f"services: accelerator {option.name}: replicas have one engine without stages in the twin; remove "
            "parallelism.pipeline and parallelism.data, or run holdfast plan"
        )
    gpus, memory = option.gpus_per_replica, entry.share * MEMORY_UTILIZATION
    ranks = option.adapter_ranks
    prior = engine_prior(spec.model_uri, entry.system, None, gpus, spec.quantization, memory, adapter_ranks=ranks)
    table = prior.table
    if not isinstance(table, StepTable) or table.system != entry.system:
        raise BadInput(
            f"cluster.accelerators.{option.name}.system: no step table for {spec.model_uri} on "
            f"{gpus} x {entry.system}: {_with_table(spec, gpus)}"
        )
    batch = prior.limits(spec.batching.max_num_seqs, spec.batching.max_num_batched_tokens)
    kv_tokens = each.kv_tokens.get(option.name) or prior.kv_tokens_with(batch)
    if kv_tokens < 1:
        raise BadInput(f"{spec.model_uri} does not fit on {gpus} x {entry.system}: raise count")
    declared = next(each for each in each.service.spec.accelerators if each.name == option.name)
    cap = admission_tokens(each.service, declared) if admission else each.max_num_queued_tokens
    limits = SchedulerLimits(
        max_num_seqs=batch.max_num_seqs,
        max_num_batched_tokens=batch.max_num_batched_tokens,
        kv_tokens=kv_tokens,
        max_num_queued_tokens=cap,
    )
    host = prior.host.slower(entry.host_factor)
    if entry.overhead is not None:
        host = Host(schedule_seconds=entry.overhead)
    return EngineSpec(
        EngineTimer(table.scaled(entry.step_factor / entry.share), host.slower(entry.step_factor)), limits
    )

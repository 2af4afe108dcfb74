"""The status of an LLMBenchmark in each phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.api import conditions
from holdfast.api.benchmark_status import (
    BenchmarkEngines,
    BenchmarkResult,
    LLMBenchmarkStatus,
    MeasuredCapacity,
)
from holdfast.api.benchmark_summary import Summary, TuneFigures
from holdfast.api.conditions import CAPACITY_IN_USE, COMPLETE, Condition, Status
from holdfast.api.quantities import parse_duration_seconds
from holdfast.api.status import ConditionStatus
from holdfast.control.benchmarks.benchmark_capacity import PerReplica, per_replica
from holdfast.control.benchmarks.benchmark_progress import Progress
from holdfast.control.status.report import condition_of, iso
from holdfast.domain.benchmark import EngineKind, Engines, Phase
from holdfast.domain.decision import ConditionValue
from holdfast.observe.objects.benchmark_engines import engine_digest
from holdfast.observe.objects.benchmarks import Benchmark
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.render.benchmark import Measurand, flags_of, patch_of, result_name

Body = dict[str, Any]
Old = Mapping[str, Any]

_WORDS = {Phase.SUCCEEDED: Status.TRUE, Phase.FAILED: Status.FALSE}
_OPERATING_RANGE = (0.5, 0.7)
_MOST_SENTENCE = 1024


def waiting(entry: Benchmark, old: Old, step: Progress, now: float) -> Body:
    """Status of a run that has not begun; the capacity found by an earlier run is retained."""
    return {**_kept(old, "capacity", "configMap"), **_told(entry, old, step, now), "target": _declared_target(entry)}


def invalid(entry: Benchmark, old: Old, step: Progress, now: float) -> Body:
    """Status of an invalid benchmark."""
    return {**_kept(old, "capacity", "configMap", "result"), **_told(entry, old, step, now)}


def begun(
    entry: Benchmark, old: Old, step: Progress, of: Measurand, engines: Engines | None, job: str, now: float
) -> Body:
    """Status when a run begins (or could not begin, because its name is taken)."""
    found = LLMBenchmarkStatus(
        target=of.name,
        run=entry.run,
        job=job,
        started_at=iso(now),
        engines=None if engines is None else _engines(engines, ""),
    ).to_dict()
    return {**_kept(old, "capacity", "configMap"), **found, **_told(entry, old, step, now)}


def running(
    entry: Benchmark, old: Old, step: Progress, engines: Engines | None, moved: str, words: str, now: float
) -> Body:
    """Status while the run goes on, with what its pod waits for."""
    said = Progress(step.phase, step.reason, f"the pod of the benchmark waits: {words}") if words else step
    shown = {} if engines is None else {"engines": _engines(engines, moved).to_dict()}
    return {**old, **shown, **_told(entry, old, said, now)}


def ended(entry: Benchmark, old: Old, step: Progress, now: float) -> Body:
    """Status of a run that ended without a result."""
    return {**old, **_told(entry, old, step, now), "finishedAt": iso(now)}


def measured(
    entry: Benchmark,
    old: Old,
    step: Progress,
    of: Measurand | None,
    part: ServiceParts | None,
    engines: Engines | None,
    moved: str,
    now: float,
) -> Body:
    """Status of a run that ended with a result; the message has the capacity of one replica, or why there is none."""
    assert step.summary is not None
    assert entry.declared is not None
    found: PerReplica | str = per_replica(step.summary, engines, moved)
    capacity = None
    if isinstance(found, PerReplica) and of is not None and part is not None and engines is not None:
        capacity = _capacity(entry, step.summary, found, of, part, engines, now)
    if isinstance(found, PerReplica):
        remark = f"{found.rate_rps:.3g} ± {found.standard_error_rps:.2g} req/s per replica"
    else:
        remark = f"no per-replica capacity: {found}"
    said = Progress(step.phase, step.reason, f"{step.message}; {remark}")
    whole = LLMBenchmarkStatus(
        config_map=result_name(entry.declared), finished_at=iso(now), result=_result(step.summary), capacity=capacity
    ).to_dict()
    shown = {} if engines is None else {"engines": _engines(engines, moved).to_dict()}
    return {**old, **whole, **shown, **_told(entry, old, said, now)}


def used(entry: Benchmark, old: Old, use: ConditionValue | None, now: float) -> Body | None:
    """Status with whether sizing uses the result; None if the status already says so."""
    before, complete = _condition(old, CAPACITY_IN_USE), _condition(old, COMPLETE)
    new = None if use is None else condition_of(use, entry.generation)
    if (new and (new.status, new.reason, new.message)) == (before and (before.status, before.reason, before.message)):
        return None
    return {**old, "conditions": _conditions(old, (complete, new), now)}


def _told(entry: Benchmark, old: Old, step: Progress, now: float) -> Body:
    """Phase, generation and condition."""
    word = _WORDS.get(step.phase, Status.UNKNOWN)
    new = Condition(COMPLETE, word, str(step.reason), step.message, entry.generation)
    conditions = _conditions(old, (new, _condition(old, CAPACITY_IN_USE)), now)
    return {"observedGeneration": entry.generation, "phase": str(step.phase), "conditions": conditions}


def _condition(status: Old, kind: str) -> Condition | None:
    return next((each for each in conditions.conditions_of(status) if each.type == kind), None)


def _conditions(old: Old, new: Iterable[Condition | None], now: float) -> list[Body]:
    merged = conditions.merge_conditions(conditions.conditions_of(old), filter(None, new), iso(now))
    return [ConditionStatus.of(condition).to_dict() for condition in merged]


def _kept(old: Old, *names: str) -> Body:
    return {name: old[name] for name in names if name in old}


def _declared_target(entry: Benchmark) -> str:
    assert entry.declared is not None
    target = entry.declared.spec.target
    return target.service_ref.name if target.service_ref else target.url or ""


def _engines(engines: Engines, moved: str) -> BenchmarkEngines:
    return BenchmarkEngines(
        accelerator=engines.accelerator or None,
        replicas=engines.count,
        generation=engines.generation,
        digest=engines.digest or None,
        other_rps=engines.other_rps or None,
        moved=moved[:_MOST_SENTENCE] or None,
    )


def _result(summary: Summary) -> BenchmarkResult:
    run, sweep, tune = summary.run, summary.sweep, summary.tune
    assert run is not None
    spread = None
    if sweep is not None and sweep.carried_rps:
        spread = "-".join(f"{share * sweep.carried_rps:.3g}" for share in _OPERATING_RANGE)
    bad = ", ".join(f"{count} {cause}" for cause, count in run.bad.items())
    confirmed = tune.rate_rps if tune is not None and tune.confirmed else None
    return BenchmarkResult(
        saturation_rps=sweep.carried_rps or None if sweep else None,
        at_objective_rps=(sweep.attains_rps if sweep else confirmed) or None,
        **({} if tune is None else _tuned(tune)),
        operating_range=spread,
        attainment=run.attainment,
        goodput_rps=run.goodput_rps,
        output_tokens_per_second=run.output_tokens_per_second,
        ttft_p50_seconds=run.ttft_p50_seconds,
        ttft_p95_seconds=run.ttft_p95_seconds,
        ttft_p99_seconds=run.ttft_p99_seconds,
        tpot_p50_seconds=run.tpot_p50_seconds,
        tpot_p95_seconds=run.tpot_p95_seconds,
        tpot_p99_seconds=run.tpot_p99_seconds,
        concurrency_p50=run.concurrency_p50,
        concurrency_p90=run.concurrency_p90,
        concurrency_p99=run.concurrency_p99,
        requests=run.requests,
        bad=bad[:_MOST_SENTENCE] or None,
    )


def _tuned(found: TuneFigures) -> dict[str, Any]:
    return {
        "limits": f"{found.max_num_seqs}/{found.max_num_batched_tokens}" if found.max_num_seqs else None,
        "max_num_seqs": found.max_num_seqs,
        "max_num_batched_tokens": found.max_num_batched_tokens,
        "vllm_flags": flags_of(found) or None,
        "patch": patch_of(found) or None,
        "trials": found.made,
    }


def _capacity(
    entry: Benchmark,
    summary: Summary,
    found: PerReplica,
    of: Measurand,
    part: ServiceParts,
    engines: Engines,
    now: float,
) -> MeasuredCapacity | None:
    """What one replica carries; None if lengths or objectives are unknown."""
    run, option = summary.run, part.spec.accelerator(engines.accelerator)
    assert run is not None
    assert entry.declared is not None
    if option is None or of.slo is None or not run.prompt_tokens or not run.output_tokens:
        return None
    lengths, limits = entry.declared.spec.lengths, summary.tune or part.spec.batching
    drawn = lengths is not None and lengths.trace is not None
    return MeasuredCapacity(
        model=part.spec.model_uri,
        accelerator=engines.accelerator,
        engine=EngineKind.of(part.spec, option).digest,
        service=part.spec.key.name,
        build=engine_digest(part, option.name),
        per_replica_rps=found.rate_rps,
        standard_error_rps=found.standard_error_rps,
        measured_at=iso(now),
        replicas=engines.count,
        ttft_seconds=parse_duration_seconds(of.slo.ttft),
        tpot_seconds=parse_duration_seconds(of.slo.tpot),
        e2e=None if of.slo.e2e is None else parse_duration_seconds(of.slo.e2e),
        objective=of.slo.objective_share,
        prompt_tokens=run.prompt_tokens,
        output_tokens=run.output_tokens,
        length_cv=None if drawn else ((lengths.cv if lengths else None) or 0.0),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
    )

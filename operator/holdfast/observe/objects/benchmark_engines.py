"""Which engines a benchmark runs against: the replicas of a service, or an engine of the run's own."""

from __future__ import annotations

from dataclasses import replace

from holdfast.api.llmbenchmark import Tune
from holdfast.api.objectives import Objectives
from holdfast.domain.benchmark import Engines
from holdfast.domain.cluster import ReplicaPhase
from holdfast.observe.objects.benchmarks import Object, is_number
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.rendered.context import Deployed
from holdfast.rendered.declared import engine_inputs, inputs, own_front_end
from holdfast.rendered.names import short_hash
from holdfast.rendered.own_engine import OwnEngine, largest


def engines_of(part: ServiceParts, slo: Objectives | None) -> Engines:
    """Return the serving replicas by accelerator, and their present arrivals; `slo` judges the run."""
    ready = [replica.accelerator for replica in part.replicas if replica.phase is ReplicaPhase.READY]
    arriving = (part.service.status.get("slo") or {}).get("arrivalRps")
    found = Engines(
        tuple((name, ready.count(name)) for name in sorted(set(ready))),
        part.spec.generation,
        float(arriving or 0.0) if is_number(arriving) else 0.0,
    )
    return replace(found, digest=_digest(part, found.accelerator, slo, _live_limits(part)))


def _live_limits(part: ServiceParts) -> Object:
    """Limits that replicas with the plugin receive while they run; defaults are omitted, as in the engine's."""
    slo = part.spec.slo
    limits = part.service.spec.model_dump(mode="json", include={"batching", "overload"}, exclude_defaults=True)
    return {**limits, "slo": [slo.ttft_seconds, slo.tpot_seconds, slo.e2e_seconds]}


def own_engine(part: ServiceParts, accelerator: str, slo: Objectives | None) -> Engines:
    """Return the engine of a tuning run, as the service declares it now; its limits are the limits of the run."""
    digest = _digest(part, accelerator, slo, None)
    return Engines(((accelerator, 1),), part.spec.generation, own=True, digest=digest)


def engine_digest(part: ServiceParts, accelerator: str) -> str:
    """Return a digest of the service's engine on one of its accelerators; empty if the service does not list it."""
    found = next((each for each in part.service.spec.accelerators if each.name == accelerator), None)
    return "" if found is None else engine_inputs(part.service, found)


def _digest(part: ServiceParts, accelerator: str, slo: Objectives | None, limits: Object | None) -> str:
    """Digest of everything that the result of a run depends on; empty if the accelerator is not listed."""
    made = engine_digest(part, accelerator)
    bounds = slo and [slo.ttft_seconds, slo.tpot_seconds, slo.e2e_seconds, slo.objective_share]
    return short_hash([made, limits, bounds]) if made else ""


def engine_to_start(part: ServiceParts, tune: Tune) -> OwnEngine | str:
    """Return the engine that a tuning run starts, built as replicas are built now; else the reason why it cannot."""
    named = [option.name for option in part.spec.accelerators]
    name, service = tune.accelerator, part.spec.key.name
    if name is not None and name not in named:
        return f"{service} does not list the accelerator {name}; set one of {', '.join(named)}"
    shown = {item.placement.accelerator: item.rendered for item in part.deployed if item.rendered is not None}
    found = next((each for each in named if each in shown and name in (None, each)), None)
    if found is None:
        where = "" if name is None else f" on {name}"
        return f"{service} has no Deployment{where} yet from which the benchmark engine could be started"
    engine = OwnEngine(part.service, found, shown[found].template_json, tune)
    return _cannot_start(part, shown[found], engine) or engine


def _cannot_start(part: ServiceParts, deployed: Deployed, engine: OwnEngine) -> str:
    """Why the engine would not run, or not as declared; empty if it would."""
    service, name = part.spec.key.name, engine.accelerator
    (accelerator,) = [each for each in part.service.spec.accelerators if each.name == name]
    if accelerator.nodes > 1:
        return (
            f"a replica of {service} on {name} is a group of {accelerator.nodes} pods, and a benchmark starts one pod;"
            " run holdfast tune with --url at a replica"
        )
    if deployed.inputs != inputs(part.service, accelerator):
        return f"the Deployment of {service} on {name} does not match the edited service yet"
    if not deployed.has_plugin:
        return (
            f"engines of {service} on {name} run without the plugin, so their limits cannot change while they"
            " serve; run holdfast tune with --restart-command"
        )
    if own_front_end(part.service.spec, accelerator):
        return (
            f"engines of {service} on {name} have several API servers or the Rust front end, which show no limits on"
            " port 8000, where a tuning run reads them; run holdfast tune with --restart-command"
        )
    sequences, tokens = largest(engine)
    if sequences is not None and tokens is not None and tokens < sequences:
        return (
            f"{tokens} tokens per step are fewer than {sequences} sequences, so vLLM does not start; set both"
            " tune.maxNumSeqs and tune.maxNumBatchedTokens"
        )
    return ""

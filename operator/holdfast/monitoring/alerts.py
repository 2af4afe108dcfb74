"""Alerts: whether the objective will hold, why not, and who has to do what.

Burn rates after the Google SRE workbook, with the thresholds by which the operator itself is alarmed
(`policy.estimate.slo_budget`): an alert fires while the share of bad requests is above its limit over a long and a
short window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.api.conditions import ConditionType
from holdfast.api.reasons import Reason
from holdfast.monitoring import series
from holdfast.monitoring.rules import INTERVAL_SECONDS, STARTS, TIERS, Look, Tier
from holdfast.monitoring.series import any_of, duration, of
from holdfast.observe.queries import OURS, SERVICE
from holdfast.policy.estimate.cold_start import LONGEST_SECONDS

LEAST_BAD = 5
"""Bad requests below which nobody is called: with little traffic, one is a large share."""

_SLOW_TICK_SECONDS = 5
_LASTING = "10m"
_LONGEST_WAKING = duration(STARTS * LONGEST_SECONDS)
"""No wake-up is waited for any longer, whatever begins anew meanwhile."""

_NEVER_SECONDS = 1800
_NAME = "{{ $labels.namespace }}/{{ $labels.holdfast_service }}"
_LLMS = "llms -n {{ $labels.namespace }} {{ $labels.holdfast_service }}"
_EXPLAIN = f"`holdfast explain {_NAME}` shows what is known and done"


@dataclass(frozen=True, slots=True)
class Alert:
    """`runbook` names the field and the remedy; `after` is how long the expression must hold."""

    name: str
    expr: str
    after: str
    severity: str
    summary: str
    runbook: str
    labels: tuple[tuple[str, str], ...] = ()


def alerts() -> tuple[Alert, ...]:
    """Return all alerts, the most urgent first."""
    return (*_burning(), *_services(), *_capacity(), *_replicas(), *_operator())


def _burning() -> Iterator[Alert]:
    """No `for`: the long window says that it matters, the short one that it goes on."""
    texts = {
        "fast": ("HoldfastErrorBudgetFastBurn", "0m", "critical"),
        "slow": ("HoldfastErrorBudgetSlowBurn", "5m", "warning"),
    }
    for burn, (name, after, severity) in texts.items():
        for tier in TIERS:
            looks = tier.looks(burn)
            spans = " or ".join(duration(look.long_seconds) for look in looks)
            yield Alert(
                name,
                " or ".join(_burn(look, tier) for look in looks),
                after,
                severity,
                f"{_NAME}: {{{{ $value | humanizePercentage }}}} of its requests are bad, over {spans}",
                "The dashboard's top row says why: a condition that is not as it should be, and bad requests by cause. "
                "`ttft` and `tpot` want more replicas (are they coming? scaling.max, budget.maxCostPerHour, "
                "accelerators), `rejected` is overload, `error` is the engine (kubectl logs of its pods). "
                f"{_EXPLAIN}. Without a remedy in reach, relax slo.ttft, slo.tpot or slo.objective.",
                (("burn", burn), ("tier", tier.name)),
            )


def _burn(look: Look, tier: Tier) -> str:
    limit = f"> on ({SERVICE}) {of(series.BURN_LIMIT, burn=look.limit)}"
    bad = f"sum_over_time({of(series.TIERED_BAD, tier=tier.name)}[{duration(look.long_seconds)}])"
    many = f"{bad} * {INTERVAL_SECONDS:.0f} >= {LEAST_BAD}"
    return (
        f"{_bad_share(tier, look.long_seconds)} {limit}"
        f" and on ({SERVICE}) ({_bad_share(tier, look.short_seconds)} {limit})"
        f" and on ({SERVICE}) ({many})"
    )


def _bad_share(tier: Tier, seconds: float) -> str:
    """Bad of judged over a window: a ratio of sums."""
    both = (series.TIERED_BAD, series.TIERED_JUDGED)
    return " / ".join(f"sum_over_time({of(name, tier=tier.name)}[{duration(seconds)}])" for name in both)


def _services() -> Iterator[Alert]:
    yield Alert(
        "HoldfastServiceDown",
        f"({_lasting(ConditionType.READY)} unless on ({SERVICE}) {of(series.WAKING_UNTIL)}"
        f" or {_lasting(ConditionType.READY, _LONGEST_WAKING)})"
        f" and on ({SERVICE}) (sum by ({SERVICE}) ({of(series.REPLICAS, state='desired')}) > 0)",
        "1m",
        "critical",
        f"{_NAME} serves nobody: {{{{ $labels.reason }}}}",
        f"`kubectl describe {_LLMS}`: the message of Ready names the field and the remedy (spec.model.uri, "
        "engine.image, a Secret, a volume, GPUs), and carries the engine's last words.",
    )
    yield from _turned_away()
    yield Alert(
        "HoldfastSloMissed",
        f"{of(series.ATTAINMENT)} < on ({SERVICE}) {of(series.OBJECTIVE)}",
        "15m",
        "warning",
        f"{_NAME}: {{{{ $value | humanizePercentage }}}} of requests were good over slo.window, below slo.objective",
        f"`kubectl describe {_LLMS}`: the reason of SLOMet says whether capacity is coming (BelowCapacity, ColdStart), "
        "cannot be had (CapacityLimited, AtMaximum, BudgetLimited), or would not help (SLOInfeasible, EngineSlow).",
    )
    yield Alert(
        "HoldfastMetricsMissing",
        f"{_lasting(ConditionType.METRICS_AVAILABLE)} unless on ({SERVICE})"
        f" last_over_time({of(series.WAKING_UNTIL)}[{_LASTING}])"
        f" or {_lasting(ConditionType.METRICS_AVAILABLE, _LONGEST_WAKING)}",
        "1m",
        "warning",
        f"{_NAME} is sized in the dark: {{{{ $labels.reason }}}}",
        f"`kubectl describe {_LLMS}`: the message of MetricsAvailable names the label or pod that is missing. Until it "
        "is there, nothing is lowered. Look at Prometheus' targets, at settings.prometheusUrl and "
        "settings.scrapeInterval, and at the labels that docs/operations.md asks for.",
    )
    yield Alert(
        "HoldfastServiceUnknown",
        f"count by ({SERVICE}) (vllm:num_requests_running{{{OURS}}}) unless on ({SERVICE}) {of(series.OBJECTIVE)}",
        "15m",
        "warning",
        f"{_NAME} has engines, and the operator shows nothing of it: no alert watches its objective",
        "Either Prometheus does not scrape the operator (monitoring.podMonitor or monitoring.scrapeAnnotations of the "
        "chart), or the operator does not watch the namespace (watchNamespaces), or the LLMService is gone and its "
        "Deployments were orphaned: kubectl get llms,deploy -n {{ $labels.namespace }}.",
    )


def _turned_away() -> Iterator[Alert]:
    """Those who waited for a replica in vain reach no engine: no rate of engines knows of them."""
    outcome = f'{OURS}, outcome="turned_away"'
    lately = f"round(sum by ({SERVICE}) (increase(holdfast_activator_requests_total{{{outcome}}}[{_LASTING}])))"
    for severity, many in (("critical", f">= {LEAST_BAD}"), ("warning", f"> 0 < {LEAST_BAD}")):
        yield Alert(
            "HoldfastRequestsTurnedAway",
            f"{lately} {many} and on ({SERVICE}) {of(series.OBJECTIVE)}",
            "0m",
            severity,
            f"{_NAME}: its activator turned {{{{ $value }}}} requests away within {_LASTING}, with a 503",
            "No replica came in time, or more requests wait than it holds (holdfast_activator_waiting_requests; 512 "
            f"requests, 64 MiB, 15 minutes). `kubectl describe {_LLMS}`: the message of Ready says what the replica "
            "waits for. If the wake-up is as it always is, it is too long for these clients: scaling.min: 1, a floor "
            "under scaling.schedules, or a model.cache on a volume.",
        )


def _capacity() -> Iterator[Alert]:
    yield Alert(
        "HoldfastCapacityLimited",
        f"({_lasting(ConditionType.CAPACITY_AVAILABLE)}) or on ({SERVICE})"
        f" ({_lasting(ConditionType.SLO_MET)} and {_condition(ConditionType.SLO_MET, Reason.CAPACITY_LIMITED)})",
        "1m",
        "warning",
        f"{_NAME} wants more accelerators than can be had: {{{{ $labels.reason }}}}",
        f"`kubectl describe {_LLMS}`: the message of CapacityAvailable says what one more would give. Add nodes, list "
        "a further entry under spec.accelerators, raise a ResourceQuota, or raise spec.priority above others'.",
    )
    yield Alert(
        "HoldfastSizeLimited",
        _condition(ConditionType.SLO_MET, Reason.AT_MAXIMUM, Reason.BUDGET_LIMITED),
        "10m",
        "warning",
        f"{_NAME} misses its objective at the largest size it may have: {{{{ $labels.reason }}}}",
        "AtMaximum: raise spec.scaling.max, or the max of an accelerator. BudgetLimited: raise "
        "spec.budget.maxCostPerHour. Or relax slo.objective.",
    )
    yield Alert(
        "HoldfastObjectiveInfeasible",
        _condition(ConditionType.SLO_MET, Reason.SLO_INFEASIBLE),
        "10m",
        "warning",
        f"{_NAME}: no number of replicas keeps its objectives",
        "Relax spec.slo.ttft or spec.slo.tpot, or list a faster accelerator or a higher count under "
        "spec.accelerators; `holdfast plan` says what would be possible.",
    )
    yield Alert(
        "HoldfastPinned",
        _condition(ConditionType.SCALING_ACTIVE, Reason.PINNED),
        "1d",
        "info",
        f"{_NAME} has been pinned to one size for a day: it does not follow its objective",
        "Remove spec.replicas where that was forgotten: kubectl patch "
        f'{_LLMS} --type=json -p \'[{{"op":"remove","path":"/spec/replicas"}}]\'.',
    )


def _replicas() -> Iterator[Alert]:
    yield Alert(
        "HoldfastEngineHung",
        f"max by ({SERVICE}) ({of(series.CONDITION, reason=str(Reason.ENGINE_HUNG))})",
        "2m",
        "warning",
        f"{_NAME}: Ready replicas hold requests and make no token",
        f"`kubectl describe {_LLMS}` names them. The operator replaces them where it may (not while spec.replicas or "
        "mode: Recommend holds the size); if most hang, look for what they share: driver, storage, network.",
    )
    yield Alert(
        "HoldfastEngineLagging",
        f"max by ({SERVICE}) ({of(series.CONDITION, reason=str(Reason.ENGINE_LAGGING))})",
        "2m",
        "warning",
        f"{_NAME}: a Ready replica answers late what others answer in time",
        f"`kubectl describe {_LLMS}` names it. The operator replaces it where it may (not while spec.replicas or mode: "
        "Recommend holds the size); if the next one on that node lags as well, look at its GPU (throttled, shared).",
    )
    yield Alert(
        "HoldfastReplicasNeverReady",
        f"time() - {of(series.WAITS_SINCE)}"
        f" > on ({SERVICE}) group_left () clamp_min({of(series.START_LIMIT)}, {_NEVER_SECONDS})",
        "1m",
        "warning",
        f"{_NAME}: a {{{{ $labels.holdfast_accelerator }}}} replica is {{{{ $labels.state }}}} and has not been Ready "
        "for {{ $value | humanizeDuration }}",
        "unschedulable: no node fits accelerators[].nodeSelector and tolerations, or none is free. failing: kubectl "
        "logs of the pod; usual causes are model.maxModelLen above what the GPU's memory holds, and engine.args. "
        "starting: a model.cache on a volume keeps weights and compiled kernels.",
    )
    yield Alert(
        "HoldfastStalled",
        f"{of(series.CONDITION, type=str(ConditionType.STALLED), status='True')}",
        "10m",
        "warning",
        f"{_NAME} cannot be brought to what its spec says: {{{{ $labels.reason }}}}",
        f"`kubectl describe {_LLMS}`: the message of Stalled names the field and the remedy; what ran before goes on.",
    )
    yield Alert(
        "HoldfastFastLoopOff",
        f"{of(series.PLUGINS_OFF)} > 0",
        "10m",
        "warning",
        f"{_NAME}: {{{{ $value }}}} engines run without the fast loop, which had to turn itself off",
        "They serve on with vLLM's own scheduling, and lose goodput in overload. The pod's log says why (`holdfast: "
        'off`); delete the pod to start it anew, or set spec.engine.plugin to "Off".',
    )


def _operator() -> Iterator[Alert]:
    yield Alert(
        "HoldfastAbsent",
        f"absent({of('holdfast_leader')})",
        "5m",
        "critical",
        "No Holdfast operator is seen: services keep their last size",
        "Does it run (kubectl get pods -A -l app.kubernetes.io/name=holdfast), and does Prometheus scrape it "
        "(monitoring.podMonitor.enabled or monitoring.scrapeAnnotations of the chart)?",
    )
    yield Alert(
        "HoldfastNobodyLeads",
        f"sum by (namespace) ({of('holdfast_leader')}) != 1",
        "2m",
        "critical",
        "{{ $value }} operators lead in {{ $labels.namespace }}: services keep their last size, or two may write",
        "kubectl get lease -n {{ $labels.namespace }}, then the operator's logs: it says whether it cannot reach the "
        "API server or may not renew (settings.leaseName, settings.leaseNamespace and their Role).",
    )
    yield Alert(
        "HoldfastNotDeciding",
        f"sum by (namespace) (increase({of('holdfast_tick_seconds_count')}[5m])) == 0"
        f" and on (namespace) (max by (namespace) ({of('holdfast_leader')}) == 1)",
        "2m",
        "critical",
        "The operator in {{ $labels.namespace }} leads and decides nothing",
        "Its log says what a tick waits for: Prometheus (settings.prometheusUrl) or the API server. /healthz restarts "
        "a process whose loop is stuck.",
    )
    yield Alert(
        "HoldfastTicksSlow",
        f"histogram_quantile(0.99, sum by (namespace, le) (rate({of('holdfast_tick_seconds_bucket')}[10m])))"
        f" > {_SLOW_TICK_SECONDS}",
        "15m",
        "warning",
        "One tick in a hundred of the operator in {{ $labels.namespace }} takes {{ $value | humanizeDuration }}",
        "holdfast_tick_phase_seconds says in which phase. metrics: a slower settings.scrapeInterval or a larger "
        "Prometheus; act: the API server throttles; decide: raise the operator's CPU, or split the cluster "
        "(watchNamespaces).",
    )
    yield Alert(
        "HoldfastErrors",
        f"sum by (namespace, phase) (increase({of('holdfast_errors_total')}[15m])) > 10",
        "5m",
        "warning",
        "The operator in {{ $labels.namespace }} keeps failing in the phase {{ $labels.phase }}",
        "Its log has each failure with the service it belongs to; the condition Stalled of that service repeats what "
        "the API server refused.",
    )


def _condition(kind: ConditionType, *reasons: Reason) -> str:
    """A condition that is False, with one of these reasons if any is named."""
    named = {"reason": any_of([str(reason) for reason in reasons])} if reasons else {}
    return of(series.CONDITION, type=str(kind), status="False", **named)


def _lasting(kind: ConditionType, span: str = _LASTING) -> str:
    """A condition that is False and was not True for a while, whatever its reasons were meanwhile."""
    met = f"count_over_time({of(series.CONDITION, type=str(kind), status='True')}[{span}])"
    known = f"{of(series.OBJECTIVE)} offset {span}"
    return f"{_condition(kind)} unless on ({SERVICE}) {met} and on ({SERVICE}) {known}"

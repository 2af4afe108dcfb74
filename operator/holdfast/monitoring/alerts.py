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
from holdfast.monitoring.series import any_of, by, duration, of
from holdfast.observe.series.promql import OURS
from holdfast.observe.series.queries import SERVICE
from holdfast.policy.estimate.cold_start import LONGEST_SECONDS

LEAST_BAD = 5
"""Bad requests below which nobody is called: with little traffic, one is a large share."""

_SLOW_TICK_SECONDS = 5
_LASTING = "10m"
_LONGEST_WAKING = duration(STARTS * LONGEST_SECONDS)
"""No wake-up is waited for any longer, whatever begins anew meanwhile."""

_NEVER_SECONDS = 1800
_NAME = "{{ $labels.namespace }}/{{ $labels.holdfast_service }}"
_NO_POOL = 'holdfast_service=~"[^.]+"'
_NO_PREFILL = of(series.CONDITION, type=str(ConditionType.READY), reason=str(Reason.PREFILL_NOT_READY))
_CLASS = "The label class, if there is one, says which class of requests. "
_LLMS = "llms -n {{ $labels.namespace }} {{ $labels.holdfast_service }}"
_EXPLAIN = f"`holdfast explain {_NAME}` shows the measurements, the decision and its reasons"


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
                _CLASS
                + "Check the top row of the dashboard: conditions, and bad requests by cause. `ttft`, `tpot`: more "
                "replicas are needed; check whether they start, scaling.max, budget.maxCostPerHour and accelerators. "
                "`rejected`: overload. `error`: the engine fails; see kubectl logs of its pods. "
                f"{_EXPLAIN}. If nothing else helps, relax slo.ttft, slo.tpot or slo.objective.",
                (("burn", burn), ("tier", tier.name)),
            )


def _burn(look: Look, tier: Tier) -> str:
    on = f"on ({by('class')})"
    limit = f"> {on} {of(series.BURN_LIMIT, burn=look.limit)}"
    bad = f"sum_over_time({of(series.TIERED_BAD, tier=tier.name)}[{duration(look.long_seconds)}])"
    many = f"{bad} * {INTERVAL_SECONDS:.0f} >= {LEAST_BAD}"
    return (
        f"{_bad_share(tier, look.long_seconds)} {limit}"
        f" and {on} ({_bad_share(tier, look.short_seconds)} {limit})"
        f" and {on} ({many})"
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
        f" unless on ({SERVICE}) count_over_time({_NO_PREFILL}[{_LASTING}])"
        f" and on ({SERVICE}) (sum by ({SERVICE}) ({of(series.REPLICAS, state='desired')}) > 0)",
        "1m",
        "critical",
        f"{_NAME} has no ready replica: {{{{ $labels.reason }}}}",
        f"Run `kubectl describe {_LLMS}`: the message of Ready names the field and the fix (spec.model.uri, "
        "engine.image, a Secret, a volume, GPUs), and has the last output of the engine.",
    )
    yield Alert(
        "HoldfastPrefillDown",
        _NO_PREFILL,
        _LASTING,
        "warning",
        f"{_NAME} has no ready prefill engine, so its replicas serve whole requests",
        f"Run `kubectl describe {_LLMS}`: the message of Ready quotes what Kubernetes says of one of its pods; "
        f"`kubectl describe pods -n {{{{ $labels.namespace }}}} -l holdfast.dev/service="
        "{{ $labels.holdfast_service }}.prefill` shows all of them. Answers are late meanwhile where prompts are long.",
    )
    yield from _turned_away()
    yield Alert(
        "HoldfastSloMissed",
        f"{of(series.CLASS_BUDGET_LEFT)} < 0",
        "15m",
        "warning",
        f"{_NAME}: fewer requests were good over slo.window than the objective says; "
        "{{ $value | humanizePercentage }} of the error budget is left",
        _CLASS
        + f"Run `kubectl describe {_LLMS}`: the reason of SLOMet says whether capacity is starting (BelowCapacity, "
        "ColdStart), is limited (CapacityLimited, AtMaximum, BudgetLimited: raise the limit or add nodes), or would "
        "not help (SLOInfeasible, EngineErrors, EngineSlow, CauseUnknown: relax the objectives or do what it says).",
    )
    yield Alert(
        "HoldfastMetricsMissing",
        f"{_lasting(ConditionType.METRICS_AVAILABLE)} unless on ({SERVICE})"
        f" last_over_time({of(series.WAKING_UNTIL)}[{_LASTING}])"
        f" or {_lasting(ConditionType.METRICS_AVAILABLE, _LONGEST_WAKING)}",
        "1m",
        "warning",
        f"{_NAME} is sized without complete metrics: {{{{ $labels.reason }}}}",
        f"The size does not shrink meanwhile. Run `kubectl describe {_LLMS}`: the message of MetricsAvailable names "
        "the missing label or pod. Check the targets in Prometheus, settings.prometheusUrl, settings.scrapeInterval, "
        "and the labels that docs/operations.md requires.",
    )
    yield _unknown()


def _unknown() -> Alert:
    return Alert(
        "HoldfastServiceUnknown",
        # By namespace: a pod there can name any number of services. What has a dot is a pool of one.
        f"count by (namespace) (count by ({SERVICE}) (vllm:num_requests_running{{{_NO_POOL}}})"
        f" unless on ({SERVICE}) {of(series.OBJECTIVE)})",
        "15m",
        "warning",
        "namespace {{ $labels.namespace }} has engines of {{ $value }} services without metrics of the operator, so no "
        "alert watches their objectives",
        f"Ask Prometheus for their names: `count by ({SERVICE}) (vllm:num_requests_running)`. Check that Prometheus "
        "scrapes the operator (monitoring.podMonitor or monitoring.scrapeAnnotations of the chart), that the operator "
        "watches the namespace (watchNamespaces), and that each LLMService still exists and its Deployments are not "
        "orphaned: kubectl get llms,deploy -n {{ $labels.namespace }}.",
    )


def _turned_away() -> Iterator[Alert]:
    """Requests that the activator gave up reach no engine, so no engine metric counts them."""
    outcome = f'{OURS}, outcome="turned_away"'
    lately = f"round(sum by ({SERVICE}) (increase(holdfast_activator_requests_total{{{outcome}}}[{_LASTING}])))"
    for severity, many in (("critical", f">= {LEAST_BAD}"), ("warning", f"> 0 < {LEAST_BAD}")):
        yield Alert(
            "HoldfastRequestsTurnedAway",
            f"{lately} {many} and on ({SERVICE}) {of(series.OBJECTIVE)}",
            "0m",
            severity,
            f"{_NAME}: its activator rejected {{{{ $value }}}} requests with 503 within {_LASTING}",
            "No replica was ready in time, or more requests waited than the activator holds "
            "(holdfast_activator_waiting_requests; 512 requests, 64 MiB, 15 minutes). "
            f"Run `kubectl describe {_LLMS}`: the message of Ready says what the replica waits for. If cold starts are "
            "generally too long for these clients, set scaling.min: 1, add a schedule under scaling.schedules, or put "
            "model.cache on a volume.",
        )


def _capacity() -> Iterator[Alert]:
    yield Alert(
        "HoldfastCapacityLimited",
        f"({_lasting(ConditionType.CAPACITY_AVAILABLE)}) or on ({SERVICE})"
        f" ({_lasting(ConditionType.SLO_MET)} and {_condition(ConditionType.SLO_MET, Reason.CAPACITY_LIMITED)})",
        "1m",
        "warning",
        f"{_NAME} needs more accelerators than are available: {{{{ $labels.reason }}}}",
        f"Run `kubectl describe {_LLMS}`: the message of CapacityAvailable says what one more would add. Add nodes, "
        "list another entry under spec.accelerators, raise a ResourceQuota, or raise spec.priority.",
    )
    yield Alert(
        "HoldfastSizeLimited",
        _condition(ConditionType.SLO_MET, Reason.AT_MAXIMUM, Reason.BUDGET_LIMITED),
        "10m",
        "warning",
        f"{_NAME} misses its objective at its maximum size: {{{{ $labels.reason }}}}",
        "AtMaximum: raise spec.scaling.max, or the max of an accelerator. BudgetLimited: raise "
        "spec.budget.maxCostPerHour. Otherwise relax slo.objective.",
    )
    yield Alert(
        "HoldfastObjectiveInfeasible",
        _condition(ConditionType.SLO_MET, Reason.SLO_INFEASIBLE),
        "10m",
        "warning",
        f"{_NAME}: its objectives cannot be met with any number of replicas",
        "Relax spec.slo.ttft or spec.slo.tpot, or list a faster accelerator or a higher count under "
        "spec.accelerators; run `holdfast plan` to see what is possible.",
    )
    yield Alert(
        "HoldfastPinnedOutsideManifest",
        _condition(ConditionType.SCALING_ACTIVE, Reason.PINNED_OUTSIDE_MANIFEST),
        "10m",
        "warning",
        f"{_NAME} is pinned to one size that the applied manifest does not set",
        "Somebody set spec.replicas outside of the manifest, for example with `kubectl scale`. Applying the manifest "
        "again may keep it. Add it to the manifest, or remove it: kubectl patch "
        f'{_LLMS} --type=json -p \'[{{"op":"remove","path":"/spec/replicas"}}]\'.',
    )
    yield Alert(
        "HoldfastPinned",
        _condition(ConditionType.SCALING_ACTIVE, Reason.PINNED),
        "1d",
        "info",
        f"{_NAME} has been pinned to one size for a day, so it does not follow its objective",
        "If the pin is no longer needed, remove spec.replicas: kubectl patch "
        f'{_LLMS} --type=json -p \'[{{"op":"remove","path":"/spec/replicas"}}]\'.',
    )


def _engines() -> Iterator[Alert]:
    yield Alert(
        "HoldfastEngineHung",
        f"max by ({SERVICE}) ({of(series.CONDITION, reason=str(Reason.ENGINE_HUNG))})",
        "2m",
        "warning",
        f"{_NAME}: Ready replicas hold requests but produce no tokens",
        f"`kubectl describe {_LLMS}` names them. The operator replaces them, except with spec.replicas or mode: "
        "Recommend: then delete their pods. If most are stalled, check what they share: driver, storage, network.",
    )
    yield Alert(
        "HoldfastEngineErrors",
        f"max by ({SERVICE}) ({of(series.CONDITION, reason=str(Reason.ENGINE_ERRORS))})",
        "2m",
        "warning",
        f"{_NAME}: requests end with an error of the engine",
        f"`kubectl describe {_LLMS}` names the replica, or says that errors are spread. The operator replaces one "
        "replica that fails alone, except with spec.replicas or mode: Recommend: then delete its pod. Else read the "
        "engine logs.",
    )
    yield Alert(
        "HoldfastEngineLagging",
        f"max by ({SERVICE}) ({of(series.CONDITION, reason=str(Reason.ENGINE_LAGGING))})",
        "2m",
        "warning",
        f"{_NAME}: a Ready replica is a straggler: it misses the objectives while its peers meet them",
        f"`kubectl describe {_LLMS}` names it. The operator replaces it, except with spec.replicas or mode: Recommend: "
        "then delete its pod. If its replacement on that node is slow as well, check the GPU (throttled, shared).",
    )


def _replicas() -> Iterator[Alert]:
    yield from _engines()
    yield Alert(
        "HoldfastReplicasNeverReady",
        f"time() - {of(series.WAITS_SINCE)}"
        f" > on ({SERVICE}) group_left () clamp_min({of(series.START_LIMIT)}, {_NEVER_SECONDS})",
        "1m",
        "warning",
        f"{_NAME}: a {{{{ $labels.holdfast_accelerator }}}} replica is {{{{ $labels.state }}}} and has not been Ready "
        "for {{ $value | humanizeDuration }}",
        "unschedulable: no free node matches accelerators[].nodeSelector and tolerations; add nodes. failing: see "
        "kubectl logs of the pod; usual causes are model.maxModelLen too large for the GPU memory, and engine.args. "
        "starting: put model.cache on a volume, so that weights and compiled kernels are loaded faster.",
    )
    yield Alert(
        "HoldfastStalled",
        f"{of(series.CONDITION, type=str(ConditionType.STALLED), status='True')}",
        "10m",
        "warning",
        f"{_NAME}: its spec cannot be applied: {{{{ $labels.reason }}}}",
        (
            f"Existing replicas run on. Run `kubectl describe {_LLMS}`: "
            "the message of Stalled names the field and the fix."
        ),
    )
    yield Alert(
        "HoldfastFastLoopOff",
        f"{of(series.PLUGINS_OFF)} > 0",
        "10m",
        "warning",
        f"{_NAME}: {{{{ $value }}}} engines run without the fast loop, which turned itself off",
        "They serve with vLLM's own scheduler and lose goodput in overload. See the pod log for the cause (`holdfast: "
        "off`). Delete the pod to restart it, or set spec.engine.plugin to Disabled.",
    )


def _operator() -> Iterator[Alert]:
    yield Alert(
        "HoldfastAbsent",
        f"absent({of('holdfast_leader')})",
        "5m",
        "critical",
        "No metrics of a Holdfast operator; if none runs, services keep their last size",
        "Check that it runs (kubectl get pods -A -l app.kubernetes.io/name=holdfast), and that Prometheus scrapes it "
        "(monitoring.podMonitor.enabled or monitoring.scrapeAnnotations of the chart).",
    )
    yield Alert(
        "HoldfastNobodyLeads",
        f"sum by (namespace) ({of('holdfast_leader')}) != 1",
        "2m",
        "critical",
        (
            "{{ $value }} operators lead in {{ $labels.namespace }} instead of 1: "
            "services keep their last size, or two may write"
        ),
        "Run kubectl get lease -n {{ $labels.namespace }} and see the operator's logs. Check that it reaches the API "
        "server and may renew the Lease (settings.leaseName, settings.leaseNamespace and their Role).",
    )
    yield Alert(
        "HoldfastNotDeciding",
        f"sum by (namespace) (increase({of('holdfast_tick_seconds_count')}[5m])) == 0"
        f" and on (namespace) (max by (namespace) ({of('holdfast_leader')}) == 1)",
        "2m",
        "critical",
        "The operator in {{ $labels.namespace }} leads but makes no decisions",
        "See its log for what a tick waits for: Prometheus (settings.prometheusUrl) or the API server. A process with "
        "a stuck loop fails /healthz and is restarted.",
    )
    yield from _slow_or_failing()


def _slow_or_failing() -> Iterator[Alert]:
    yield Alert(
        "HoldfastTicksSlow",
        f"histogram_quantile(0.99, sum by (namespace, le) (rate({of('holdfast_tick_seconds_bucket')}[10m])))"
        f" > {_SLOW_TICK_SECONDS}",
        "15m",
        "warning",
        "The p99 tick of the operator in {{ $labels.namespace }} takes {{ $value | humanizeDuration }}",
        "Check holdfast_tick_phase_seconds for the slow phase. metrics: raise settings.scrapeInterval or give "
        "Prometheus more resources. act: the API server throttles requests. decide: raise the operator's CPU, or split "
        "the cluster (watchNamespaces).",
    )
    yield Alert(
        "HoldfastErrors",
        f"sum by (namespace, phase) (increase({of('holdfast_errors_total')}[15m])) > 10",
        "5m",
        "warning",
        "The operator in {{ $labels.namespace }} keeps failing in the phase {{ $labels.phase }}",
        "See its log: each failure names its service. The condition Stalled of that service has the answer of the API "
        "server.",
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

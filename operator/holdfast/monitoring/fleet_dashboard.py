"""All services: whose objective does not hold, who wants more than there is, GPUs, and what they cost."""

from __future__ import annotations

from holdfast.api.conditions import ConditionType
from holdfast.api.reasons import Reason
from holdfast.monitoring import series
from holdfast.monitoring.panels import Dashboard, Row, Target, Variable, bars, lines, stat, table
from holdfast.monitoring.series import any_of, of
from holdfast.monitoring.views import (
    BAD,
    GOOD,
    RECENT,
    RUNNING_STATES,
    VERDICTS,
    burn_rate,
    summed,
    summed_over_time,
    wrong_conditions,
)

_LIMITED = (Reason.CAPACITY_LIMITED, Reason.AT_MAXIMUM, Reason.BUDGET_LIMITED)
_NAMES = ("namespace", "holdfast_service")
_TO_SERVICE = (
    "holdfast_service",
    "/d/holdfast-service?var-namespace=${__data.fields.namespace:percentencode}"
    "&var-service=${__data.fields.holdfast_service:percentencode}",
)


def fleet_dashboard() -> Dashboard:
    """Return the dashboard of all services."""
    return Dashboard(
        uid="holdfast-fleet",
        title="Holdfast / Fleet",
        about="All LLMServices: whose objective does not hold, who wants more than there is, GPUs, and what they cost.",
        rows=(_holds(), _needs(), _services(), _gpus(), _spend(), _operator()),
        variables=(
            Variable("namespace", "Namespace", f"label_values({of(series.OBJECTIVE)}, namespace)", several=True),
        ),
    )


def _all(name: str, **labels: str) -> str:
    return of(name, namespace="~$namespace", **labels)


def _holds() -> Row:
    good, judged = (f"sum({summed_over_time(_all(name))})" for name in (series.GOOD, series.JUDGED))
    states = f"count by (status, reason) ({_all(series.CONDITION, type='SLOMet')})"
    missed = f"count({_all(series.CONDITION, type='SLOMet', status='False')}) or vector(0)"
    return Row(
        "Do the objectives hold?",
        (
            stat("Services that miss theirs", Target(missed, "services"), steps=((None, GOOD), (1.0, BAD))),
            bars("Services by SLO state", Target(states, "{{status}}: {{reason}}"), colors=VERDICTS),
            stat("Good requests, of all", Target(f"{good} / ({judged} > 0)", f"over {RECENT}"), unit="percentunit"),
            stat(
                "Spend per hour",
                Target(f"sum({_all(series.COST)})", "dollars"),
                about="Of services with prices.",
                unit="currencyUSD",
            ),
            stat(
                "Operators that lead",
                Target(f"sum({of(series.LEADERS)})", "leading"),
                about="One per release of the chart; with none, every service keeps its size.",
                steps=((None, BAD), (1.0, GOOD)),
            ),
        ),
    )


def _needs() -> Row:
    firing = _all("ALERTS", alertname="~Holdfast.+", alertstate="firing")
    no_room = _all(series.CONDITION, type=str(ConditionType.CAPACITY_AVAILABLE), status="False")
    reasons = any_of([str(reason) for reason in _LIMITED])
    limited = _all(series.CONDITION, type=str(ConditionType.SLO_MET), status="False", reason=reasons)
    return Row(
        "Who needs somebody?",
        (
            table(
                "Alerts",
                Target(firing),
                columns=("alertname", "severity", *_NAMES, "reason"),
                link=_TO_SERVICE,
            ),
            table(
                "Who wants more than there is",
                Target(f"{no_room} or {limited}"),
                columns=(*_NAMES, "reason"),
                link=_TO_SERVICE,
            ),
            table(
                "Conditions that are not as they should be",
                Target(wrong_conditions(_all)),
                columns=(*_NAMES, "type", "reason"),
                link=_TO_SERVICE,
            ),
        ),
    )


def _services() -> Row:
    shown = (
        (Target(summed(_all(series.ATTAINMENT)), "good"), "percentunit"),
        (Target(summed(_all(series.OBJECTIVE)), "objective"), "percentunit"),
        (Target(summed(_all(series.BUDGET_LEFT)), "budget left"), "percentunit"),
        (Target(burn_rate(_all), "burn rate"), "none"),
        (Target(summed(_all(series.ARRIVED)), "arriving"), "reqps"),
        (Target(summed(_all(series.REPLICAS, state="ready")), "ready"), "none"),
        (Target(summed(_all(series.REPLICAS, state="desired")), "desired"), "none"),
        (Target(summed(_all(series.COST)), "per hour"), "currencyUSD"),
        (Target(summed(_all(series.COST_OF_TOKENS)), "per million tokens"), "currencyUSD"),
    )
    return Row(
        "All services",
        (
            table(
                "Services",
                *(target for target, _ in shown),
                width=24,
                height=12,
                columns=_NAMES,
                link=_TO_SERVICE,
                units=tuple((target.legend, unit) for target, unit in shown),
            ),
        ),
    )


def _gpus() -> Row:
    held = f"sum by (holdfast_accelerator, state) ({_all(series.GPUS, state=any_of(RUNNING_STATES))})"
    nodes = f"max by (product, resource, state) ({of(series.NODE_GPUS)})"
    return Row(
        "GPUs",
        (
            lines(
                "Of services, by accelerator and state",
                Target(held, "{{state}} {{holdfast_accelerator}}"),
                about="unschedulable ones are wanted and have no node.",
                width=12,
                stacked=True,
            ),
            lines(
                "Of nodes, by product",
                Target(nodes, "{{state}} {{product}}"),
                about="used: by replicas of LLMServices; what pods of others hold is not known here.",
                width=12,
                stacked=True,
            ),
        ),
    )


def _spend() -> Row:
    name = "{{namespace}}/{{holdfast_service}}"
    return Row(
        "Spend",
        (
            lines(
                "Per hour, by service",
                Target(f"topk(10, {_all(series.COST)})", name),
                about="The ten dearest.",
                unit="currencyUSD",
                width=12,
                stacked=True,
            ),
            lines(
                "Per thousand good requests",
                Target(f"topk(10, {_all(series.COST_OF_GOOD)})", name),
                about="The ten dearest.",
                unit="currencyUSD",
                width=12,
            ),
        ),
    )


def _operator() -> Row:
    tick = f"sum by (le) ({summed_over_time(of(series.TICK_BUCKETS))})"
    changes = f"sum by (action, reason) ({of(series.CHANGES)}) > 0"
    errors = f"sum by (phase) ({of(series.ERRORS)}) > 0"
    shares = (("p50", 0.5), ("p99", 0.99))
    return Row(
        "The operator",
        (
            lines(
                "One tick over all services",
                *(Target(f"histogram_quantile({share}, {tick})", name) for name, share in shares),
                unit="s",
            ),
            lines("Changes in 15 minutes, by reason", Target(changes, "{{action}} {{reason}}")),
            lines("Failures in 15 minutes", Target(errors, "{{phase}}")),
        ),
    )

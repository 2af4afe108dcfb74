"""One service: whether its objective holds, why not, and what is done about it."""

from __future__ import annotations

from holdfast.domain.burn_rate import FAST, SLOW
from holdfast.monitoring import series
from holdfast.monitoring.panels import Annotation, Dashboard, Panel, Row, Target, Variable, lines, stat, table
from holdfast.monitoring.rules import OBJECTIVES
from holdfast.monitoring.series import any_of, of
from holdfast.monitoring.views import (
    BAD,
    GOOD,
    RECENT,
    RUNNING_STATES,
    STATES,
    VERDICTS,
    WARN,
    burn_rate,
    class_good_share,
    summed,
    wrong_conditions,
)
from holdfast.observe.series.queries import CACHE_LABELS
from holdfast_engine.stats.engine_info import INFO_LABELS

_LATENCIES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Between tokens",
    "e2e": "End to end",
}


def service_dashboard() -> Dashboard:
    """Return the dashboard of one service."""
    services = of(series.OBJECTIVE, namespace="$namespace")
    return Dashboard(
        uid="holdfast-service",
        title="Holdfast / Service",
        about="Whether the objective of one LLMService holds, why not, and what the system does about it.",
        rows=(_holds(), _why_not(), _requests(), _latency(), _doing(), _engines(), _cost()),
        variables=(
            Variable("namespace", "Namespace", f"label_values({of(series.OBJECTIVE)}, namespace)"),
            Variable("service", "Service", f"label_values({services}, holdfast_service)"),
        ),
        annotations=(
            Annotation(
                "Decisions",
                f"{_one(series.LAST_CHANGE)} * 1000",
                "{{action}}",
                "{{reason}}: holdfast explain {{namespace}}/{{holdfast_service}} --at TIME says why, "
                "while its Event is kept (an hour by default)",
            ),
        ),
    )


def _one(name: str, **labels: str) -> str:
    return of(name, namespace="$namespace", holdfast_service="$service", **labels)


def _holds() -> Row:
    verdict = Target(_one(series.CONDITION, type="SLOMet"), "{{status}}: {{reason}}")
    attained = Target(_one(series.ATTAINMENT), "over slo.window")
    objective = Target(_one(series.OBJECTIVE), "objective")
    alarming = tuple(window.budget_share * window.divisor for window in (SLOW, FAST))
    ready = Target(summed(_one(series.REPLICAS, state="ready")), "ready")
    desired = Target(summed(_one(series.REPLICAS, state="desired")), "desired")
    return Row(
        "Does the objective hold?",
        (
            stat("SLO", verdict, about="The condition SLOMet.", width=6, by_name=True, colors=VERDICTS),
            stat(
                "Good requests, of all judged",
                attained,
                objective,
                about="Absent while too few requests were judged (WarmingUp).",
                unit="percentunit",
                width=6,
            ),
            stat(
                "Error budget left",
                Target(_one(series.BUDGET_LEFT), "left"),
                about="Below zero the objective is missed.",
                unit="percentunit",
                steps=((None, BAD), (0.0, WARN), (0.25, GOOD)),
            ),
            stat(
                "Burn rate",
                Target(burn_rate(_one), f"over {RECENT}"),
                about="1 spends the budget exactly over slo.window; coloured from where alerts fire.",
                unit="none",
                steps=((None, GOOD), (alarming[0], WARN), (alarming[1], BAD)),
            ),
            stat("Replicas", ready, desired),
        ),
    )


def _why_not() -> Row:
    firing = _one("ALERTS", alertname="~Holdfast.+", alertstate="firing")
    return Row(
        "Why not?",
        (
            table(
                "Conditions that are not as they should be",
                Target(wrong_conditions(_one)),
                about="docs/operations.md says for each reason what to do.",
                columns=("type", "status", "reason"),
            ),
            table("Alerts", Target(firing), columns=("alertname", "severity", "reason")),
            lines(
                "Bad requests by cause",
                Target(_one(series.BAD_BY_CAUSE), "{{cause}}"),
                about="ttft, tpot, e2e: outside that objective. error, killed: it failed. rejected: turned away.",
                unit="reqps",
                stacked=True,
            ),
        ),
    )


def _requests() -> Row:
    return Row(
        "Requests",
        (
            lines(
                "Arriving, good, bad",
                Target(_one(series.ARRIVED), "arriving"),
                Target(_one(series.GOOD), "good"),
                Target(_one(series.BAD), "bad"),
                unit="reqps",
                colors=(("^good", GOOD), ("^bad", BAD)),
            ),
            lines(
                "Good share",
                Target(class_good_share(_one), f"over {RECENT} {{{{class}}}}"),
                Target(_one(series.CLASS_OBJECTIVE), "objective {{class}}"),
                about="Good of all judged requests, by class where there are some: a ratio of sums.",
                unit="percentunit",
                least=None,
                most=1.0,
                dashed="^objective",
            ),
            lines(
                "Error budget left",
                Target(_one(series.CLASS_BUDGET_LEFT), "left {{class}}"),
                about="By class where there are some; no name is requests without one. Below zero it is missed.",
                unit="percentunit",
                least=None,
                most=1.0,
            ),
        ),
    )


def _latency() -> Row:
    return Row("Latency, and its objective", tuple(_percentiles(*latency) for latency in _LATENCIES.items()))


def _percentiles(latency: str, title: str) -> Panel:
    shown = [Target(_one(name, latency=latency), name.rpartition(":")[2]) for _, name in series.QUANTILES]
    if latency in OBJECTIVES:
        shown.append(Target(_one(series.BOUND, latency=latency), "objective"))
    return lines(
        title,
        *shown,
        about="Quantiles of all engines' buckets together, over two minutes.",
        unit="s",
        width=6,
        dashed="^objective",
    )


def _doing() -> Row:
    running = summed(_one(series.REPLICAS, state=any_of(RUNNING_STATES)), "state")
    place = series.by("holdfast_accelerator")
    carried = summed(f"{_one(series.CAPACITY)} * on ({place}) {_one(series.REPLICAS, state='ready')}")
    return Row(
        "What the system does about it",
        (
            lines(
                "Replicas by state",
                Target(running, "{{state}}"),
                Target(summed(_one(series.REPLICAS, state="desired")), "desired"),
                Target(_one(series.REPLICAS_LIMIT), "{{limit}}"),
                about="Marks on the time axis are decisions.",
                width=10,
                stacked=True,
                colors=STATES,
                dashed="^(desired|min|max|pinned)",
            ),
            lines(
                "Load, and what the replicas carry",
                Target(_one(series.ARRIVED), "arriving"),
                Target(_one(series.FORECAST), "forecast"),
                Target(carried, "carried by ready replicas"),
                about="The forecast is for the time in which a replica ordered now would serve.",
                unit="reqps",
                dashed="^forecast",
            ),
            table(
                "Last change",
                Target(f"{_one(series.LAST_CHANGE)} * 1000", "when"),
                about="holdfast explain NAMESPACE/NAME says what was known and which candidates lost.",
                width=6,
                columns=("action", "reason"),
                units=(("when", "dateTimeFromNow"),),
            ),
        ),
    )


def _engines() -> Row:
    return Row("Engines", (*_engine_load(), *_engine_work(), *_engine_facts()))


def _engine_load() -> tuple[Panel, ...]:
    return (
        lines("Requests in engines", Target(_one(series.IN_FLIGHT), "{{state}}"), width=6),
        lines(
            "KV cache in use",
            Target(_one(series.KV_MEAN), "mean"),
            Target(_one(series.KV_MOST), "fullest engine"),
            unit="percentunit",
            width=6,
            most=1.0,
        ),
        lines(
            "Preemptions",
            Target(_one(series.PREEMPTIONS), "per second"),
            about="Sequences put back because the KV cache was full.",
            unit="ops",
            width=6,
        ),
        lines(
            "Limits in force",
            Target(_one(series.ENGINE_LIMIT), "{{name}}"),
            about="Active sequences, and tokens per step: of the fast loop, in the engine with the lowest; without "
            "it, what engines were started with.",
            width=6,
        ),
    )


def _engine_work() -> tuple[Panel, ...]:
    use = Target(_one(series.GPU_USE), "{{of}} on {{holdfast_accelerator}}")
    return (
        lines("Tokens per second", Target(_one(series.TOKENS), "{{kind}}"), width=6),
        lines(
            "Accepted draft tokens",
            Target(_one(series.ACCEPTED_DRAFTS), "per draft on {{holdfast_accelerator}}"),
            about="Tokens that a decode step adds to the one it always makes. Needs speculative decoding.",
            width=6,
        ),
        lines(
            "Roofline by phase",
            Target(_one(series.ROOF), "{{phase}}: {{of}} on {{holdfast_accelerator}}"),
            about="Share of a GPU's arithmetic (flops) and of its memory's bandwidth (bytes) in a step of prompts "
            "(prefill) and of answers (decode): the larger one binds. Needs the plugin, a known model and a known GPU.",
            unit="percentunit",
            width=6,
        ),
        lines(
            "Roofline of all steps",
            use,
            about="Share of a GPU's arithmetic (flops) and of its memory's bandwidth (bytes) in use: the larger "
            "one binds. Needs vLLM's --enable-mfu-metrics and a known GPU.",
            unit="percentunit",
            width=6,
        ),
    )


def _engine_facts() -> tuple[Panel, ...]:
    return (
        table(
            "KV cache that engines have",
            Target(_one(series.BY_CACHE), "engines"),
            about="kv_cache_size_tokens is what one engine holds; older versions of vLLM tell num_gpu_blocks x "
            "block_size instead.",
            width=12,
            height=5,
            columns=("holdfast_accelerator", *CACHE_LABELS),
        ),
        table(
            "How engines were started",
            Target(_one(series.BY_START), "engines"),
            about="As the plugin reads vLLM's configuration; empty where vLLM does not say.",
            width=12,
            height=5,
            columns=("holdfast_accelerator", *INFO_LABELS),
        ),
    )


def _cost() -> Row:
    return Row(
        "Cost",
        (
            lines(
                "Per hour",
                Target(_one(series.COST), "all replicas"),
                Target(_one(series.COST_LIMIT), "budget"),
                about="accelerators[].costPerHour of every replica that holds a GPU; absent where no price is given.",
                unit="currencyUSD",
                dashed="^budget",
            ),
            lines(
                "Per million tokens",
                Target(_one(series.COST_OF_TOKENS), "prompt and output"),
                unit="currencyUSD",
            ),
            lines(
                "Per thousand good requests",
                Target(_one(series.COST_OF_GOOD), "good"),
                unit="currencyUSD",
            ),
        ),
    )

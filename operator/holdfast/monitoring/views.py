"""What both dashboards share: expressions over some services, and the looks of states."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.api.conditions import TRANSIENT, ConditionType
from holdfast.monitoring import series
from holdfast.monitoring.series import any_of
from holdfast.observe.series.queries import SERVICE

Selector = Callable[..., str]
"""Makes the selector of a series: those of one service, or of some namespaces."""

RECENT = "5m"
GOOD, WARN, BAD, DULL = "green", "orange", "red", "#808080"
VERDICTS = (("^True", GOOD), ("^False", BAD), ("^Unknown", WARN))
RUNNING_STATES = ("ready", "starting", "unschedulable", "failing", "draining")
STATES = (("^ready", GOOD), ("^starting", "blue"), ("^unschedulable", WARN), ("^failing", BAD), ("^draining", DULL))


def class_good_share(selector: Selector) -> str:
    """Good of all judged requests of each class, over a short while."""
    bad, judged = (summed_over_time(selector(name)) for name in (series.CLASS_BAD, series.CLASS_JUDGED))
    return f"1 - {bad} / ({judged} > 0)"


def burn_rate(selector: Selector) -> str:
    """How fast the budget of the class that burns fastest is spent: the share of bad over the one that may be bad."""
    bad, judged = (summed_over_time(selector(name)) for name in (series.CLASS_BAD, series.CLASS_JUDGED))
    burned = f"{bad} / ({judged} > 0) / on ({series.by('class')}) (1 - {selector(series.CLASS_OBJECTIVE)})"
    return f"max by ({SERVICE}) ({burned})"


def wrong_conditions(selector: Selector) -> str:
    """Conditions that are not as they should be: not True, or a transient one that is present."""
    lasting = any_of([str(kind) for kind in ConditionType if kind not in TRANSIENT])
    transient = any_of(sorted(str(kind) for kind in TRANSIENT))
    doubtful = selector(series.CONDITION, status="~False|Unknown", type=lasting)
    return f"{doubtful} or {selector(series.CONDITION, status='True', type=transient)}"


def summed(vector: str, *labels: str) -> str:
    """Sum by service and these labels."""
    return f"sum by ({series.by(*labels)}) ({vector})"


def summed_over_time(vector: str) -> str:
    """Sum of each series over a short while."""
    return f"sum_over_time({vector}[{RECENT}])"

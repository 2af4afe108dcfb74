"""Verdicts by class come with those of all requests: no query more, and no row where nobody claims a class."""

from __future__ import annotations

import dataclasses
import math

import pytest

from holdfast.domain.service import Slo
from holdfast.domain.signals import ClassTraffic
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals import history, traffic
from holdfast.observe.signals.slow_queries import SlowSignals
from tests.observe.observe_builders import CHAT, NOW, SLO, WINDOW, answers, ready, request, sample
from tests.observe.test_history_levels import LEVEL, series
from tests.observe.test_plugin_rows import CLIENT_TIMES, COVERED, ENGINE, OBJECTIVES

PREMIUM, BULK = (Slo(0.3, 0.03, 0.999, 3600.0, name=name) for name in ("premium", "bulk"))
WITH_CLASSES = dataclasses.replace(SLO, classes=(PREMIUM, BULK))
ROWS = [
    sample(90.0, metric="requests_good_total"),
    sample(19.0, metric="requests_good_total", **{"class": "premium"}),
    *(sample(0.5, metric="requests_bad_total", cause=cause, **{"class": "premium"}) for cause in ("ttft", "tpot")),
    sample(7.0, metric="requests_good_total", **{"class": "gone"}),
]


def seen(*rows: Sample, slo: Slo = WITH_CLASSES) -> traffic.Traffic:
    found = answers(engines=[ENGINE], plugins=[*rows, CLIENT_TIMES, *OBJECTIVES])
    return traffic.assemble([request(ready("chat-0"), slo=slo)], found, SlowSignals(), WINDOW, NOW)[CHAT]


def test_each_declared_class_has_its_verdicts_and_all_requests_have_those_of_every_class() -> None:
    found = seen(COVERED, *ROWS)
    assert found.classes == (ClassTraffic("premium", 19.0, 1.0), ClassTraffic("bulk"))
    exact = found.by_accelerator[0][1].exact
    assert exact is not None
    assert (exact.good, exact.bad) == (116.0, 1.0)
    assert seen(COVERED, *ROWS, slo=SLO).classes == ()


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0])
def test_nobody_is_judged_by_class_where_not_all_requests_are(nonsense: float) -> None:
    nothing = (ClassTraffic("premium"), ClassTraffic("bulk"))
    assert seen(*ROWS).classes == nothing, "an engine without the plugin"
    odd = sample(nonsense, metric="requests_bad_total", cause="ttft", **{"class": "premium"})
    found = seen(COVERED, *ROWS, odd)
    assert (found.classes, found.by_accelerator[0][1].exact) == (nothing, None)


def test_history_has_the_classes_of_before_a_start_of_the_operator() -> None:
    rows = [
        series(110.0, metric="requests_arrived_total"),
        series(60.0, metric="requests_good_total"),
        series(25.0, metric="requests_good_total", **{"class": "premium"}),
        series(20.0, metric="requests_bad_total", **{"class": "premium"}),
        series(5.0, metric="requests_bad_total", **{"class": "gone"}),
        series(12.0, metric="covered"),
    ]
    (point,) = history.read(rows, LEVEL, [request(slo=WITH_CLASSES)])[CHAT]
    assert (point.good, point.bad) == (85.0, 25.0)
    assert point.classes == (ClassTraffic("premium", 25.0, 20.0), ClassTraffic("bulk"))

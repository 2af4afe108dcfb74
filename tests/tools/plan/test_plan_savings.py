"""What a service used, and what Holdfast would have used: from recorded series, and the twin."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable

import numpy as np
import pytest
from aiohttp import web

from holdfast.cli import reading, savings
from holdfast.cli.main import build_parser
from holdfast.domain.service import ServiceKey
from holdfast.monitoring import series
from holdfast.observe.series.samples import Series
from holdfast.runtime.settings import OF_PROMETHEUS, read_settings
from holdfast.tools.plan.savings import drawn, query, read, steps
from holdfast.twin.scenarios.inputs import BadInput
from tests.fakes import FakeApi, FakePrometheus

KEY = ServiceKey("prod", "chat")
STEP = 60.0
MINUTES = 40


def row(name: str, values: Iterable[float], **labels: str) -> Series:
    points = tuple((STEP * place, value) for place, value in enumerate(values, start=1) if not math.isnan(value))
    return Series({"__name__": name, "namespace": "prod", "holdfast_service": "chat", **labels}, points)


def rows(rate: Iterable[float], replicas: float = 3.0) -> list[Series]:
    """A service with one rate per minute, 1000 prompt and 100 output tokens, and a constant size on an L40S."""
    rates = list(rate)
    sizes = [replicas] * len(rates)
    return [
        row(series.ARRIVED, rates),
        row(series.FINISHED, rates),
        row(series.TOKENS, [1000.0 * each for each in rates], kind="prompt"),
        row(series.TOKENS, [100.0 * each for each in rates], kind="generation"),
        row(series.GOOD, rates),
        row(series.JUDGED, rates),
        row(series.REPLICAS, sizes, holdfast_accelerator="l40s", state="ready"),
        row(series.REPLICAS, [1.0] * len(rates), holdfast_accelerator="l40s", state="desired"),
        row(series.GPUS, sizes, holdfast_accelerator="l40s", state="ready"),
    ]


def history(found: list[Series], minutes: int = MINUTES):  # type: ignore[no-untyped-def]
    return read(found, KEY, STEP, STEP * minutes, STEP)


def test_what_is_recorded_is_summed_over_states_and_kept_by_step() -> None:
    draining = row(series.GPUS, [1.0] * MINUTES, holdfast_accelerator="l40s", state="draining")
    found = history([*rows([4.0] * MINUTES), draining])
    assert found.accelerator == "l40s"
    assert found.replicas.tolist() == [3.0] * MINUTES
    assert found.gpu_hours == {"l40s": pytest.approx(4.0 * MINUTES / 60.0)}
    assert found.known_share == 1.0
    assert found.attainment == 1.0


def test_gaps_are_counted_and_filled_and_most_of_the_time_must_be_known() -> None:
    gap = [4.0] * 10 + [math.nan] * 10 + [8.0] * 20
    found = history(rows(gap))
    assert found.known_share == 0.75
    load = drawn(found)
    inside = (load.at >= 600.0) & (load.at < 1200.0)
    assert inside.sum() == pytest.approx(600 * 6.0, rel=0.1)
    with pytest.raises(BadInput, match="Prometheus has 25 % of this time of prod/chat"):
        history(rows([4.0] * 10 + [math.nan] * 30))


def replicas(values: list[float], state: str, accelerator: str = "l40s") -> list[Series]:
    """Replicas and their GPUs, as the operator exports them: empty phases are omitted."""
    labels = {"holdfast_accelerator": accelerator, "state": state}
    present = [value if value or state == "desired" else math.nan for value in values]
    return [row(series.REPLICAS, present, **labels), row(series.GPUS, present, **labels)]


def load(rates: list[float]) -> list[Series]:
    sized = (series.REPLICAS, series.GPUS)
    return [each for each in rows(rates) if each.label("__name__") not in sized]


def test_a_service_that_is_recorded_without_replicas_has_none() -> None:
    sizes = [3.0] * 24 + [0.0] * 16
    rates = [4.0] * 24 + [math.nan] * 16
    found = history([*load(rates), *replicas(sizes, "ready"), *replicas(sizes, "desired")])
    assert found.replicas.tolist() == sizes
    assert found.gpu_hours == {"l40s": pytest.approx(1.2)}
    assert found.rate_rps[24:].tolist() == [0.0] * 16
    assert found.known_share == 1.0


def test_an_accelerator_that_was_used_for_two_minutes_counts_for_two_minutes() -> None:
    brief = replicas([4.0] * 2 + [0.0] * 38, "ready", "h100")
    assert history([*rows([4.0] * MINUTES), *brief]).gpu_hours["h100"] == pytest.approx(4.0 * 2.0 / 60.0)


def test_arrivals_stay_unknown_while_replicas_are_wanted_or_nothing_is_recorded() -> None:
    rates, sizes = [4.0] * 30 + [math.nan] * 10, [3.0] * 30 + [0.0] * 10
    wanted = replicas([3.0] * 35 + [math.nan] * 5, "desired")
    found = history([*load(rates), *replicas(sizes, "ready"), *wanted])
    assert np.isnan(found.rate_rps[30:]).all()
    assert found.replicas[30:35].tolist() == [0.0] * 5
    assert np.isnan(found.replicas[35:]).all()


def test_a_replica_that_drains_holds_its_gpus_and_serves_no_more() -> None:
    sizes, rest = [3.0] * 30 + [0.0] * 10, [0.0] * 30 + [3.0] * 10
    found = history([*load([4.0] * MINUTES), *replicas(sizes, "ready"), *replicas(rest, "draining")])
    assert found.replicas.tolist() == sizes
    assert found.gpu_hours == {"l40s": pytest.approx(2.0)}


def test_a_replica_without_a_node_holds_no_gpu() -> None:
    waiting = replicas([5.0] * MINUTES, "unschedulable")
    elsewhere = replicas([9.0] * MINUTES, "unschedulable", "h100")
    found = history([*rows([4.0] * MINUTES), *waiting, *elsewhere])
    assert found.replicas.tolist() == [3.0] * MINUTES
    assert found.gpu_hours == {"l40s": pytest.approx(2.0)}


def test_good_requests_count_only_where_verdicts_are_recorded_too() -> None:
    others = [each for each in rows([4.0] * MINUTES) if each.label("__name__") not in (series.GOOD, series.JUDGED)]
    verdicts = row(series.JUDGED, [4.0] * MINUTES)
    assert history([*others, verdicts]).attainment is None
    assert history([*others, verdicts, row(series.GOOD, [3.0] * 20)]).attainment == 0.75
    assert history([*others, row(series.JUDGED, [0.0] * 40), row(series.GOOD, [0.0] * 40)]).attainment is None


@pytest.mark.slow
async def test_gpus_that_are_not_recorded_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    found = [each for each in rows([0.1] * MINUTES) if each.label("__name__") != series.GPUS]
    assert await told(found, "--json") == 0
    assert json.loads(capsys.readouterr().out)["recorded_gpu_hours"] == {"l40s": None}
    assert await told(found) == 0
    assert "recorded are none on l40s" in capsys.readouterr().out


def test_the_load_that_is_played_has_the_recorded_rates_and_means() -> None:
    load = drawn(history(rows([20.0] * MINUTES)))
    assert len(load) == pytest.approx(20.0 * 60.0 * MINUTES, rel=0.03)
    assert load.prompt_tokens.mean() == pytest.approx(1000.0, rel=0.03)
    assert load.output_tokens.mean() == pytest.approx(100.0, rel=0.03)
    assert load.output_tokens.min() >= 1
    assert np.all(np.diff(load.at) >= 0.0)


@pytest.mark.parametrize(
    ("without", "said"),
    [
        (series.ARRIVED, "Prometheus has no arrivals of prod/chat"),
        (series.TOKENS, "Prometheus has no lengths of the requests of prod/chat"),
        (series.REPLICAS, "Prometheus has no replicas of prod/chat"),
    ],
)
def test_what_prometheus_does_not_have_is_named_with_the_remedy(without: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as problem:
        history([each for each in rows([4.0] * MINUTES) if each.label("__name__") != without])
    assert "--prometheus-url" in str(problem.value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, 1.0 / 120.0])
def test_a_load_of_one_request_is_none(value: float) -> None:
    with pytest.raises(BadInput, match=r"fewer than two requests|no arrivals"):
        history(rows([value] * 2), minutes=2)


@pytest.mark.parametrize("span", [600.0, 3601.0, 86_400.0, 7 * 86_400.0])
def test_a_span_is_asked_for_by_minutes_and_in_no_more_points_than_prometheus_gives(span: float) -> None:
    first, last, step = steps(1_000_000_007.0, span)
    assert step == 60.0
    assert (last - first) / step + 1 <= 11_000
    assert last - first + step == pytest.approx(span, abs=step)


def test_more_requests_than_can_be_played_are_refused_with_the_span_that_can() -> None:
    with pytest.raises(BadInput, match=r"2\.4e\+06 requests of prod/chat .* 2e\+06 are played: give a --since of 33m"):
        history(rows([1000.0] * MINUTES))


def test_a_span_beyond_a_week_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments("--since", "8d")
    assert "'8d': give from 10m to 7d" in capsys.readouterr().err


def arguments(*given: str) -> argparse.Namespace:
    return build_parser(("savings",)).parse_args(["savings", "prod/chat", *given])


def cluster(ttft: str = "1s") -> FakeApi:
    spec = {
        "model": {"uri": "meta-llama/Llama-3.1-8B"},
        "slo": {"ttft": ttft, "tpot": "80ms", "objective": "95%"},
        "accelerators": [{"name": "l40s", "costPerHour": 2.0}],
        "mode": "Recommend",
        "engine": {"plugin": "Disabled"},
    }
    api = FakeApi()
    body = {"metadata": {"namespace": "prod", "name": "chat", "uid": "1", "generation": 1}, "spec": spec}
    api.put_object(reading.services_path("prod", "chat"), body)
    return api


async def told(found: list[Series], *more: str, api: FakeApi | None = None) -> int:
    """The command's answer where Prometheus has these rows, moved to the time that is asked for."""
    prometheus = FakePrometheus({query(KEY).promql: "savings"})

    async def answer(request: web.Request) -> web.Response:
        begins = float((await request.post())["start"])  # type: ignore[arg-type]
        result = [
            {
                "metric": dict(each.labels),
                "values": [[begins + at - STEP, str(value)] for at, value in each.points],
            }
            for each in found
        ]
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": result}})

    prometheus.handler = answer
    async with prometheus:
        given = arguments("--since", f"{MINUTES}m", "--prometheus-url", prometheus.url, *more)
        return await savings.told(api or cluster(), given, read_settings(given, {}, OF_PROMETHEUS))


@pytest.mark.slow
async def test_a_service_of_twice_the_size_saves_half_and_the_twin_is_held_against_what_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await told(rows([2.0] * MINUTES, replicas=6.0), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    used, ours, size = found["runs"]
    assert used["gpu_hours"] == pytest.approx(found["recorded_gpu_hours"]["l40s"], rel=0.01)
    assert ours["gpu_hours"] < 0.6 * used["gpu_hours"]
    assert ours["attainment"] >= 0.95
    assert size["gpu_hours"] < used["gpu_hours"]
    assert found["measured_attainment"] == 1.0
    assert await told(rows([2.0] * MINUTES, replicas=6.0)) == 0
    said = capsys.readouterr().out
    assert "prod/chat (Recommend)" in said
    assert "100 % of the time is recorded" in said
    assert "less than was used" in said


@pytest.mark.slow
async def test_no_saving_is_claimed_where_holdfast_misses_the_objective(capsys: pytest.CaptureFixture[str]) -> None:
    assert await told(rows([0.1] * MINUTES, replicas=6.0), api=cluster(ttft="30ms")) == 0
    said = capsys.readouterr().out
    assert re.search(r"No saving is claimed: Holdfast misses the objective here, \d+\.\d\d % good of 95 %\.\n", said)
    assert "less than was used" not in said


def judged(share: float, rates: list[float]) -> list[Series]:
    """Verdicts of which this share is good."""
    return [row(series.JUDGED, rates), row(series.GOOD, [share * rate for rate in rates])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verdicts", "why"),
    [
        (judged(0.9, [0.1] * MINUTES), r"the twin has 100\.00 % good, and 90\.00 % were; at most 3 points may lie"),
        ([], "no verdicts are recorded to hold the twin against"),
    ],
)
async def test_no_saving_is_claimed_where_the_twin_is_not_what_was_measured(
    verdicts: list[Series], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict_names = (series.JUDGED, series.GOOD)
    found = [each for each in rows([0.1] * MINUTES) if each.label("__name__") not in verdict_names]
    assert await told([*found, *verdicts]) == 0
    said = capsys.readouterr().out
    assert re.search(f"No saving is claimed: .*{why}", said)
    assert "less than was used" not in said


@pytest.mark.slow
async def test_no_saving_is_claimed_where_nothing_was_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert await told(rows([0.1] * MINUTES, replicas=0.0), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"][0]["gpu_hours"] == 0.0
    assert found["no_saving_because"]


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        (1.0, "more than 5 % of the GPU-hours were on h100, and all requests would be played on l40s"),
        (math.nan, "the GPU-hours of h100 and l40s are not all recorded"),
    ],
)
async def test_a_load_that_two_accelerators_served_is_not_played_on_one(
    gpus: float, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    size, _ = replicas([1.0] * MINUTES, "ready", "h100")
    held = row(series.GPUS, [gpus] * MINUTES, holdfast_accelerator="h100", state="ready")
    assert await told([*rows([0.1] * MINUTES), size, held]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert why in said


@pytest.mark.slow
async def test_another_accelerator_of_a_moment_is_named_and_not_played(capsys: pytest.CaptureFixture[str]) -> None:
    brief = replicas([1.0] + [0.0] * (MINUTES - 1), "ready", "h100")
    assert await told([*rows([0.1] * MINUTES), *brief]) == 0
    said = capsys.readouterr().out
    assert "holdfast-slow" not in said
    assert "Holdfast, stock engines" in said
    assert "one size, 1 replica" in said
    assert "on h100 (not played)" in said
    assert "No prefix is reused in the twin, and cached tokens count as prompts" in said


async def test_an_object_that_is_no_valid_service_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert await told(rows([0.1] * MINUTES), api=cluster(ttft="soon")) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "spec.slo.ttft" in said


async def test_without_history_one_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert await told([]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Prometheus has no arrivals of prod/chat" in said

"""What becomes of a benchmark, and what its result says of one replica."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.benchmark_summary import Failed, RunFigures, Summary, SweepFigures, TuneFigures
from holdfast.api.reasons import Reason
from holdfast.control.benchmarks.benchmark_capacity import PerReplica, completed, moved, per_replica
from holdfast.control.benchmarks.benchmark_progress import is_at_rest, is_outdated, look
from holdfast.domain.benchmark import Engines, JobSeen, JobState, Phase, Remembered

ONE = Engines((("h100", 1),), generation=1, digest="a")
TWO = Engines((("h100", 2),), generation=1, digest="a")
OWN = Engines((("h100", 1),), generation=1, own=True, digest="b")


def sweep(attains: float = 3.5, misses: float | None = 3.9, requests: int = 10_000) -> Summary:
    figures = SweepFigures(objective=0.99, carried_rps=4.0, saturates_rps=4.4, attains_rps=attains, misses_rps=misses)
    return Summary(run=RunFigures(attainment=0.995, requests=requests, prompt_tokens=9, output_tokens=9), sweep=figures)


def tuned(**changes: Any) -> Summary:
    found = {"rate_rps": 3.4, "missed_rps": 3.7, "confirmed": True, "max_num_seqs": 64, "max_num_batched_tokens": 2048}
    return Summary(run=RunFigures(requests=400), tune=TuneFigures(objective=0.99, **{**found, **changes}))


def ended(summary: Summary) -> JobSeen:
    return JobSeen(JobState.ENDED, summary.to_json())


def reason(job: JobSeen) -> tuple[Phase, Reason]:
    step = look(job, "chat", ONE, "1h")
    return step.phase, step.reason


def test_a_spec_that_was_run_is_at_rest_and_another_one_is_not() -> None:
    for phase in (Phase.SUCCEEDED, Phase.FAILED):
        assert is_at_rest(Remembered(phase, "a"), "a")
        assert not is_at_rest(Remembered(phase, "a"), "b")
    assert not is_at_rest(Remembered(Phase.RUNNING, "a"), "a")
    assert not is_at_rest(Remembered(), "a")


def test_a_run_of_an_earlier_spec_is_outdated_only_while_it_runs() -> None:
    assert is_outdated(Remembered(Phase.RUNNING, "a"), "b")
    assert not is_outdated(Remembered(Phase.RUNNING, "a"), "a")
    assert not is_outdated(Remembered(Phase.SUCCEEDED, "a"), "b")


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (JobSeen(JobState.ACTIVE), (Phase.RUNNING, Reason.BENCHMARK_RUNNING)),
        (JobSeen(JobState.ABSENT), (Phase.FAILED, Reason.BENCHMARK_FAILED)),
        (JobSeen(JobState.BROKEN), (Phase.FAILED, Reason.BENCHMARK_FAILED)),
        (JobSeen(JobState.FOREIGN), (Phase.FAILED, Reason.NAME_CONFLICT)),
        (JobSeen(JobState.TIMED_OUT), (Phase.FAILED, Reason.TIMED_OUT)),
        (JobSeen(JobState.ENDED, "Killed", "OOMKilled, exit code 137"), (Phase.FAILED, Reason.BENCHMARK_FAILED)),
        (JobSeen(JobState.ENDED), (Phase.FAILED, Reason.BENCHMARK_FAILED)),
        (ended(Summary.failed(Failed.UNREACHABLE, "x")), (Phase.FAILED, Reason.TARGET_UNREACHABLE)),
        (ended(Summary.failed(Failed.REFUSED, "x")), (Phase.FAILED, Reason.CLIENT_OVERLOADED)),
        (ended(Summary.failed(Failed.INVALID, "x")), (Phase.FAILED, Reason.INVALID)),
        (ended(Summary.failed(Failed.FAILED, "x")), (Phase.FAILED, Reason.BENCHMARK_FAILED)),
        (ended(Summary(run=RunFigures(requests=0))), (Phase.FAILED, Reason.BENCHMARK_FAILED)),
        (
            ended(Summary(run=RunFigures(requests=9, bad={"unreachable": 9}))),
            (Phase.FAILED, Reason.TARGET_UNREACHABLE),
        ),
        (ended(Summary(run=RunFigures(requests=9, bad={"unreachable": 8}))), (Phase.SUCCEEDED, Reason.MEASURED)),
        (ended(sweep()), (Phase.SUCCEEDED, Reason.MEASURED)),
        (ended(sweep(0.0)), (Phase.SUCCEEDED, Reason.MEASURED)),
        (ended(tuned()), (Phase.SUCCEEDED, Reason.MEASURED)),
        (ended(Summary(run=RunFigures(), tune=TuneFigures(objective=0.99))), (Phase.SUCCEEDED, Reason.MEASURED)),
    ],
)
def test_every_end_has_its_reason(job: JobSeen, told: tuple[Phase, Reason]) -> None:
    assert reason(job) == told


def test_what_a_pod_died_of_is_told() -> None:
    step = look(JobSeen(JobState.ENDED, "", "OOMKilled, exit code 137"), "chat", ONE, "1h")
    assert "OOMKilled, exit code 137" in step.message


@given(st.text(max_size=200))
def test_garbage_in_a_termination_message_is_a_failure_never_a_result(message: str) -> None:
    assert look(JobSeen(JobState.ENDED, message), "chat", ONE, "1h").phase is Phase.FAILED


def test_a_replica_carries_its_share_of_the_middle_of_the_border() -> None:
    found = per_replica(sweep(3.6, 4.0), TWO, "")
    assert isinstance(found, PerReplica)
    assert found.rate_rps == pytest.approx(math.sqrt(3.6 * 4.0) / 2)
    border = math.log(4.0 / 3.6) / math.sqrt(12)
    assert found.standard_error_rps == pytest.approx(found.rate_rps * math.hypot(border, 0.01))


def test_an_engine_of_its_own_carries_what_was_confirmed_at_its_best_limits() -> None:
    found = per_replica(tuned(), OWN, "")
    assert isinstance(found, PerReplica)
    assert found.rate_rps == 3.4
    assert found.standard_error_rps == pytest.approx(3.4 * math.hypot(math.log(3.7 / 3.4) / math.sqrt(12), 0.05))


def test_few_requests_make_it_less_sure() -> None:
    few, many = (per_replica(sweep(requests=count), ONE, "") for count in (50, 5000))
    assert isinstance(few, PerReplica)
    assert isinstance(many, PerReplica)
    assert few.rate_rps == many.rate_rps
    assert few.standard_error_rps > many.standard_error_rps


@pytest.mark.parametrize(
    ("summary", "engines", "change", "words"),
    [
        (Summary(run=RunFigures(requests=9)), ONE, "", "only a sweep"),
        (tuned(), None, "", "only a sweep"),
        (tuned(), TWO, "", "only a sweep"),
        (tuned(), OWN, "the service was edited", "change spec.revision"),
        (tuned(rate_rps=None), OWN, "", "no limits attain"),
        (tuned(confirmed=False), OWN, "", "not confirmed"),
        (tuned(missed_rps=None), OWN, "", "raise tune.maxTrials"),
        (tuned(missed_rps=3.0), OWN, "", "raise tune.maxTrials"),
        (sweep(), None, "", "the target is an address"),
        (sweep(), ONE, "replicas went", "pin spec.replicas"),
        (sweep(), Engines((("h100", 1), ("l40s", 1)), 1), "", "several accelerators"),
        (sweep(), Engines((), 1), "", "several accelerators"),
        (sweep(0.0), ONE, "", "lower sweep.startRps"),
        (sweep(misses=None), ONE, "", "raise sweep.startRps"),
        (sweep(3.5, 3.5), ONE, "", "raise sweep.startRps"),
        (sweep(), Engines((("h100", 1),), 1, other_rps=0.5), "", "other traffic of 0.5 req/s"),
    ],
)
def test_what_says_nothing_of_one_replica_says_why(
    summary: Summary, engines: Engines | None, change: str, words: str
) -> None:
    found = per_replica(summary, engines, change)
    assert isinstance(found, str)
    assert words in found


def test_what_changed_of_the_engines_is_told() -> None:
    assert moved(ONE, ONE) == ""
    assert moved(ONE, replace(ONE, other_rps=9.0)) == "", "the load is the benchmark's own"
    assert moved(ONE, replace(ONE, generation=2)) == "", "an edit of what the figure does not depend on"
    assert "from 1 h100 to 2 h100" in moved(ONE, TWO)
    assert "to none" in moved(ONE, Engines((), 1))
    assert "edited" in moved(ONE, replace(ONE, digest="c"))
    assert "edited" in moved(OWN, replace(OWN, digest="")), "the accelerator is no longer listed"
    assert moved(replace(ONE, digest=""), ONE) == "", "begun by a version that did not remember it"
    assert moved(ONE, None) == "the service was deleted"


def test_of_several_accelerators_nothing_is_remembered_that_could_change() -> None:
    assert moved(Engines((), 1), Engines((("h100", 1), ("l40s", 1)), 1)) == ""


def cost(engines: Engines | None = TWO, change: str = "", price: float | None = 3.6, **run: Any) -> float | None:
    """Tokens per dollar of a run that made 1000 tokens a second at 5 req/s."""
    figures = RunFigures(**{"output_tokens_per_second": 1000.0, "arrival_rps": 5.0, **run})
    found = completed(Summary(run=figures), engines, change, price)
    assert Summary.read(found.to_json()) == found
    assert found.run is not None
    return found.run.tokens_per_dollar


def test_tokens_cost_what_all_replicas_that_answered_cost() -> None:
    assert cost(ONE) == 1e6
    assert cost(TWO) == 5e5
    assert cost(replace(TWO, other_rps=0.4)) == 5e5


@pytest.mark.parametrize(
    ("engines", "change", "price"),
    [
        (None, "", 3.6),
        (replace(TWO, replicas=(("h100", 1), ("l40s", 1))), "", 3.6),
        (replace(TWO, replicas=()), "", 3.6),
        (TWO, "replicas changed from 2 h100 to 3 h100 during the run", 3.6),
        (replace(TWO, other_rps=0.6), "", 3.6),
        (TWO, "", None),
        (TWO, "", 0.0),
        (TWO, "", math.nan),
    ],
    ids=["an address", "several", "none", "moved", "users ask too", "no price", "no cost", "no number"],
)
def test_where_the_price_of_what_answered_is_not_known_there_is_no_cost(
    engines: Engines | None, change: str, price: float | None
) -> None:
    assert cost(engines, change, price) is None


@pytest.mark.parametrize("rate", [None, math.nan])
def test_tokens_that_nobody_counted_cost_nothing_that_is_known(rate: float | None) -> None:
    summary = Summary(run=RunFigures.model_construct(output_tokens_per_second=rate, arrival_rps=5.0))
    found = completed(summary, TWO, "", 3.6).run
    assert found is not None
    assert found.tokens_per_dollar is None


@pytest.mark.parametrize(
    ("engines", "change", "told"), [(ONE, "", True), (TWO, "", None), (ONE, "edited", None), (None, "", None)]
)
def test_what_binds_is_told_of_one_replica_alone(engines: Engines | None, change: str, told: bool | None) -> None:
    found = completed(Summary(run=RunFigures(compute_bound=True)), engines, change, None).run
    assert found is not None
    assert found.compute_bound is told


def test_a_failure_has_no_cost() -> None:
    failed = Summary.failed(Failed.FAILED, "why")
    assert completed(failed, TWO, "", 3.6) == failed

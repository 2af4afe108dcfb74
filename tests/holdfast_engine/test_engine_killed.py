"""An engine that is killed: the next one in its container counts what it left open, as bad and once."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_engine.clients.ledger import Ledger
from holdfast_engine.clients.written_file import ReportKind, WrittenReader, WrittenWriter, begun_since, name_of
from holdfast_engine.fastloop import SEEN_SECONDS
from holdfast_engine.objectives.rules import SERVICE_CLASS, UNBOUNDED, Kind, RequestClass
from holdfast_engine.stats.classfiles import CLASS_FIELDS, ClassFiles
from holdfast_engine.stats.left_open import MOST_LEFT, left_open
from holdfast_engine.stats.stats_fields import COUNTS, FIELDS, Mode, nothing_yet, off
from holdfast_engine.stats.statsfile import StatsWriter
from tests.holdfast_engine.test_engine_fastloop import ToyEngine, assert_conserved

UNJUDGED, TAKEN, KILLED = FIELDS.index("unjudged"), FIELDS.index("reports_taken"), COUNTS.index("bad_killed")

BEGAN, FIRST, LAST, GONE = ReportKind.STARTED, ReportKind.FIRST, ReportKind.LAST, ReportKind.GONE
HELD, RESUMED = ReportKind.HELD, ReportKind.RESUMED


def record(path: Path, unjudged: float, taken: float = 0.0, mode: Mode = Mode.ACTIVE) -> None:
    numbers = nothing_yet()
    numbers[UNJUDGED], numbers[TAKEN], numbers[FIELDS.index("mode")] = unjudged, taken, mode
    StatsWriter(path, len(FIELDS)).write(numbers)


def told(engine: ToyEngine) -> tuple[float, float]:
    """Open and killed requests, as /metrics and the next engine read them."""
    loop = engine.loop
    numbers = [*loop.counts(), 0.0, 0.0, *loop.record()]
    return numbers[UNJUDGED], numbers[KILLED]


def test_requests_of_a_killed_engine_are_open_until_prometheus_has_seen_the_counter_and_bad_from_then_on() -> None:
    engine = ToyEngine()
    engine.loop.inherit({SERVICE_CLASS: 5})
    assert told(engine) == (5, 0)
    engine.now += SEEN_SECONDS - 1.0
    assert (engine.loop.look(), told(engine)) == (False, (5, 0))
    engine.now += 1.0
    assert (engine.loop.look(), told(engine)) == (True, (0, 5)), "published although nothing runs"
    engine.now += 10 * SEEN_SECONDS
    assert (engine.loop.look(), told(engine)) == (False, (0, 5)), "once"
    assert engine.loop.ledger.own.arrived == 0, "they arrived before"


def test_own_requests_are_judged_as_ever_next_to_those_of_a_killed_engine() -> None:
    engine = ToyEngine()
    engine.loop.inherit({SERVICE_CLASS: 2, "no class of today": 1})
    engine.arrive()
    assert told(engine) == (4, 0)
    engine.run(SEEN_SECONDS + 5.0)
    engine.loop.look()
    assert told(engine) == (0, 3)
    assert (engine.loop.ledger.own.arrived, engine.loop.ledger.own.good) == (1, 1)
    assert_conserved(engine.loop)


@pytest.mark.parametrize("unjudged", [math.nan, math.inf, -math.inf, -1.0, 0.0, MOST_LEFT + 1.0, 1e300])
def test_what_is_no_number_of_requests_is_not_counted(unjudged: float, tmp_path: Path) -> None:
    path = tmp_path / "engine-0.stats"
    record(path, unjudged)
    assert left_open(path) == {}


@pytest.mark.parametrize("content", [None, b"", b"\0" * 64, b"holdfst2" + b"\xff" * 900])
def test_a_file_that_is_missing_or_broken_tells_nothing(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "engine-0.stats"
    if content is not None:
        path.write_bytes(content)
    assert left_open(path) == {}


def test_a_record_of_another_version_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.stats"
    StatsWriter(path, len(FIELDS) - 1).write([7.0] * (len(FIELDS) - 1))
    assert left_open(path) == {}


def test_each_class_has_its_own_and_the_service_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.stats"
    record(path, 3.0)
    of_class = dict.fromkeys(CLASS_FIELDS, 0.0)
    ClassFiles(path).write({name: [*(of_class | {"unjudged": n}).values()] for name, n in (("a", 2.0), ("", 9.0))})
    assert left_open(path) == {SERVICE_CLASS: 3, "a": 2}


def test_batch_is_left_out_and_a_plugin_that_was_off_knows_of_no_class_either(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.stats"
    record(path, 3.0)
    of_class = dict.fromkeys(CLASS_FIELDS, 0.0) | {"unjudged": 7.0}
    ClassFiles(path).write({"tight": [*of_class.values()], "night": [*(of_class | {"is_batch": 1.0}).values()]})
    assert left_open(path) == {SERVICE_CLASS: 3, "tight": 7}
    StatsWriter(path, len(FIELDS)).write(off(nothing_yet()))
    assert left_open(path) == {}


def written(folder: Path, *reports: tuple[ReportKind, str]) -> Path:
    """What an API server told, in this order."""
    writer = WrittenWriter(folder / "answers.written")
    for kind, name in reports:
        writer.write(kind, name_of(name), 1.0)
    return writer.path


def test_what_came_during_the_last_step_is_open_too(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.stats"
    record(path, 2.0, taken=2.0)
    old, new = ((BEGAN, "a"), (ReportKind.ARRIVED, "b")), ((BEGAN, "c"), (LAST, "a"), (ReportKind.ARRIVED, "d"))
    reports = written(tmp_path, *old, *new)
    assert left_open(path, reports) == {SERVICE_CLASS: 4}
    assert left_open(path) == {SERVICE_CLASS: 2}
    assert left_open(path, tmp_path / "no file") == {SERVICE_CLASS: 2}


@pytest.mark.parametrize("taken", [math.nan, 4.0, 9.0])
def test_nothing_is_added_where_all_reports_were_read_or_it_is_unknown(taken: float, tmp_path: Path) -> None:
    path = tmp_path / "engine-0.stats"
    record(path, 2.0, taken)
    assert left_open(path, written(tmp_path, *((BEGAN, name) for name in "abcd"))) == {SERVICE_CLASS: 2}


def test_where_an_api_server_has_several_engines_or_batch_its_reports_are_nobodys(tmp_path: Path) -> None:
    reports = written(tmp_path, (BEGAN, "a"))
    for folder in (several := tmp_path / "several", night := tmp_path / "night"):
        record(folder / "engine-0.stats", 2.0)
    record(several / "engine-1.stats", 0.0)
    of_class = dict.fromkeys(CLASS_FIELDS, 0.0) | {"is_batch": 1.0}
    ClassFiles(night / "engine-0.stats").write({"night": [*of_class.values()]})
    assert left_open(several / "engine-0.stats", reports) == {SERVICE_CLASS: 2}
    assert left_open(night / "engine-0.stats", reports) == {SERVICE_CLASS: 2}


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([(BEGAN, "a"), (FIRST, "a"), (BEGAN, "b"), (LAST, "b")], 1, id="one is answered"),
        pytest.param([(BEGAN, "a"), (GONE, "a"), (LAST, "before")], 0, id="one has left, and one that came before"),
        pytest.param([(HELD, "a"), (HELD, "b"), (RESUMED, "b"), (BEGAN, "c")], 0, id="two at the door, one went on"),
        pytest.param([(RESUMED, "before"), (BEGAN, "c")], 0, id="one that went on was at the door before"),
        pytest.param([(RESUMED, "before")], 0, id="and is on its way"),
        pytest.param([], 0, id="nothing"),
    ],
)
def test_requests_of_the_last_reports_are_open_until_they_end(
    reports: list[tuple[ReportKind, str]], expected: int, tmp_path: Path
) -> None:
    assert begun_since(written(tmp_path, (BEGAN, "older"), *reports), 1) == expected


def test_reports_are_taken_by_steps_since_only_then_their_requests_have_come(tmp_path: Path) -> None:
    writer = WrittenWriter(tmp_path / "answers.written")
    engine = ToyEngine(written=WrittenReader(writer.path))
    writer.write(BEGAN, name_of("on its way"), 1.0)
    taken = lambda: [0.0, 0.0, *engine.loop.counts(), *engine.loop.record()][TAKEN]  # noqa: E731
    engine.loop.look()
    assert taken() == 0
    engine.loop.catch_up()
    assert taken() == 1


def test_the_first_step_of_an_idle_engine_says_so_since_its_requests_may_end_it() -> None:
    engine = ToyEngine()
    told = []
    scheduled = engine.loop.scheduled
    engine.loop.scheduled = lambda output: told.append(scheduled(output)) or told[-1]
    for _ in range(2):
        engine.arrive(output=8)
        engine.run(5.0)
    assert told.count(True) == 2
    assert told[0]


LIVES = st.tuples(st.integers(0, 8), st.sampled_from((0.0, 0.5, 1.5, SEEN_SECONDS + 10.0)), st.booleans())


@settings(max_examples=30)
@given(st.lists(LIVES, max_size=5))
def test_over_any_lives_each_request_is_in_one_count(lives: list[tuple[int, float, bool]]) -> None:
    left, arrived, judged = 0, 0, 0
    for requests, seconds, drains in lives:
        engine = ToyEngine()
        engine.loop.inherit({SERVICE_CLASS: left} if left else {})
        for _ in range(requests):
            engine.arrive(output=60)
        engine.run(seconds)
        if drains:
            engine.run(5.0)
        engine.loop.look()
        own = engine.loop.ledger.own
        left = int(told(engine)[0])
        arrived += own.arrived
        judged += own.good + sum(own.bad.values()) + own.withdrawn + own.killed
        assert_conserved(engine.loop)
    assert arrived == judged + left


def test_nothing_came_to_an_engine_without_objectives(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.stats"
    record(path, 0.0, mode=Mode.WAITING)
    assert left_open(path, written(tmp_path, (BEGAN, "a"))) == {}


def test_requests_of_a_class_that_is_batch_now_are_no_batch_work() -> None:
    ledger = Ledger()
    ledger.declare([RequestClass("night", UNBOUNDED, kind=Kind.BATCH)])
    ledger.inherit({"night": 5})
    assert (ledger.classes["night"].left, ledger.own.left) == (0, 5)

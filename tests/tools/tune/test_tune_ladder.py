"""`holdfast tune --ladder`: rungs, where it stops, which one and why; on the twin, on an engine, with bad input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from holdfast.cli.main import main
from holdfast.domain.service import Slo
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.host import NO_HOST
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.tools.bench.figures.engine import Reported, Resource
from holdfast.tools.bench.figures.results import Results, measure
from holdfast.tools.bench.load.load_generator import Endpoint, LatencyBounds
from holdfast.tools.bench.load.records import RequestOutcome
from holdfast.tools.tune import ladder_twin
from holdfast.tools.tune.engine_port import CannotStart, CannotTry
from holdfast.tools.tune.goal import TuningGoal
from holdfast.tools.tune.ladder import Climb, LadderLoad, Rung, climb
from holdfast.tools.tune.ladder_report import LadderReport, as_json, headline, picture, rows, told
from holdfast.tools.tune.live import Asked, LiveTrials
from holdfast.tools.tune.rungs import listed, rungs
from holdfast.tools.tune.setting import Setting
from holdfast.tools.tune.twin import TwinEngine
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.replica.capacity import LengthPairs
from holdfast.twin.scenarios.inputs import BadInput
from holdfast_engine.objectives.rules import parse_limits
from tests.emulator.emulator_builders import engine
from tests.fakes import FakeKnobs, RawServer
from tests.tools.bench.bench_builders import PNG, record, steady

LAW = StepLaw(0.008, 4e-5, 2e-4, 4e-8, 4e-9)
SLO = Slo(1.0, 0.03, 0.95, 3600.0)
BOUNDS = LatencyBounds(1.0, 0.03)
GOAL = TuningGoal.of(BOUNDS, 0.95)
ROOMY = TwinEngine(EngineTimer(LAW, NO_HOST), LAW, lambda _: 60_000)
LENGTHS = LengthPairs(np.array([20, 100, 200]), np.array([10, 60, 200]))
CALM = ("--max-client-lag", "60s")


def results(goodput: float, bad: int = 0, peak: int = 25, **engine_figures: float) -> Results:
    """So many good requests a second, of 100 of which so many are bad."""
    given = [*steady(100 - bad), *(record((), RequestOutcome.OVERLOADED, index=200 + number) for number in range(bad))]
    found = measure(given, LatencyBounds(e2e_seconds=60.0), 0.0, 0.0)
    seen = {"looks": 9, "peak_kv_usage": 0.2, "kv_capacity_tokens": 1e5, "peak_running": 8.0, "peak_waiting": 9.0}
    reported = Reported(**{**seen, "preemptions": 0.0, **engine_figures})  # type: ignore[arg-type]
    rps = goodput / max(1.0 - bad / 100, 0.01)
    return replace(found, goodput_rps=goodput, request_rps=rps, peak_in_flight=peak, engine=reported)


def climbed(given: Sequence[Results], objective: float = 0.95) -> Climb:
    left = iter(given)

    async def measured(_: Setting) -> Results:
        return next(left)

    settings = [Setting(1 << number, 2048) for number in range(len(given))]
    return asyncio.run(climb(settings, measured, objective))


def report_of(found: Climb) -> LadderReport:
    return LadderReport("a title", "25 requests at a time", GOAL, found, simulated=True)


@pytest.mark.parametrize(("most", "found"), [(2, (1, 2)), (16, (1, 2, 4, 8, 16)), (20, (1, 2, 4, 8, 16, 20))])
def test_a_ladder_begins_at_one_sequence_and_ends_with_the_limit(most: int, found: tuple[int, ...]) -> None:
    assert rungs(most) == found


def test_a_limit_of_one_sequence_is_no_ladder() -> None:
    with pytest.raises(BadInput, match="one rung compares with nothing: raise --max-num-seqs"):
        rungs(1)


@pytest.mark.parametrize("text", ["8", "8,", ",", "8,8", "8,4", "0,4", "a,b", "-1,4", "1,2,1e3", "1;2", "1," + "9" * 9])
def test_a_list_that_is_no_ladder_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="give at least two numbers of sequences"):
        listed(text)


def test_the_ladder_stops_where_more_sequences_are_clearly_worse_and_takes_the_best() -> None:
    found = climbed([results(2.0), results(4.0), results(3.0, peak_kv_usage=1.0, preemptions=7.0), results(9.0)])
    assert [rung.sequences for rung in found.rungs] == [1, 2, 4]
    assert found.chosen is not None
    assert found.chosen.sequences == 2
    assert found.ended == "3 good req/s are clearly less than 4"


def test_a_rung_that_may_be_as_good_by_chance_does_not_end_the_ladder() -> None:
    """50 of 100 requests good: the interval reaches to 60, and 3.6 of 4 may be the same."""
    found = climbed([results(4.0, bad=50), results(3.6, bad=50), results(4.4, bad=50)], objective=0.4)
    assert len(found.rungs) == 3


def test_of_rungs_that_are_alike_the_fewest_sequences_are_taken() -> None:
    found = climbed([results(2.0), results(3.95), results(4.0), results(4.0)])
    assert found.chosen is not None
    assert found.chosen.sequences == 2


def test_a_rung_that_attains_the_objective_comes_before_one_with_more_good_requests() -> None:
    found = climbed([results(4.0), results(6.0, bad=20)])
    assert found.holds
    assert found.chosen is not None
    assert found.chosen.sequences == 1


def test_the_ladder_stops_where_there_are_no_more_requests_to_run() -> None:
    found = climbed([results(2.0, peak=2), results(4.0, peak=2), results(9.0, peak=2)])
    assert [rung.sequences for rung in found.rungs] == [1, 2]
    assert "at most 2 requests were under way, so more sequences make no difference" in told(report_of(found))[2]


def test_a_rung_that_an_engine_does_not_start_with_ends_the_ladder_and_what_was_found_stands() -> None:
    async def measured(setting: Setting) -> Results:
        if setting.max_num_seqs == 4:
            raise CannotStart("CUDA out of memory")
        return results(float(setting.max_num_seqs))

    found = asyncio.run(climb([Setting(each, 2048) for each in (1, 2, 4, 8)], measured, 0.95))
    assert [rung.sequences for rung in found.rungs] == [1, 2]
    assert told(report_of(found))[2] == "above: 4 sequences cannot be tried: CUDA out of memory"
    with pytest.raises(CannotStart, match="CUDA out of memory"):
        asyncio.run(climb([Setting(4, 2048)], measured, 0.95))


def test_words_say_what_binds_on_each_side() -> None:
    below = results(2.0, bad=50, peak_running=1.0, peak_waiting=24.0)
    above = results(3.0, peak_kv_usage=0.99, preemptions=7.0, peak_waiting=3.0)
    lines = told(report_of(climbed([below, results(4.0, peak_running=2.0), above])))
    assert lines[0] == ("2 sequences: 4 good req/s; sequences bind: 2 of 2 run, up to 9 requests wait, KV cache 20 %")
    assert lines[1] == (
        "below: 1 sequence gives 2 good req/s, 50 % less; sequences bind: 1 of 1 run, up to 24 requests wait, KV cache "
        "20 %; not good: 50 refused with 503 (50.00 %)"
    )
    assert lines[2].startswith(
        "above: 4 sequences give 3 good req/s, 25 % less; a decode takes 100 ms instead of 100 ms"
    )
    assert "the KV cache binds: 99 % full, 7 preemptions, up to 3 requests wait" in lines[2]
    assert lines[3] == "the ladder ends at 4: 3 good req/s are clearly less than 4"
    assert "vLLM: --max-num-seqs=2 --max-num-batched-tokens=2048" in lines


def test_an_engine_that_reports_nothing_is_told_as_such_and_not_as_idle() -> None:
    silent = [replace(results(rate), engine=None) for rate in (2.0, 4.0)]
    report = report_of(climbed(silent))
    assert "the engine reports nothing of its queue" in told(report)[1]
    assert rows(report.found)[0][8:11] == ("-", "-", "-")
    assert as_json([report])["results"][0]["rungs"][0]["binds"] is None
    assert picture([report]).startswith(PNG)


def test_the_picture_of_a_ladder_says_which_rung_and_whether_it_attains() -> None:
    attained = report_of(climbed([results(2.0), results(4.0), results(3.0)]))
    assert headline(attained) == ("a title: 2 sequences, 4 good req/s (100 % good, objective 95 %)", True)
    missed = report_of(climbed([results(2.0, bad=50), results(1.0, bad=50)]))
    assert headline(missed)[1] is False
    assert headline(report_of(climbed([results(0.0, bad=100)]))) == ("a title: no request was good", False)


def test_a_load_of_which_nothing_is_good_says_what_it_lost_and_chooses_nothing() -> None:
    found = climbed([results(0.0, bad=100), results(0.0, bad=100)])
    assert found.chosen is None
    assert not found.holds
    lines = told(report_of(found))
    assert "no request was good with any number of sequences, of 25 requests at a time" in lines[0]
    assert "100 refused with 503" in lines[1]
    assert json.loads(json.dumps(as_json([report_of(found)]), allow_nan=False))["results"][0]["chosen"] is None


@pytest.mark.parametrize(("sequences", "concurrency"), [(4, 25), (25, 25), (32, 6), (1, 3)])
def test_a_closed_loop_on_the_twin_is_what_an_engine_does_with_requests_sent_at_those_moments(
    sequences: int, concurrency: int
) -> None:
    """Played again with the moments of sending as arrivals, and with all of its sequences: to a microsecond."""
    load, setting = LadderLoad(LENGTHS, 150, concurrency), Setting(sequences, 2048)
    narrow = replace(setting, max_num_seqs=min(sequences, concurrency))
    played, _ = ladder_twin._watched(ROOMY, narrow, load, SLO)
    sent = ladder_twin._sent_at(played, concurrency)
    asked = load.workload
    again = Workload(sent, asked.prompt_tokens, asked.output_tokens, asked.cached_tokens)
    open_loop, _ = ROOMY.play(setting, again, SLO)
    assert open_loop["last_at"] == pytest.approx(played["last_at"], abs=1e-6)
    assert open_loop["first_at"] == pytest.approx(played["first_at"], abs=1e-6)


def test_a_ladder_on_the_twin_shows_queue_decode_time_and_memory_of_each_rung() -> None:
    load = LadderLoad(LENGTHS, 200, 12)

    async def measured(setting: Setting) -> Results:
        return ladder_twin.rung(ROOMY, setting, load, SLO, BOUNDS)

    found = asyncio.run(climb([Setting(each, 2048) for each in rungs(64)], measured, 0.95))
    assert [rung.sequences for rung in found.rungs] == [1, 2, 4, 8, 16], "at 16 all 12 run"
    rates = [rung.results.request_rps for rung in found.rungs]
    assert rates == sorted(rates)
    assert [rung.results.peak_in_flight for rung in found.rungs] == [12] * 5
    seen = [rung.engine for rung in found.rungs if rung.engine is not None]
    assert [each.peak_running for each in seen] == [1, 2, 4, 8, 12]
    assert [each.peak_waiting for each in seen] == [11, 10, 8, 4, 0]
    assert [each.binds for each in seen[:4]] == [Resource.SEQUENCES] * 4
    usages = [each.peak_kv_usage for each in seen]
    assert 0.0 < usages[0] < usages[2] < usages[4] < 1.0
    decodes = [rung.results.tpot.p50 for rung in found.rungs]
    assert decodes[0] < decodes[4]


def test_the_memory_of_an_engine_binds_where_it_is_small() -> None:
    small = replace(ROOMY, kv_tokens=lambda _: 640)
    load = LadderLoad(LENGTHS, 100, 12)
    found = Rung(Setting(16, 2048), ladder_twin.rung(small, Setting(16, 2048), load, SLO, BOUNDS))
    assert found.engine is not None
    assert found.engine.binds is Resource.KV_CACHE
    assert found.engine.kv_capacity_tokens == 640


def test_a_rate_beyond_a_rung_queues_there_and_not_where_sequences_are_enough() -> None:
    load = LadderLoad(LENGTHS, 200, rate_rps=8.0)
    one, many = (ladder_twin.rung(ROOMY, Setting(each, 2048), load, SLO, BOUNDS) for each in (1, 64))
    assert one.attainment < 0.1 < 0.99 < many.attainment
    assert many.request_rps == pytest.approx(8.0, rel=0.2)


def manifest(folder: Path, **changes: Any) -> str:
    path = folder / "service.yaml"
    spec = {
        "model": {"uri": "Qwen/Qwen3-8B"},
        "slo": {"ttft": "2s", "tpot": "100ms", "objective": "90%"},
        "accelerators": [{"name": "l40s"}],
        "batching": {"maxNumSeqs": 8, "maxNumBatchedTokens": 512},
        **changes,
    }
    path.write_text(yaml.safe_dump({"metadata": {"name": "chat"}, "spec": spec}))
    return str(path)


SMALL = ("--requests", "40", "--prompt-tokens", "30", "--output-tokens", "12")


def test_a_manifest_gives_a_ladder_up_to_its_limit_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plots = ("--plot", str(tmp_path / "ladder.html"), "--json", str(tmp_path / "out.json"))
    assert main(["tune", "-f", manifest(tmp_path), "--ladder", "--concurrency", "6", *SMALL, *plots]) == 0
    shown = capsys.readouterr()
    assert "6 requests at a time. Simulated, without an engine." in shown.out
    assert "8 sequences: " in shown.err
    found = json.loads((tmp_path / "out.json").read_text())["results"][0]
    assert [rung["max_num_seqs"] for rung in found["rungs"]] == [1, 2, 4, 8]
    assert (found["chosen"]["max_num_seqs"], found["attained"]) == (8, True)
    assert "--max-num-seqs=8" in shown.out
    page = (tmp_path / "ladder.html").read_text()
    assert page.count("<tr>") == 5
    assert "data:image/png;base64," in page


def test_rungs_may_be_listed_beyond_the_limit_of_the_manifest_and_a_missed_objective_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifest(tmp_path, slo={"ttft": "2s", "tpot": "1ms", "objective": "90%"})
    assert main(["tune", "-f", path, "--ladder", "4,12", "--rate", "5", "--json", *SMALL]) == 1
    found = json.loads(capsys.readouterr().out)["results"][0]
    assert found["rungs"][0]["max_num_seqs"] == 4
    assert not found["attained"]


async def test_a_ladder_of_a_live_engine_leaves_it_with_the_rung_it_chose(tmp_path: Path) -> None:
    limits, out = tmp_path / "engine-limits", tmp_path / "out.json"
    async with engine(engine_limits=(str(limits),), max_num_seqs=8, max_num_batched_tokens=256) as client:
        given = ("--url", client.base, "--limits-file", str(limits), *CALM, "--ladder", "1,4", "--concurrency", "4")
        load = ("--slo", "ttft=30s,tpot=5s", "--prompt-tokens", "20", "--output-tokens", "6", "--requests", "12")
        code = await asyncio.to_thread(main, ["tune", *given, *load, "--json", str(out)])
    found = json.loads(out.read_text())["results"][0]
    assert (code, found["source"], found["attained"]) == (0, "endpoint", True)
    assert [rung["max_num_seqs"] for rung in found["rungs"]] == [1, 4]
    assert all(rung["results"]["engine"]["kv_capacity_tokens"] > 0 for rung in found["rungs"])
    assert parse_limits(limits.read_text()).active_sequences == found["chosen"]["max_num_seqs"]


async def test_an_endpoint_that_refuses_every_request_is_told_in_one_line() -> None:
    async with RawServer([b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"]) as server:
        asked = Asked(BOUNDS, 0.9, max_client_lag=60.0)
        trials = LiveTrials(Endpoint(server.url, "m"), FakeKnobs(Setting(8, 256)), asked)
        with pytest.raises(
            CannotTry, match=r"^[^\n]*no request finished: \d+ refused with 503[^\n]*holdfast bench[^\n]*$"
        ):
            await trials.rung(Setting(1, 256), LadderLoad(LENGTHS, 4, 2))


URL = ("--url", "http://127.0.0.1:9", "--model", "m", "--limits-file", "limits", "--slo", "ttft=1s")


@pytest.mark.parametrize(
    ("given", "told_of"),
    [
        (("--ladder",), "--ladder needs one load for all rungs: give --concurrency or --rate"),
        (("--ladder", "--rate", "1", "--concurrency", "2"), "--ladder needs one load"),
        (("--concurrency", "2"), "--concurrency belongs to --ladder"),
        (("--ladder", "8", "--rate", "1"), "'8': give at least two numbers of sequences"),
        (("--ladder", "4,2", "--rate", "1"), "give at least two numbers"),
        (("--ladder", "--rate", "0"), "give a positive number"),
        (("--ladder", "--concurrency", "2", "--cv", "2"), "--cv cannot be combined with --concurrency"),
        (("--ladder", "--rate", "1", "--time-limit", "1h"), "--time-limit cannot be combined with --ladder"),
        (("--ladder", "1,2", "--rate", "1", "--max-num-seqs", "4"), "give one of them"),
    ],
)
def test_bad_usage_is_told_in_one_line(
    given: tuple[str, ...], told_of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["tune", *URL, *given])
    except SystemExit as left:
        code = int(str(left.code))
    shown = capsys.readouterr().err
    assert (code, shown.count("\n")) == (2, 1)
    assert told_of in shown


@pytest.mark.parametrize(
    ("given", "told_of"),
    [
        (("--ladder", "--max-num-seqs", "1"), "one rung compares with nothing"),
        (("--ladder", "64,1024"), "512 tokens per step are fewer than 1024 sequences"),
        (("--ladder", "--prompt-tokens", "900000"), "its memory cannot hold one of these requests"),
    ],
)
def test_a_ladder_that_no_engine_can_have_is_told_in_one_line(
    given: tuple[str, ...], told_of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "-f", manifest(tmp_path), "--concurrency", "2", *given]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert told_of in shown

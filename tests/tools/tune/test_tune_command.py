"""`holdfast tune` as people call it: on the twin, on an emulated engine over HTTP, and with bad input."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from holdfast.api.benchmark_summary import Failed, Summary
from holdfast.api.llmservice import LLMService
from holdfast.cli import tune as command
from holdfast.cli.main import build_parser, main
from holdfast.domain.service import Slo
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.host import NO_HOST
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.tools.bench.figures.definitions import LatencyBounds as Bounds
from holdfast.tools.bench.load.load_generator import Client, Endpoint, Run
from holdfast.tools.bench.load.records import RequestOutcome
from holdfast.tools.tune.engine_port import CannotTry, TrialFigures, TrialRequests, Tried, UnusableTrial
from holdfast.tools.tune.goal import TuningGoal
from holdfast.tools.tune.limits import LimitsFile, Restart, arguments, reported_limits
from holdfast.tools.tune.live import Asked, LiveTrials
from holdfast.tools.tune.report import Report, impossible
from holdfast.tools.tune.search import LimitsSearch, TuningResult
from holdfast.tools.tune.setting import Setting, grid
from holdfast.tools.tune.summary import of_search
from holdfast.tools.tune.twin import TwinEngine, TwinModel, TwinTrials
from holdfast.twin.replica.capacity import LengthPairs
from holdfast_engine.objectives.rules import Limits, Objectives, Overload, parse_limits
from tests.emulator.emulator_builders import engine
from tests.fakes import FakeKnobs, RawServer
from tests.tools.bench.bench_builders import PNG, record

LAW = StepLaw(0.008, 4e-5, 2e-4, 4e-8, 4e-9)
SLO = Slo(1.0, 0.03, 0.95, 3600.0)
BELIEVED = TwinEngine(EngineTimer(LAW, NO_HOST), LAW, lambda _: 60_000)
MOST = Setting(32, 1024)
CALM = ("--max-client-lag", "60s")


def manifest(folder: Path, **slo: str) -> str:
    path = folder / "service.yaml"
    spec = {
        "model": {"uri": "Qwen/Qwen3-8B"},
        "slo": {"ttft": "2s", "tpot": "100ms", "objective": "90%", **slo},
        "accelerators": [{"name": "l40s"}],
        "batching": {"maxNumSeqs": 16, "maxNumBatchedTokens": 512},
    }
    path.write_text(yaml.safe_dump({"metadata": {"name": "chat"}, "spec": spec}))
    return str(path)


def tuned(real: TwinEngine, seed: int = 1) -> TuningResult:
    lengths = LengthPairs(np.array([200, 600, 1500, 3000]), np.array([10, 15, 5, 20]))
    requests = TrialRequests(lengths, 100, seed=seed)
    search = LimitsSearch(TwinTrials(real, SLO, MOST), TwinModel(BELIEVED, SLO, requests), requests)
    return asyncio.run(search.tune(grid(MOST)))


def test_an_engine_that_is_slower_than_believed_is_tuned_with_few_trials_and_the_same_each_time() -> None:
    real = replace(BELIEVED, stretch=1.3)
    found = tuned(real)
    assert found == tuned(real)
    assert found.best is not None
    assert len(found.trials) <= 14
    assert found.trials[0].rate_rps > found.rate_rps, "what was believed at first is too much"
    assert any(tried.ended for tried in found.trials), "the race ends trials early"
    assert not any(tried.restarted for tried in found.trials)


@pytest.mark.parametrize(
    "real",
    [replace(BELIEVED, stretch=1.5), TwinEngine(EngineTimer(LAW.parted(1.4, 0.7), NO_HOST), LAW, lambda _: 60_000)],
)
def test_a_model_learns_the_steps_of_an_engine_from_one_trial(real: TwinEngine) -> None:
    requests = TrialRequests(LengthPairs(np.array([200, 600, 1500]), np.array([50, 20, 30])), 100)
    model, truth = TwinModel(BELIEVED, SLO, requests), TwinModel(real, SLO, requests)
    load = requests.at(2.0, 1.0)
    tried = asyncio.run(TwinTrials(real, SLO, MOST).run(MOST, 2.0, load))
    assert model.rate(MOST) != pytest.approx(truth.rate(MOST), rel=0.05)
    assert model.learn(tried, load)
    assert model.rate(MOST) == pytest.approx(truth.rate(MOST), rel=0.02)
    assert model.doubt < 0.02
    assert not model.learn(tried, load)


@pytest.mark.slow
def test_a_manifest_alone_gives_flags_and_a_snippet_that_the_api_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "out.json", tmp_path / "tune.html"
    plots = ("--plot", str(picture), "--plot", str(tmp_path / "tune.png"))
    given = ("--prompt-tokens", "900", "--output-tokens", "20", "--requests", "50")
    assert main(["tune", "-f", manifest(tmp_path), *given, "--json", str(out), *plots]) == 0
    shown = capsys.readouterr()
    assert "Simulated, without an engine" in shown.out
    assert "--max-num-batched-tokens=" in shown.out
    assert "trial 1: " in shown.err
    told = json.loads(out.read_text())["results"][0]
    assert (told["source"], told["accelerator"]) == ("twin", "l40s")
    assert told["best"]["rate_rps"] > 0.0
    spec = yaml.safe_load(Path(manifest(tmp_path)).read_text())["spec"] | told["llmservice"]["spec"]
    service = LLMService.parse({"metadata": {"name": "chat"}, "spec": spec})
    assert service.spec.batching.max_num_batched_tokens == told["best"]["max_num_batched_tokens"]
    assert len(told["trials"]) == picture.read_text().count("<tr>") - 1
    assert (tmp_path / "tune.png").read_bytes().startswith(PNG)


def test_objectives_that_no_engine_keeps_are_told_with_those_it_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifest(tmp_path, tpot="1ms")
    assert main(["tune", "-f", path, "--requests", "50", "--prompt-tokens", "100", "--output-tokens", "20"]) == 1
    shown = capsys.readouterr().out
    assert "cannot be met with any limits" in shown
    assert "possible for an idle engine, for 90 % of these requests: --slo ttft=" in shown


@pytest.mark.slow
async def test_a_live_engine_is_tuned_through_its_limits_file(tmp_path: Path) -> None:
    limits, out = tmp_path / "engine-limits", tmp_path / "out.json"
    async with engine(engine_limits=(str(limits),), max_num_seqs=16, max_num_batched_tokens=256) as client:
        given = ("--url", client.base, "--limits-file", str(limits), "--accelerator", "h100", *CALM)
        load = ("--slo", "ttft=30s,tpot=5s", "--prompt-tokens", "50", "--output-tokens", "4", "--requests", "40")
        asked = ("--json", str(out), "--summary", str(tmp_path / "left"))
        code = await asyncio.to_thread(main, ["tune", *given, *load, "--most-trials", "2", *asked])
        reported = reported_limits(await client.metrics())
    told = json.loads(out.read_text())["results"][0]
    written = parse_limits(limits.read_text())
    assert code == 0
    left = Summary.read((tmp_path / "left").read_text())
    assert left is not None
    assert left.tune is not None
    assert left.tune.max_num_seqs == told["best"]["max_num_seqs"]
    assert told["source"] == "endpoint"
    assert not written.adapt
    assert (written.active_sequences, written.tokens_per_step) == (
        told["best"]["max_num_seqs"],
        told["best"]["max_num_batched_tokens"],
    ), "it is left with the best"
    assert (reported["active_sequences"], reported["tokens_per_step"]) == (16.0, 256.0)
    assert all(not tried["restarted"] for tried in told["trials"])


@pytest.mark.slow
async def test_limits_are_believed_once_the_engine_reports_them(tmp_path: Path) -> None:
    async with engine(engine_limits=(str(tmp_path / "read"),)) as client:
        file = LimitsFile(tmp_path / "read", Endpoint(client.base, "m"), Bounds(ttft_seconds=1.0))
        most = await file.most()
        await file.apply(Setting(8, 128))
        assert (await client.value("holdfast:limits", name="tokens_per_step"), most.max_num_seqs) == (128.0, 1024)
        with pytest.raises(CannotTry, match="cannot change them live"):
            await file.apply(Setting(8, 2 * most.max_num_batched_tokens))
        other = LimitsFile(tmp_path / "other", Endpoint(client.base, "m"), Bounds(), taken_seconds=0.1)
        with pytest.raises(CannotTry, match="name the file that this engine reads"):
            await other.most()
    assert {path.name for path in tmp_path.iterdir()} == {"read"}, "nothing half written is left"


async def test_an_engine_without_the_plugin_takes_no_live_limits(tmp_path: Path) -> None:
    async with engine() as client:
        file = LimitsFile(tmp_path / "limits", Endpoint(client.base, "m"), Bounds())
        with pytest.raises(CannotTry, match="no plugin that takes live limits"):
            await file.most()
    assert list(tmp_path.iterdir()) == []


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ([HEAD, b"data: hello\n\n", RawServer.CLOSE], "with an unreadable answer"),
        ([HEAD, b'data: {"choices":[{"text":"a"}]}\n\n', RawServer.CLOSE], "broken off"),
        ([b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"], "failed with another status"),
        ([RawServer.RESET], "without connection or answer"),
    ],
)
async def test_an_endpoint_that_answers_nothing_that_counts_ends_the_search(script: list[bytes], told: str) -> None:
    async with RawServer(script) as server:
        trials = LiveTrials(Endpoint(server.url, "m"), FakeKnobs(MOST), Asked(Bounds(), 0.9, max_client_lag=60.0))
        with pytest.raises(CannotTry, match=rf"no request finished: \d+ {told}"):
            await trials.run(MOST, 200.0, TrialRequests(LengthPairs(np.array([5]), np.array([3])), 20).at(200.0, 0.0))


async def test_an_engine_that_ends_nothing_in_time_has_missed_but_one_that_is_stuck_cannot_be_tuned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.tools.tune.live.LONE_SECONDS", 0.1)
    requests = TrialRequests(LengthPairs(np.array([5]), np.array([3])), 20)
    asked = Asked(Bounds(ttft_seconds=1.0), 0.9, max_client_lag=60.0, drain_seconds=0.1)
    async with RawServer([RawServer.HOLD]) as server:
        trials = LiveTrials(Endpoint(server.url, "m"), FakeKnobs(MOST), asked)
        tried = await trials.run(MOST, 200.0, requests.at(200.0, 0.0))
        assert not tried.held
        assert math.isnan(tried.figures.tpot_seconds), "missing, and nothing to learn from"
        with pytest.raises(CannotTry, match="no request finished: 1 unfinished"):
            await trials.alone(MOST, requests.alone())


def test_what_a_trial_gave_up_itself_is_not_told_as_what_the_endpoint_did() -> None:
    failed = [record(index=number, outcome=RequestOutcome.HTTP_ERROR) for number in range(3)]
    given_up = [record(index=number, outcome=RequestOutcome.UNFINISHED) for number in range(3, 8)]
    trials = LiveTrials(Endpoint("http://a", "m"), FakeKnobs(MOST), Asked(Bounds(), 0.9))
    with pytest.raises(CannotTry, match="no request finished: 3 failed with another status: check"):
        trials._check(Run((*failed, *given_up), None, "holdfast"), 0, 200.0, given_up=True)


def test_a_client_is_judged_by_the_requests_that_count_and_not_by_the_crowd_before_them() -> None:
    crowd = [record(index=number, scheduled_at=-0.08) for number in range(200)]
    counted = [record(index=number, scheduled_at=-0.001) for number in range(200, 600)]
    trials = LiveTrials(Endpoint("http://a", "m"), FakeKnobs(MOST), Asked(Bounds(), 0.9))
    client = Client(lateness_p99_seconds=0.08, lag_p99_seconds=0.0, lag_most_seconds=0.0, cpu_share=0.1)
    trials._check(Run((*crowd, *counted), client, "holdfast"), 200, 50.0)
    late = [record(index=number, scheduled_at=-0.01) for number in range(200, 600)]
    with pytest.raises(UnusableTrial, match=r"result rejected at 50 req/s.*10\.0 ms late"):
        trials._check(Run((*crowd, *late), client, "holdfast"), 200, 50.0)


async def test_a_restart_command_gets_its_arguments_without_a_shell(tmp_path: Path) -> None:
    command = ["run", "--seqs={max_num_seqs}", "{max_num_batched_tokens}", "{gpu_memory_utilization}", "; rm $HOME"]
    assert arguments(command, Setting(8, 64)) == ["run", "--seqs=8", "64", "", "; rm $HOME"]
    assert arguments(command, Setting(8, 64, 0.9))[3] == "0.9"
    note = tmp_path / "note"
    write = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    async with engine() as client:
        given = [sys.executable, "-S", "-c", write, str(note), "{max_num_batched_tokens};x"]
        await Restart(given, Endpoint(client.base, "m"), 120.0).start(Setting(8, 64))
        assert note.read_text() == "64;x"
        for broken, told in (
            ([sys.executable, "-S", "-c", "import sys; sys.exit(3)"], "ended with 3"),
            (["/nonexistent"], "be run"),
        ):
            with pytest.raises(CannotTry, match=told):
                await Restart(broken, Endpoint(client.base, "m"), 120.0).start(Setting(8, 64))
    with pytest.raises(CannotTry, match="does not serve"):
        await Restart(["true"], Endpoint("http://127.0.0.1:9", "m"), 0.3).start(Setting(8, 64))


@pytest.mark.parametrize("text", [b"spec: {}\n", b"\xff\x00", b'{"version": 1}'])
def test_a_file_that_holds_something_else_is_not_overwritten(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "service.yaml"
    path.write_bytes(text)
    assert main(["tune", *URL, "--limits-file", str(path), "--slo", "ttft=1s"]) == 2
    assert "the file does not contain limits" in capsys.readouterr().err
    assert path.read_bytes() == text


URL = ("--url", "http://127.0.0.1:9", "--model", "m")
WAY = ("--limits-file", "limits")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), "--url or -f is missing"),
        ((*URL, "--slo", "ttft=1s"), "--url needs a way to set limits"),
        ((*URL, *WAY), "--slo or -f: give one of them"),
        ((*URL, *WAY, "--slo", "ttft=soon"), "give bounds as"),
        ((*URL, *WAY, "--slo", "ttft=0s"), "each above 0"),
        ((*URL, *WAY, "--slo", "ttft=1s", "--objective", "nan"), "--objective"),
        ((*URL, *WAY, "--slo", "ttft=1s", "--seed", "-1"), "--seed"),
        ((*URL, *WAY, "--slo", "ttft=1s", "--cv", "1e8"), "--cv"),
        ((*URL, "--slo", "ttft=1s", "--limits-file", "/nonexistent/x"), "the folder does not exist"),
        ((*URL, "--slo", "ttft=1s", "--plot", "x.html", "--plot", "/nonexistent/x.png"), "--plot /nonexistent/x.png"),
        ((*URL, *WAY, "--slo", "ttft=1s", "--gpu-memory-utilization", "0.9"), "cannot be changed live"),
        ((*URL, *WAY, "--slo", "ttft=1s", "--gpu-memory-utilization", "0.9,7"), "give shares from"),
        ((*URL, "--slo", "ttft=1s", "--restart-command", "a 'b"), "quote it"),
        ((*URL, *WAY, "--slo", "ttft=1s", "--requests", "0"), "give a whole number"),
        (("-f", "/nonexistent.yaml"), "cannot be read"),
        (("-f", "x.yaml", *WAY), "need --url"),
        (("-f", "x.yaml", "--summary", "/nonexistent/left"), "--summary needs --url"),
        (("-f", "x.yaml", "--objective", "90%"), "cannot be combined with -f"),
        (("-f", "x.yaml", "--lengths", "x", "--prompt-tokens", "3"), "omit --prompt-tokens"),
    ],
)
def test_bad_usage_is_told_in_one_line(given: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    def code() -> Any:
        try:
            return main(["tune", *given])
        except SystemExit as left:
            return left.code

    assert code() == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert shown.count("\n") == 1


def test_a_file_that_cannot_be_written_takes_nothing_along_of_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = Tried(MOST, 2.0, True, 20, 0, 9.0, figures=TrialFigures(0.1, 0.02))
    best = TuningResult(MOST, 2.0, 3.0, (last,), confirmed=True)
    found = Report("a title", "h100", TuningGoal.of(Bounds(ttft_seconds=1.0), 0.95), best, False)
    for option in ("--json", "--plot"):
        given = build_parser(["tune"]).parse_args(["tune", option, str(tmp_path / "nowhere" / "out.html")])
        with pytest.raises(FileNotFoundError):
            command._tell(given, [found])
        assert "vLLM: --max-num-seqs=" in capsys.readouterr().out


def test_requests_that_fail_are_not_told_to_be_too_slow() -> None:
    figures = TrialFigures(0.1, 0.02, (0.2, 0.03, 1.0))
    failed = Tried(MOST, 0.0, False, 20, 3, 9.0, figures=figures, causes=[("failed with another status", 3)])
    asked = TuningGoal.of(Bounds(ttft_seconds=1.0, tpot_seconds=0.05), 0.95)
    first, last = impossible(
        Report("a title", "h100", asked, TuningResult(None, 0.0, math.inf, (), alone=failed), False)
    )
    assert first.endswith("of 20 requests sent one by one 3 missed, 3 failed with another status")
    assert last == "run holdfast bench to see how these requests fail"
    strict = TuningGoal.of(Bounds(ttft_seconds=0.1, tpot_seconds=0.05), 0.95)
    found = impossible(Report("a title", "h100", strict, TuningResult(None, 0.0, math.inf, (), alone=failed), False))
    assert found[-1].endswith("--slo ttft=200ms,tpot=30ms")


@pytest.mark.slow
async def test_a_search_that_finds_nothing_leaves_the_engine_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "engine-limits"
    before = Limits(7, Objectives(0.7, 0.07), 12, overload=Overload.REJECT)
    path.write_text(before.to_json())
    async with engine(engine_limits=(str(path),), max_num_seqs=16, max_num_batched_tokens=256) as client:
        given = ("--url", client.base, "--limits-file", str(path), "--slo", "ttft=0.1ms", "--requests", "20", *CALM)
        code = await asyncio.to_thread(main, ["tune", *given, "--prompt-tokens", "50", "--output-tokens", "2"])
    found = parse_limits(path.read_text())
    assert code == 1
    assert found.version > before.version
    assert found == replace(before, version=found.version)


def test_an_endpoint_that_nobody_answers_at_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *URL, *WAY, "--slo", "ttft=1s", "--summary", str(tmp_path / "left")]) == 1
    assert "cannot reach http://127.0.0.1:9" in capsys.readouterr().err
    left = Summary.read((tmp_path / "left").read_text())
    assert left is not None
    assert left.failure is not None
    assert left.failure.why is Failed.UNREACHABLE


def test_what_was_found_is_left_with_every_trial() -> None:
    found = tuned(replace(BELIEVED, stretch=1.3))
    wanted = TuningGoal.of(Bounds(ttft_seconds=1.0, tpot_seconds=0.03), 0.95)
    left = of_search(Report("a title", "h100", wanted, found, False, mean_tokens=(1325.0, 12.5)))
    assert Summary.read(left.to_json()) == left
    assert left.tune is not None
    assert left.run is not None
    assert found.best is not None
    assert (left.tune.max_num_seqs, left.tune.confirmed) == (found.best.max_num_seqs, found.confirmed)
    assert left.tune.rate_rps == pytest.approx(found.rate_rps, rel=1e-3)
    assert len(left.tune.trials) == left.tune.made == len(found.trials)
    assert (left.run.requests, left.run.prompt_tokens) == (found.trials[-1].judged, 1325.0)


def test_what_no_limits_meet_is_left_with_what_would_be_possible() -> None:
    found = TuningResult(None, 0.0, float("inf"), ())
    left = of_search(Report("a title", "h100", TuningGoal.of(Bounds(ttft_seconds=1.0), 0.95), found, False))
    assert Summary.read(left.to_json()) == left
    assert left.tune is not None
    assert left.tune.rate_rps is None
    assert "at no tested rate" in left.tune.note

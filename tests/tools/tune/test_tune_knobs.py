"""How limits get into an engine and out of it again: what fails in the middle leaves it as it was."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli import tune as command
from holdfast.cli.main import build_parser
from holdfast.domain.service import AcceleratorOption
from holdfast.enginemodel.prior import LEAST_KV_TOKENS, option_prior
from holdfast.tools.bench.figures.definitions import LatencyBounds as Bounds
from holdfast.tools.bench.generators.endpoint import NoEndpoint
from holdfast.tools.bench.load.load_generator import Endpoint
from holdfast.tools.tune.engine_port import CannotStart, CannotTry
from holdfast.tools.tune.goal import Told, TuningGoal, believed
from holdfast.tools.tune.limits import LimitsFile, LiveOrRestarted, Restart
from holdfast.tools.tune.setting import Setting
from holdfast_engine.objectives.rules import Limits, Objectives, parse_limits
from tests.fakes import FakeFailingRestart, FakeLimitsEngine

MOST, LESS, MORE = Setting(16, 256), Setting(8, 128), Setting(32, 512)


def live(path: Path, engine: FakeLimitsEngine, *given: str) -> LiveOrRestarted:
    """The knobs of a command line with a limits file."""
    asked = ("--url", engine.url, "--limits-file", str(path), "--slo", "ttft=1s", *given)
    arguments = build_parser(["tune"]).parse_args(["tune", *asked])
    wanted = TuningGoal.of(arguments.slo, 0.9)
    return command._knobs(arguments, None, Endpoint(engine.url, "m"), wanted, Setting(1024, 8192))


async def test_an_engine_that_did_not_start_with_a_setting_is_started_again_with_the_one_before() -> None:
    restart = FakeFailingRestart(MORE)
    knobs = LiveOrRestarted(None, restart, lambda _: MOST)  # type: ignore[arg-type]
    assert await knobs.apply(MOST)
    with pytest.raises(CannotStart):
        await knobs.apply(MORE)
    assert await knobs.apply(MOST), "it does not run at all"
    assert restart.started == [MOST, MORE, MOST]


async def test_what_stood_in_the_limits_file_is_restored_in_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "engine-limits"
    before = Limits(7, Objectives(0.7, 0.07), 12, None, adapt=True)
    path.write_text(before.to_json())
    async with FakeLimitsEngine(path, MOST) as engine:
        knobs = live(path, engine)
        await knobs.most()
        await knobs.apply(LESS)
        assert not parse_limits(path.read_text()).adapt
        tried = parse_limits(path.read_text()).version
        await knobs.restore()
    found = parse_limits(path.read_text())
    assert found == replace(before, version=found.version)
    assert found.version > tried


@pytest.mark.parametrize("before", [None, Limits(7, Objectives(0.7, 0.07), 12).to_json()])
async def test_a_file_that_the_engine_does_not_read_says_what_it_said_before(
    before: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "engine-limits"
    if before is not None:
        path.write_text(before)
    async with FakeLimitsEngine(tmp_path / "another", MOST) as engine:
        file = LimitsFile(path, Endpoint(engine.url, "m"), Bounds(ttft_seconds=1.0), taken_seconds=0.01)
        with pytest.raises(CannotTry, match="name the file that this engine reads"):
            await file.most()
    assert (path.read_text() if path.exists() else None) == before
    assert [found.name for found in tmp_path.iterdir()] == ([] if before is None else [path.name])


async def test_without_limits_before_an_engine_is_left_with_all_that_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "engine-limits"
    path.write_text("not limits")
    async with FakeLimitsEngine(path, MOST) as engine:
        knobs = live(path, engine)
        await knobs.most()
        await knobs.apply(LESS)
        await knobs.restore()
    found = parse_limits(path.read_text())
    assert (found.active_sequences, found.tokens_per_step) == (16, 256)


async def test_who_names_one_of_the_limits_looks_below_what_the_engine_says_of_the_other(tmp_path: Path) -> None:
    path = tmp_path / "engine-limits"
    async with FakeLimitsEngine(path, MOST) as engine:
        assert await live(path, engine, "--max-num-seqs", "8").most() == Setting(8, 256)
        assert await live(path, engine, "--max-num-batched-tokens", "64").most() == Setting(16, 64)
        assert await live(path, engine).most() == MOST


async def test_more_than_an_engine_was_started_with_is_refused_before_any_trial(tmp_path: Path) -> None:
    path = tmp_path / "engine-limits"
    before = Limits(7, Objectives(0.7, 0.07), 12)
    path.write_text(before.to_json())
    async with FakeLimitsEngine(path, MOST) as engine:
        knobs = live(path, engine, "--max-num-seqs", "32")
        with pytest.raises(CannotTry, match="or give --restart-command"):
            await knobs.most()
        await knobs.restore()
    found = parse_limits(path.read_text())
    assert found == replace(before, version=found.version)


@pytest.mark.parametrize("before", [None, Limits(7, Objectives(0.7, 0.07), 12).to_json()])
async def test_an_engine_that_died_does_not_come_back_with_the_limits_of_a_trial(
    before: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "engine-limits"
    if before is not None:
        path.write_text(before)
    async with FakeLimitsEngine(path, MOST) as engine:
        knobs = live(path, engine)
        await knobs.most()
        await knobs.apply(LESS)
    with pytest.raises(NoEndpoint):
        await knobs.restore()
    assert (path.read_text() if path.exists() else None) == before


async def test_an_engine_that_nothing_was_done_to_is_not_started_anew() -> None:
    restart = FakeFailingRestart(MORE)
    knobs = LiveOrRestarted(None, restart, lambda _: MOST)  # type: ignore[arg-type]
    await knobs.most()
    await knobs.restore()
    assert restart.started == []
    await knobs.apply(LESS)
    await knobs.restore()
    assert restart.started == [LESS, MOST]


@pytest.mark.parametrize(
    "text",
    [
        "",
        'holdfast:limits{name="active_sequences"} 16\n',
        'holdfast:limits{name="tokens_per_step"} 5\nholdfast:limits{name="active_sequences"} 1e999\n',
    ],
)
async def test_half_of_the_limits_is_not_taken_for_all_of_them(text: str, tmp_path: Path) -> None:
    async with FakeLimitsEngine(tmp_path / "limits", MOST, text) as engine:
        with pytest.raises(CannotTry, match="no plugin that takes live limits"):
            await LimitsFile(tmp_path / "limits", Endpoint(engine.url, "m"), Bounds()).most()


async def test_what_a_restart_command_prints_spoils_no_json(capfd: pytest.CaptureFixture[str]) -> None:
    says = ["sh", "-c", "echo starting; exit 3"]
    with pytest.raises(CannotStart, match="ended with 3"):
        await Restart(says, Endpoint("http://127.0.0.1:9", "m"), 60.0).start(MOST)
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "starting\n")


async def test_a_restart_command_that_heeds_no_signal_is_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.tools.tune.limits.STOP_SECONDS", 0.1)
    note = tmp_path / "pid"
    deaf = (
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
        "time.sleep(60)"
    )
    starting = asyncio.create_task(
        Restart([sys.executable, "-S", "-c", deaf, str(note)], Endpoint("http://127.0.0.1:9", "m"), 60.0).start(MOST)
    )
    while not (note.exists() and note.read_text()):
        await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
async def test_a_search_that_is_told_to_end_is_cancelled_as_by_ctrl_c(sent: signal.Signals) -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals come to the main thread alone")

    async def search() -> None:
        with command._ended_in_order():
            os.kill(os.getpid(), sent)
            await asyncio.Event().wait()

    before = signal.signal(sent, signal.SIG_DFL)  # whoever runs the tests may ignore it, as nohup does
    try:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(search())
    finally:
        signal.signal(sent, before)


async def test_who_was_told_to_outlive_its_terminal_does() -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals come to the main thread alone")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with command._ended_in_order():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("accelerator", ["h100", "l4", "mi300x", "nobody-knows"])
@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B-Instruct", "pvc://weights/house-model"])
def test_tune_believes_in_the_engine_that_plan_and_sizing_believe_in(model: str, accelerator: str) -> None:
    """One law, with the same host, also where no table was measured."""
    option = AcceleratorOption(accelerator)
    assert believed(model, option).engine.timer == option_prior(model, option).timer


def test_another_share_of_memory_starts_from_the_cache_that_the_engine_tells() -> None:
    option = AcceleratorOption("h100")
    tokens = believed("Qwen/Qwen3-8B", option, live=Told(400_000, 0.9)).engine.kv_tokens
    more = option_prior("Qwen/Qwen3-8B", option).memory.more_tokens(0.05)
    assert tokens(Setting(256, 2048)) == 400_000
    assert tokens(Setting(256, 2048, 0.95)) == 400_000 + int(more)
    assert tokens(Setting(256, 2048, 0.01)) == LEAST_KV_TOKENS


@pytest.mark.parametrize("told", [Told(), Told(0, 0.9), Told(400_000)])
def test_another_share_of_memory_is_computed_where_the_engine_tells_no_share(told: Told) -> None:
    option, setting = AcceleratorOption("h100"), Setting(1024, 8192, 0.8)
    assert believed("Qwen/Qwen3-8B", option, live=told).engine.kv_tokens(setting) == pytest.approx(
        option_prior("Qwen/Qwen3-8B", option, memory_utilization=0.8).kv_tokens
    )


def test_fewer_sequences_leave_more_cache_where_no_engine_tells_it() -> None:
    tokens = believed("Qwen/Qwen3-8B", AcceleratorOption("h100")).engine.kv_tokens
    assert tokens(Setting(16, 8192)) > tokens(Setting(1024, 8192))

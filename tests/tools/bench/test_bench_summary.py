"""What a run hands to the operator: 4 KiB at most, nothing that is no number, and never more than was asked for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.benchmark_summary import (
    MOST_BYTES,
    MOST_TRIALS,
    TRIAL_COLUMNS,
    TUNE_COLUMNS,
    Failed,
    RunFigures,
    Summary,
    SweepFigures,
    TuneFigures,
    figure,
)
from holdfast.cli.main import main
from holdfast.tools.bench.load import records
from tests.tools.bench.bench_builders import steady

SWEEP: dict[str, Any] = {
    "objective": 0.99,
    "carried_rps": 4.0,
    "saturates_rps": 4.4,
    "attains_rps": 3.5,
    "misses_rps": 3.9,
    "trials": [[1.0, 1.0, 1.0, 120.0, 0.02, 0.008, 50, 0]],
}
RUN = {"attainment": 1.0, "requests": 50, "bad": {"late_ttft": 3}}


def text(**changes: Any) -> str:
    return json.dumps({"version": 1, "run": RUN, "sweep": SWEEP, **changes})


def test_what_is_written_is_read_back() -> None:
    found = Summary.read(text())
    assert found is not None
    assert Summary.read(found.to_json()) == found
    assert found.sweep is not None
    assert found.sweep.trials[0][TRIAL_COLUMNS.index("output_tokens_per_second")] == 120.0


@pytest.mark.parametrize(
    "left",
    [
        "",
        "Killed",
        "null",
        "[]",
        "{}",
        "{",
        '{"version": 2, "run": {}}',
        '{"version": 1}',
        '{"version": 1, "run": {}, "failure": {"why": "failed", "message": "both"}}',
        '{"version": 1, "failure": {"why": "bored", "message": "no such word"}}',
        text(run={**RUN, "attainment": 1.5}),
        text(run={**RUN, "attainment": "1.0"}),
        text(run={**RUN, "requests": -1}),
        text(run={**RUN, "requests": 1e300}),
        text(run={**RUN, "requests": True}),
        text(run={**RUN, "compute_bound": "compute"}),
        text(run={**RUN, "tokens_per_dollar": -1.0}),
        text(run={**RUN, "bad": {"<script>": 1}}),
        text(run={**RUN, "bad": {f"cause_{n}": 1 for n in range(100)}}),
        text(sweep={**SWEEP, "attains_rps": -1.0}),
        text(sweep={**SWEEP, "attains_rps": None}),
        text(sweep={**SWEEP, "trials": [[1.0]]}),
        text(sweep={**SWEEP, "trials": [[1.0] * 8] * 65}),
        text(sweep={**SWEEP, "carried_rps": 0.0}).replace("0.0", "NaN"),
        text(sweep={**SWEEP, "carried_rps": 0.0}).replace("0.0", "Infinity"),
        text(sweep={**SWEEP, "carried_rps": 0.0}).replace("0.0", "1e999"),
        text(tune={"objective": 0.99, "max_num_seqs": 0}),
        text(tune={"objective": 0.99, "max_num_seqs": 1e9}),
        text(tune={"objective": 0.99, "rate_rps": "3"}),
        text(tune={"objective": 0.99, "trials": [[1.0]]}),
        "[" * 3000,
        text(title="x" * MOST_BYTES),
        "\udc80",
    ],
    ids=lambda left: left[:24],
)
def test_what_is_no_summary_is_no_result(left: str) -> None:
    assert Summary.read(left) is None


@given(st.text(max_size=300) | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
@settings(max_examples=100, deadline=None)
def test_nothing_that_a_container_leaves_is_an_exception(left: str) -> None:
    Summary.read(left)


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert Summary.read(text(later={"a": 1})) is not None


def test_the_longest_summary_fits_into_a_termination_message() -> None:
    longest = float(f"{1.234e11:.4g}")
    row = (longest,) * len(TRIAL_COLUMNS)
    figures = {name: longest for name in RunFigures.model_fields if name.endswith(("_seconds", "_rps", "_dollar"))}
    run = RunFigures(
        requests=10**9, compute_bound=False, **figures, bad={f"{'a' * 30}{n:02d}": 10**9 for n in range(24)}
    )
    sweep = SweepFigures(objective=0.99, carried_rps=longest, attains_rps=longest, trials=(row,) * 64)
    whole = Summary(run=run, sweep=sweep).to_json()
    assert len(whole.encode()) <= MOST_BYTES
    assert Summary.read(whole) is not None
    tune = TuneFigures(objective=0.99, note="\N{SNOWMAN}" * 512, trials=((longest,) * len(TUNE_COLUMNS),) * MOST_TRIALS)
    tuned = Summary(run=run, tune=tune).to_json()
    assert len(tuned.encode()) <= MOST_BYTES
    assert Summary.read(tuned) is not None
    failed = Summary.failed(Failed.FAILED, "\N{SNOWMAN}" * 10_000).to_json()
    assert len(failed.encode()) <= MOST_BYTES
    assert Summary.read(failed) is not None


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e300, None])
def test_what_is_no_figure_is_left_out(value: float | None) -> None:
    assert figure(value) is None


def run_bench(*options: str) -> int:
    return main(["bench", *options])


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "records.jsonl"
    records.write(path, steady(3))
    return path


def test_with_a_summary_exit_0_says_that_it_was_measured(recorded: Path, tmp_path: Path) -> None:
    left = tmp_path / "termination-log"
    asked = (f"--from={recorded}", "--slo=ttft=1ms", "--warm-up=0s", "--cool-down=0s")
    assert run_bench(*asked) == 1, "the objective is missed"
    assert run_bench(*asked, f"--summary={left}") == 0
    found = Summary.read(left.read_text())
    assert found is not None
    assert found.run is not None
    assert (found.run.requests, found.run.attainment) == (3, 0.0)


@pytest.mark.parametrize(
    ("options", "why", "code"),
    [
        (("--url=http://127.0.0.1:9", "--concurrency=1", "--duration=1s"), Failed.UNREACHABLE, 1),
        (("--url=http://127.0.0.1:9", "--rate=1", "--concurrency=1"), Failed.INVALID, 2),
        (("--url=http://127.0.0.1:9", "--trace=/nowhere.csv"), Failed.INVALID, 2),
    ],
)
def test_a_failure_says_why_in_the_summary_too(
    options: tuple[str, ...], why: Failed, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = tmp_path / "termination-log"
    assert run_bench(*options, f"--summary={left}") == code
    found = Summary.read(left.read_text())
    assert found is not None
    assert found.failure is not None
    assert found.failure.why is why
    assert found.failure.message in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_said_before_anything_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_bench("--url=http://127.0.0.1:9", "--rate=1", "--summary=/nowhere/at/all") == 2
    assert "--summary /nowhere/at/all: the folder does not exist" in capsys.readouterr().err

"""`holdfast plan --perfect`: what a whole trace takes of those who size for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.cli.main import main
from holdfast.tools.plan.perfect import factor
from holdfast.twin.policies import POLICIES, STATIC
from holdfast.twin.scenarios.inputs import PEER_NAMES


def _manifest(folder: Path, **accelerator: Any) -> str:
    path = folder / "service.yaml"
    spec = {
        "model": {"uri": "meta-llama/Llama-3.1-8B"},
        "slo": {"ttft": "1s", "tpot": "80ms", "objective": "95%"},
        "accelerators": [{"name": "l40s", "costPerHour": 2.0} | accelerator],
    }
    path.write_text(yaml.safe_dump({"metadata": {"name": "chat"}, "spec": spec}))
    return str(path)


def _trace(folder: Path, *minutes_rps: float) -> str:
    """Even gaps at these rates, a minute each."""
    path, rows = folder / "trace.csv", ["arrival_seconds,prompt_tokens,output_tokens"]
    for minute, rate in enumerate(minutes_rps):
        rows += [f"{60 * minute + number / rate:.3f},1000,100" for number in range(round(60 * rate))]
    path.write_text("\n".join(rows))
    return str(path)


def _plan(folder: Path, *more: str, **accelerator: Any) -> int:
    return main(["plan", "-f", _manifest(folder, **accelerator), "--perfect", *more])


def test_gpu_hours_are_compared_only_where_the_objective_is_attained() -> None:
    assert factor(3.0, 2.0, True) == ", 1.50 times as many"
    assert factor(1.66, 3.82, False) == ""


@pytest.mark.slow
def test_nobody_beats_the_oracle_and_the_best_size_pays_for_the_peak(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = _trace(tmp_path, *[3] * 8, *[20] * 4, *[3] * 8)
    assert _plan(tmp_path, "--trace", trace, "--cold-start", "30s", "--peer", "keda-queue", "--json") == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    oracle, ours, stock, size, peer = runs
    assert [ours["policy"], stock["policy"], peer["policy"]] == ["holdfast", "holdfast-slow", "keda-queue"]
    assert size["policy"].startswith("static-peak:")
    attaining = [each["gpu_hours"] for each in runs if each["attainment"] >= 0.95]
    assert oracle["gpu_hours"] == min(attaining)
    assert size["gpu_hours"] > 1.5 * oracle["gpu_hours"]
    assert oracle["cost_dollars"] == pytest.approx(2.0 * oracle["gpu_hours"])


def test_one_request_shows_nothing_about_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n5,10,10\n")
    assert _plan(tmp_path, "--trace", str(path)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "1 request within 0 s" in said
    assert "give a longer trace" in said


def test_requests_without_sizes_are_refused_by_the_name_of_the_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bare.csv"
    path.write_text("arrival_seconds\n5\n6\n")
    assert _plan(tmp_path, "--trace", str(path)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no column 'prompt_tokens'" in said


@pytest.mark.parametrize("more", [["--rate", "5"], ["--trace", "trace.csv", "--plot", "plan.png"]])
def test_random_requests_and_pictures_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert _plan(tmp_path, *more) == 2
    assert "--perfect: give --trace FILE and no --plot" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--peer", "wva"], ["--cold-start", "0s"]])
def test_options_of_a_perfect_system_are_refused_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert main(["plan", "-f", _manifest(tmp_path), "--rate", "1", *more]) == 2
    assert (said := capsys.readouterr().err).count("\n") == 1
    assert f"{more[0]} without --perfect" in said


def test_numbers_of_sequences_are_refused_where_engines_have_those_of_the_spec(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _plan(tmp_path, "--trace", "trace.csv", "--max-num-seqs", "8") == 2
    assert "--max-num-seqs and --perfect" in capsys.readouterr().err


def test_hardware_without_step_times_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    declared = {"memoryGiB": 48.0, "bandwidthGBs": 864.0, "teraflops": 362.0}
    assert _plan(tmp_path, "--trace", _trace(tmp_path, 1, 1, 1), hardware=declared) == 2
    assert "l40s: its step times are not known" in capsys.readouterr().err


def test_the_peers_to_choose_from_are_the_policies_of_others() -> None:
    assert [name for name in POLICIES if not name.startswith("holdfast") and name != STATIC] == list(PEER_NAMES)


@pytest.mark.slow
def test_where_no_sizes_attain_the_remedy_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _plan(tmp_path, "--trace", _trace(tmp_path, 1, 1, 150), "--cold-start", "30s") == 1
    assert "No sizes up to scaling.max (10)" in (said := capsys.readouterr().out)
    assert "raise scaling.max, or relax spec.slo" in said

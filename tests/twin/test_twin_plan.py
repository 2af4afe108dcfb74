"""`holdfast plan` and the capacity that it simulates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from holdfast.cli.main import main
from holdfast.domain.service import Slo
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.simulator.twin.capacity import Bench, Lengths, lognormal_lengths
from holdfast.simulator.twin.fleet import EngineKind

SLO = Slo(1.0, 0.05, 0.95, 3600.0)
KIND = EngineKind(StepLaw(0.008, 4e-5, 2e-4, 4e-8, 4e-9), SchedulerLimits(64, 2048, 60_000))
LENGTHS = Lengths(np.full(10, 600), np.full(10, 100))


def _manifest(folder: Path, tpot: str = "50ms", name: str = "h100") -> Path:
    path = folder / "service.yaml"
    spec = {
        "model": {"uri": "meta-llama/Llama-3.1-8B"},
        "slo": {"ttft": "1s", "tpot": tpot, "objective": "95%"},
        "accelerators": [{"name": name, "costPerHour": 3.0}],
    }
    path.write_text(yaml.safe_dump({"metadata": {"name": "chat"}, "spec": spec}))
    return path


def test_the_simulated_rate_is_where_the_objective_just_holds() -> None:
    bench = Bench(KIND, SLO, LENGTHS, draws=3)
    found = bench.rate(5.0)
    assert found.error_rps < 0.05 * found.rate_rps
    assert bench.attainment(0.9 * found.rate_rps) >= 0.95
    assert bench.attainment(1.15 * found.rate_rps) < 0.95


@pytest.mark.parametrize("guess", [0.3, 30.0])
def test_a_bad_guess_finds_the_same_rate(guess: float) -> None:
    bench = Bench(KIND, SLO, LENGTHS, draws=2)
    assert bench.rate(guess).rate_rps == pytest.approx(bench.rate(6.0).rate_rps, rel=0.12)  # one run is not monotonous


def test_what_cannot_be_met_at_all_has_no_rate() -> None:
    assert Bench(KIND, replace(SLO, tpot_seconds=0.001), LENGTHS, draws=1).rate(1.0).rate_rps == 0.0


def test_lognormal_lengths_have_the_means_asked_for() -> None:
    lengths = lognormal_lengths(1000.0, 200.0, 1.0, 1_000_000)
    assert lengths.prompt_tokens.mean() == pytest.approx(1000.0, rel=0.03)
    assert lengths.output_tokens.mean() == pytest.approx(200.0, rel=0.03)
    assert lengths.prompt_tokens.min() >= 1


def test_a_plan_says_replicas_and_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "-f", str(_manifest(tmp_path)), "--rate", "90", "--prompt-tokens", "500", "--output-tokens", "50"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    offer = told["offers"][0]
    assert offer["replicas"] >= 2
    assert offer["cost_per_hour"] == pytest.approx(3.0 * offer["replicas"])
    assert offer["simulated"]["rate_rps"] * offer["replicas"] >= 90.0 > offer["simulated"]["rate_rps"]
    assert offer["simulated"]["rate_rps"] < offer["saturation_rps"]
    shares = [point["attainment"] for point in told["pareto"]]
    assert shares == sorted(shares)


def test_a_plan_from_a_trace_is_for_its_busiest_minute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{0.5 * number:.1f},300,30" for number in range(120)] + [f"{60 + 0.1 * n:.1f},300,30" for n in range(300)]
    (tmp_path / "trace.csv").write_text("\n".join(["arrival_seconds,prompt_tokens,output_tokens", *rows]))
    assert main(["plan", "-f", str(_manifest(tmp_path)), "--trace", str(tmp_path / "trace.csv")]) == 0
    assert "5 req/s of meta-llama/Llama-3.1-8B" in capsys.readouterr().out


def test_an_impossible_objective_is_told_with_what_would_be_possible(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _manifest(tmp_path, tpot="1ms")
    assert main(["plan", "-f", str(path), "--rate", "1", "--prompt-tokens", "500", "--output-tokens", "50"]) == 1
    assert "the objectives cannot be met" in " ".join(capsys.readouterr().out.split())


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = str(_manifest(tmp_path))
    for words in (
        ["-f", good, "--rate", "5"],
        ["-f", str(tmp_path / "none.yaml"), "--rate", "5", "--prompt-tokens", "5", "--output-tokens", "5"],
        ["-f", good, "--trace", str(tmp_path / "none.csv")],
    ):
        assert main(["plan", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1

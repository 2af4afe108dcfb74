"""What drafts gain and where they lose, in a plan."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from holdfast.cli.main import main
from holdfast.domain.speculation import NO_SPECULATION, Speculation
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.host import NO_HOST
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.speculation import VerifyingTimer, verifying
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.tools.plan import speculation
from holdfast.tools.plan.speculation import Decoding, Speculated, _loses_from, told

LAW = StepLaw(0.008, 4e-5, 1e-4, 4e-8, 4e-9)
SPEC = {
    "model": {"uri": "Qwen/Qwen3-8B"},
    "slo": {"ttft": "1s", "tpot": "30ms"},
    "accelerators": [{"name": "h100"}],
    "batching": {"mode": "Fixed", "maxNumSeqs": 256, "maxNumBatchedTokens": 2048},
}


def test_a_step_with_drafts_computes_them_and_reads_the_cache_once() -> None:
    timer = VerifyingTimer(LAW, 3)
    assert timer.step_seconds((), 10, 1000.0) == pytest.approx(0.008 + 40 * 1e-4 + 10 * 1000 * 4e-8)
    assert timer.step_seconds(((512, 0),), 0, 0.0) == LAW.step_seconds(((512, 0),), 0, 0.0)
    engine = EngineTimer(LAW, NO_HOST)
    assert verifying(engine, NO_SPECULATION) is engine


def test_few_sequences_gain_and_many_lose() -> None:
    # 8 ms + 0.1 ms a token: 5 drafts of which 1.5 are accepted pay as long as the weights take most of a step.
    loses = _loses_from(EngineTimer(LAW, NO_HOST), Speculation(5, 0.3), 0.0, 1024)
    assert loses == math.ceil(0.008 * 1.5 / (6e-4 - 2.5e-4))


@pytest.mark.parametrize("accelerator", ["h100", "a100", "l40s"])
def test_drafts_that_are_never_accepted_lose_almost_at_once_and_accepted_ones_never(accelerator: str) -> None:
    timer = engine_prior("Qwen/Qwen3-8B", accelerator).timer
    assert (_loses_from(timer, Speculation(3, 0.0), 1000.0, 256) or math.inf) <= 4
    assert _loses_from(timer, Speculation(3, 1.0), 1000.0, 256) is None


def test_each_accelerator_is_told_without_and_with_drafts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(yaml.safe_dump({"metadata": {"name": "chat"}, "spec": SPEC}))
    assert main(["plan", "-f", str(file), "--rate", "20", "--speculate", "3:0.62", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["speculation"]
    plain, drafting = found["plain"], found["drafting"]
    assert found["accelerator"] == "h100"
    assert (plain["drafted"], drafting["drafted"]) == (0, 3)
    assert drafting["rate_rps"] > plain["rate_rps"]
    assert drafting["replicas"] <= plain["replicas"]
    assert drafting["tpot_seconds"] < plain["tpot_seconds"] / 2.0


def test_gain_and_loss_are_said_in_words() -> None:
    plain = Decoding(0, 10.0, 2, 0.020)
    gains = Speculated("h100", 256, plain, Decoding(3, 12.0, 2, 0.010), None)
    assert told([gains]) == [
        "h100: at this load drafts make answers 2.00 times as fast; they gain with any number of sequences up to 256,"
        " the most in a step"
    ]
    loses = replace(gains, drafting=Decoding(3, 8.0, 3, 0.030), loses_from=64)
    assert "drafts make answers 1.50 times as slow; from 64 sequences at once on they lose" in told([loses])[0]
    assert "even with one sequence" in told([replace(loses, loses_from=1)])[0]
    assert "with drafts it does not keep up" in told([replace(loses, drafting=Decoding(3, 0.0, None, None))])[0]
    assert speculation.table([replace(loses, drafting=Decoding(3, 0.0, None, None))])[1][3:] == ["-", "-"]


@pytest.mark.parametrize(
    "text", ["x", "3", "3:", ":0.5", "0:0.5", "-1:0.5", "65:0.5", "3:1.01", "3:-0.1", "3:nan", "3:inf"]
)
def test_bad_drafts_are_told_in_one_line_with_the_remedy(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "plan",
        "--model",
        "Qwen/Qwen3-8B",
        "--accelerator",
        "h100",
        "--ttft",
        "1s",
        "--tpot",
        "30ms",
        "--rate",
        "20",
    ]
    with pytest.raises(SystemExit, match="2"):
        main([*words, f"--speculate={text}"])
    said = capsys.readouterr().err
    assert "give 1 to 64 tokens drafted a step, and the share of them that is accepted, as 3:0.62" in said
    assert said.count("\n") == 1


def test_drafts_are_looked_at_where_nothing_else_keeps_the_objectives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "service.yaml"
    tight = {**SPEC, "slo": {"ttft": "1s", "tpot": "5ms"}}
    file.write_text(yaml.safe_dump({"metadata": {"name": "chat"}, "spec": tight}))
    assert main(["plan", "-f", str(file), "--rate", "5", "--speculate", "3:0.8"]) == 1
    assert "h100: without drafts no size keeps the objectives; they gain" in capsys.readouterr().out


def test_no_more_sequences_are_looked_at_than_a_step_has_tokens_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(yaml.safe_dump({"metadata": {"name": "chat"}, "spec": SPEC}))
    main(["plan", "-f", str(file), "--rate", "5", "--speculate", "63:1", "--json"])
    (found,) = json.loads(capsys.readouterr().out)["speculation"]
    assert found["sequences"] == 2048 // 64

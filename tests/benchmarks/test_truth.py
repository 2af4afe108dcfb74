"""The page of every real run: what it calls an error, an interval and a miss, and that it is up to date."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import truth
from tests.shared_data import shared_data

ROOT = Path(__file__).parents[2]


def run(factor: float, spread: float = 0.0) -> truth.Run:
    """A twin whose latencies are so many times the real ones."""
    draw = np.random.default_rng(3)
    real = draw.exponential(1.0, (3, 200)) + 0.1
    return truth.Run("a", "b", real, real * factor * np.exp(spread * draw.standard_normal((3, 200))))


def test_a_twin_that_is_always_twice_as_slow_is_off_by_100_percent_without_doubt() -> None:
    for cells in truth.errors(run(2.0)).values():
        assert len(cells) == 4
        assert np.allclose(cells, 1.0)


def test_the_interval_holds_the_error_and_is_wider_where_requests_differ_more() -> None:
    (narrow, *_), (wide, *_) = (truth.errors(run(1.0, spread))["TTFT"] for spread in (0.1, 1.0))
    assert narrow[1] <= narrow[0] <= narrow[2]
    assert wide[2] - wide[1] > narrow[2] - narrow[1]


def test_a_miss_is_bold_on_both_sides_and_a_limit_itself_is_none() -> None:
    assert truth._bold(0.11, 0.1) == "**+11.0 %**"
    assert truth._bold(-0.11, 0.1) == "**-11.0 %**"
    assert truth._bold(0.1, 0.1) == "+10.0 %"


def test_a_folder_without_runs_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["truth", "--data", str(tmp_path / "none")])
    assert truth.main() == 2
    said = capsys.readouterr().err
    assert said.startswith(f"truth: --data: {tmp_path / 'none'}")
    assert said.count("\n") == 1


def test_the_page_says_of_a_second_gpu_what_its_table_says() -> None:
    rows = [line.split("|") for line in truth.block_fp8() if "FP8 in blocks" in line]
    saved = [round(float(row[2]) - float(row[3]), 1) for row in rows]
    assert saved == [2.5, 1.0, 7.8]
    assert "saves 1 ms on H200, 2.5 on H100 and 7.8 of 105.9 on L40S" in " ".join(truth.TEMPLATE.split())


@pytest.mark.data
@pytest.mark.slow
def test_the_page_is_what_the_command_writes() -> None:
    data = shared_data("vllm_gpu_h200").parent
    assert (ROOT / truth.PAGE).read_text(encoding="utf-8") == truth.page(data)

"""Options of the comparison: what is wrong with them is told in one line, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.autoscaling.__main__ import main


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--data", "/no/such/folder"], "there is no such folder"),
        (["--data", ".", "--seeds", "0"], "'0': give a whole number from 1 to 1000"),
        (["--data", ".", "--seeds=-1"], "'-1': give a whole number"),
        (["--data", ".", "--seeds", "²"], "give a whole number"),
        (["--data", ".", "--scarce-seeds", "x"], "'x': give a whole number"),
        (["--data", ".", "--workers", "0"], "'0': give a whole number"),
        (["--data", ".", "--results", "/proc/results"], "'/proc/results': results cannot be kept there"),
    ],
)
def test_an_option_that_means_nothing_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(words)
    assert refused.value.code == 2
    assert told in capsys.readouterr().err


def test_a_trace_that_is_missing_is_told_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", str(tmp_path), "--results", str(tmp_path), "--scenario", "spike", "--workers", "1", "--dry-run"]
    assert main(words) == 0
    words.remove("--dry-run")
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "AzureLLMInferenceTrace_code.csv: No such file or directory" in told
    assert "Traceback" not in told

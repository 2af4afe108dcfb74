"""The bars of `holdfast tune`, one row for each mix: on the twin's clock, so its figures are always the same."""

from __future__ import annotations

import pytest

from benchmarks import tune


@pytest.mark.parametrize("mix", tune.MIXES)
def test_the_choice_is_as_good_as_the_best_for_a_quarter_of_the_trials_and_a_fifth_of_the_time(
    mix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ["--mix", mix, "--slo", tune.LOOSE, "--endpoint", "host", "--seeds", "1", "--check"]
    monkeypatch.setattr("sys.argv", ["tune", *row])
    assert tune.main() == 0, capsys.readouterr().out

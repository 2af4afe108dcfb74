"""`holdfast bench --overlay`: several endpoints in one picture, and which of them nothing beats."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.main import main
from holdfast.tools.bench.figures.results import as_json, measure
from holdfast.tools.bench.load.load_generator import LatencyBounds
from holdfast.tools.reports.frontier import Spot, cheapest, front
from tests.tools.bench.bench_builders import PNG, steady


def measured(user: float, whole: float, rate: float = 1.0, per_dollar: float | None = None) -> dict[str, Any]:
    return {
        "user_tokens_per_second": {"p50": user},
        "output_tokens_per_second": whole,
        "arrival_rps": rate,
        "tokens_per_dollar": per_dollar,
    }


def sweep(path: Path, *loads: dict[str, Any]) -> str:
    path.write_text(json.dumps({"trials": [{"rate_rps": 1.0, "saturated": None, "results": each} for each in loads]}))
    return str(path)


def overlaid(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["bench", "--overlay", *words, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["spots"]
    return found


def test_tokens_are_shared_by_the_gpus_of_an_endpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = sweep(tmp_path / "one.json", measured(50.0, 1000.0, per_dollar=2e6))
    two = sweep(tmp_path / "two.json", measured(80.0, 1200.0))
    found = overlaid(capsys, one, f"{two}:2")
    assert [(each["choice"], each["gpu_tokens_per_second"]) for each in found] == [("one", 1000.0), ("two", 600.0)]
    assert [each["dollars_per_million"] for each in found] == [0.5, None]
    assert all(each["on_front"] for each in found)


def test_a_run_counts_as_one_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = measure(steady(40), LatencyBounds(), 0.0, 0.0, 2.0)
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(as_json(results, "m", "own", 0.99, "")))
    found = overlaid(capsys, *(str(tmp_path / f"{name}.json") for name in ("a", "b")))
    assert found[0]["user_tokens_per_second"] == pytest.approx(3.0 / 0.7)
    assert found[0]["dollars_per_million"] > 0.0


def test_a_saturated_load_is_not_among_what_nothing_beats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = {"trials": [{"saturated": "95 % finish", "results": measured(90.0, 9000.0)}]}
    (tmp_path / "full.json").write_text(json.dumps(full))
    calm = sweep(tmp_path / "calm.json", measured(50.0, 1000.0))
    found = overlaid(capsys, str(tmp_path / "full.json"), calm)
    assert [(each["choice"], each["missed"], each["on_front"]) for each in found] == [
        ("full", True, False),
        ("calm", False, True),
    ]
    assert main(["bench", "--overlay", str(tmp_path / "full.json"), calm]) == 0
    assert "full: saturated at each of its loads" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["compared.png", "compared.html"])
def test_a_picture_and_a_page_are_drawn(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    one = sweep(tmp_path / "one.json", measured(50.0, 1000.0, per_dollar=2e6), measured(40.0, 2000.0, per_dollar=4e6))
    two = sweep(tmp_path / "two.json", measured(80.0, 900.0))
    assert main(["bench", "--overlay", one, two, "--plot", str(tmp_path / name)]) == 0
    content = (tmp_path / name).read_bytes()
    assert content.startswith(PNG if name.endswith("png") else b"<!doctype html>")
    said = capsys.readouterr().out
    assert "two: nothing beats it at 80 tokens/s of a user" in said
    assert "measure with --cost-per-hour" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not JSON"),
        ("[]", "not the figures of a benchmark"),
        ("{}", "not the figures of a benchmark"),
        ('{"trials": 3}', "not the figures of a benchmark"),
        ('{"trials": [{"results": 3}]}', "not the figures of a benchmark"),
        ('{"trials": []}', "no load in it has finished requests"),
        ('{"refused": "client too slow", "results": null}', "its result was rejected"),
        (json.dumps({"results": measured(math.nan, 1.0)}), "no load in it has finished requests"),
        (json.dumps({"results": measured(-1.0, 1.0)}), "no load in it has finished requests"),
    ],
)
def test_a_file_without_figures_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    (tmp_path / "odd.json").write_text(content)
    good = sweep(tmp_path / "good.json", measured(1.0, 1.0))
    assert main(["bench", "--overlay", str(tmp_path / "odd.json"), good]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert "odd.json" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.json"], "give two files or more"),
        (["a.json", "a.json"], "a file is given twice"),
        (["a.json", "a.json:2"], "a file is given twice"),
        (["a.json", "./a.json"], "a file is given twice"),
        (["a.json", "b.json", "--cost-per-hour", "3"], "--cost-per-hour cannot be combined with --overlay"),
        (["a.json", "b.json", "--records", "r.jsonl"], "--records cannot be combined with --overlay"),
        (["a.json:0", "b.json"], "'0' is no number of GPUs"),
        (["a.json:x", "b.json"], "'x' is no number of GPUs"),
        (["a.json", "b.json", "--rate", "3"], "--rate cannot be combined with --overlay"),
        (["a.json", "b.json", "--url", "http://x"], "--url cannot be combined with --overlay"),
        (["absent.json", "b.json"], "cannot be read"),
    ],
)
def test_bad_usage_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["bench", "--overlay", *words]) == 2
    assert said in capsys.readouterr().err


SPOTS = st.lists(
    st.builds(
        Spot,
        st.sampled_from("abc"),
        st.floats(0.1, 1e3),
        st.floats(0.1, 1e4),
        st.none() | st.floats(0.01, 1e3),
        st.just("1"),
    ),
    max_size=12,
)


@given(SPOTS)
def test_nothing_beats_what_is_on_the_front_and_something_beats_the_rest(spots: list[Spot]) -> None:
    def beats(one: Spot, other: Spot) -> bool:
        first, second = ((each.user_tokens_per_second, each.gpu_tokens_per_second) for each in (one, other))
        return first != second and first[0] >= second[0] and first[1] >= second[1]

    best = front(spots)
    assert not any(beats(one, other) for one in spots for other in best)
    kept = {(each.user_tokens_per_second, each.gpu_tokens_per_second) for each in best}
    rest = [each for each in spots if (each.user_tokens_per_second, each.gpu_tokens_per_second) not in kept]
    assert all(any(beats(one, other) for one in best) for other in rest)
    assert all(each.dollars_per_million is not None for each in cheapest(spots))

"""The manifest says which code plays which finished runs: replays check it, and no run is ever rewritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.autoscaling.carry import KINDS, Play, Scope, carry, compare, draw, replayable
from benchmarks.autoscaling.cases import CASES, SHARED
from benchmarks.autoscaling.compare import PEERS
from benchmarks.autoscaling.journal import BESIDES, MANIFEST, Code, Journal, Key, Row, code_digest

ROW = Row(0.99, 2.0, 1.0, 1.0, 1.0, 0.1, 2, 0.5, "hpa")
NOW = code_digest("hpa")


def key(case: str, policy: str, *, code: str = "older", knob: float | None = None, seed: int = 1) -> Key:
    scenario = SHARED if case == SHARED.name else CASES[case]
    return Key(case, scenario.digest(), policy, knob, seed, code)


def journal(folder: Path, *runs: Key | tuple[Key, Row], **codes: Code) -> Journal:
    """A folder of runs; codes by kind of policy."""
    found = Journal(folder)
    for run in runs:
        found.add(*(run if isinstance(run, tuple) else (run, ROW)))
    if codes:
        found.write_codes(codes)
    return Journal(folder)


def keys(found: Journal, **scope: object) -> list[tuple[str, str]]:
    return [(key.case, key.policy) for key, _ in replayable(found, replace(Scope(), **scope))]


def played(different: Callable[[Key], bool] = lambda key: False) -> Play:
    """Every run as it was, but for these."""

    def play(asked: Sequence[Key]) -> list[Row]:
        return [replace(ROW, wall_seconds=9.0, attainment=0.9 if different(each) else 0.99) for each in asked]

    return play


def lines(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}


def test_code_that_the_manifest_does_not_know_is_labelled_by_its_digest(tmp_path: Path) -> None:
    assert journal(tmp_path).label("hpa") == NOW
    assert journal(tmp_path, hpa=Code("first", "other")).label("hpa") == NOW
    assert journal(tmp_path, hpa=Code("first", NOW)).label("hpa") == "first"
    sized = journal(tmp_path, static=Code("first", code_digest("static:3")))
    assert sized.label("static:3") == sized.label("static:5") == "first"


def test_every_policy_of_the_benchmark_can_be_replayed() -> None:
    assert set(KINDS) == {*BESIDES, *PEERS}


def test_runs_of_current_code_and_of_scenarios_that_are_gone_are_not_replayed(tmp_path: Path) -> None:
    found = journal(
        tmp_path,
        key("step", "hpa", code=NOW),
        key("step", "knative", code="first"),
        replace(key("step", "wva"), case="gone"),
        knative=Code("first", code_digest("knative")),
    )
    assert keys(found) == []
    assert keys(found, again=True) == [("step", "hpa"), ("step", "knative")]


def test_runs_that_others_followed_can_be_left_out(tmp_path: Path) -> None:
    followed = key("step", "hpa", code="oldest"), replace(key("step", "wva"), case_digest="gone")
    last = key("step", "hpa"), key("step", "wva"), key("smooth", "hpa", code="oldest")
    found = journal(tmp_path, *followed, *last)
    assert len(keys(found)) == len([*followed, *last])
    assert {run for run, _ in replayable(found, Scope(newest=True))} == set(last)


def test_runs_are_limited_by_policy_by_time_and_to_single_services(tmp_path: Path) -> None:
    long = (key("smooth", "static:5"), replace(ROW, wall_seconds=30.0))
    found = journal(tmp_path, long, key("step", "hpa"), key(SHARED.name, "holdfast"), key("step", "holdfast"))
    assert keys(found, kinds=["static", "holdfast"]) == [
        (SHARED.name, "holdfast"),
        ("smooth", "static:5"),
        ("step", "holdfast"),
    ]
    assert keys(found, single=True, most_seconds=20.0) == [("step", "hpa"), ("step", "holdfast")]


def test_one_run_of_each_policy_in_each_scenario_is_drawn_the_shortest_first() -> None:
    rows = [(key("step", "hpa", knob=float(knob)), replace(ROW, wall_seconds=knob)) for knob in range(2, 9)]
    rows += [(key("step", "static:3"), replace(ROW, wall_seconds=1.0))]
    rows += [(key("smooth", "static:5"), replace(ROW, wall_seconds=30.0))]
    assert [(each.case, each.policy) for each, _ in draw(rows)] == [
        ("step", "static:3"),
        ("step", "hpa"),
        ("smooth", "static:5"),
    ]


def test_a_run_is_the_same_whatever_time_it_took() -> None:
    runs = [(key("step", "hpa"), ROW), (key("smooth", "hpa"), ROW), (key("step", "static:3"), ROW)]

    def play(asked: Sequence[Key]) -> list[Row]:
        assert [each for each, _ in runs] == asked
        return [replace(ROW, wall_seconds=9.0), replace(ROW, gpu_hours=2.0 + 1e-15), replace(ROW, attainment=0.9)]

    assert compare(runs, play) == [each for each, _ in runs[1:]]


def test_code_that_plays_the_same_changes_the_manifest_alone(tmp_path: Path) -> None:
    runs = [key("step", "hpa"), key("smooth", "hpa"), key("step", "static:3")]
    found = journal(tmp_path, *runs, hpa=Code("older", "old"), wva=Code("theirs", "theirs"))
    before = lines(tmp_path)
    assert carry(found, Scope(), played()) == 0
    assert lines(tmp_path) == before
    after = Journal(tmp_path)
    assert after.codes == {
        "hpa": Code("older", NOW),
        "static": Code("older", code_digest("static:3")),
        "wva": Code("theirs", "theirs"),
    }
    assert [after.label(policy) for policy in ("hpa", "static:5")] == ["older", "older"]


def test_a_different_run_is_named_and_its_policy_keeps_its_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [key("step", "hpa", knob=2.5), key("smooth", "hpa"), key("step", "knative")]
    found = journal(tmp_path, *runs, hpa=Code("older", "old"))
    assert carry(found, Scope(), played(lambda each: each.knob is not None)) == 1
    assert Journal(tmp_path).codes == {"hpa": Code("older", "old"), "knative": Code("older", code_digest("knative"))}
    assert capsys.readouterr().out.splitlines() == [
        "different: step, hpa knob 2.5, seed 1",
        "hpa of older: 1 of 2 runs are the same",
        "knative of older: 1 of 1 runs are the same",
        "2 of 3 replayed runs are the same",
    ]


def test_current_code_can_be_checked_at_any_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [key("step", "hpa", code="first", seed=seed) for seed in (1, 2, 3)]
    found = journal(tmp_path, *runs, hpa=Code("first", NOW))
    manifest = (tmp_path / MANIFEST).read_bytes()
    for scope, count in ((Scope(), 0), (Scope(again=True), 1), (Scope(again=True, every=True), 3)):
        assert carry(found, scope, played()) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"{count} of {count} replayed runs are the same"
    assert carry(found, Scope(again=True, every=True), played(lambda each: each.seed == 2)) == 1
    assert (tmp_path / MANIFEST).read_bytes() == manifest


def test_of_several_labels_that_play_the_same_the_one_with_most_runs_is_kept(tmp_path: Path) -> None:
    few = [key("step", "hpa", code="few")]
    many = [key("step", "hpa", code="many", seed=seed) for seed in (1, 2, 3)]
    found = journal(tmp_path, *many, *few, hpa=Code("few", "old"))
    assert carry(found, Scope(), played()) == 0
    assert Journal(tmp_path).codes == {"hpa": Code("many", NOW)}


def test_fewer_old_runs_do_not_displace_those_of_the_present_code(tmp_path: Path) -> None:
    new = [key("step", "hpa", code=NOW, seed=seed) for seed in (1, 2, 3)]
    found = journal(tmp_path, *new, key("step", "hpa"), hpa=Code("older", "old"))
    assert carry(found, Scope(), played()) == 0
    assert Journal(tmp_path).label("hpa") == NOW


def test_a_scenario_whose_digest_changed_keeps_its_label_where_its_runs_are_the_same(tmp_path: Path) -> None:
    old = [replace(key(case, policy), case_digest="old") for case in ("step", "smooth") for policy in ("hpa", "wva")]
    found = journal(tmp_path, *old)
    before = lines(tmp_path)
    assert carry(found, Scope(), played(lambda each: (each.case, each.policy) == ("smooth", "wva"))) == 1
    after = Journal(tmp_path)
    assert lines(tmp_path) == before
    assert after.codes == {"hpa": Code("older", NOW), "step": Code("old", CASES["step"].digest())}
    assert after.case_label("step", CASES["step"].digest()) == "old"
    assert after.case_label("smooth", CASES["smooth"].digest()) == CASES["smooth"].digest()
    assert keys(after) == [("smooth", "hpa"), ("smooth", "wva"), ("step", "wva")]


def test_a_check_that_finds_nothing_to_replay_is_no_success(tmp_path: Path) -> None:
    found = journal(tmp_path, replace(key("step", "hpa"), case="gone"))
    assert carry(found, Scope(), played()) == 0
    assert carry(found, Scope(again=True), played()) == 1

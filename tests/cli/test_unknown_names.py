"""A misspelled name is refused with the one that was meant, and taken as it is only with `--unknown`."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.emulate import parse_options
from holdfast.cli.main import main
from holdfast.emulator.options import BadOptions
from holdfast.enginemodel.catalog import find_accelerator
from holdfast.enginemodel.suggestions import accelerator_names, like_accelerator, like_model

PLAN = ("plan", "--ttft=1s", "--tpot=50ms", "--rate=2")
TUNE = ("tune", "--url=http://127.0.0.1:1", "--slo=ttft=1s", "--restart-command=true")


def refused(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    """The one line of a refusal."""
    try:
        code = main(given)
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(("typed", "meant"), [("plna", "plan"), ("stats", "status"), ("catalogue", "catalog")])
def test_a_misspelled_command_is_answered_with_the_one_that_was_meant(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, typed, "--rate=2")
    assert line == f"holdfast: there is no command {typed!r}; did you mean {meant}? see holdfast --help"


def test_a_command_like_no_other_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "xyzzy") == "holdfast: there is no command 'xyzzy'; see holdfast --help"


@pytest.mark.parametrize(
    "given",
    [
        (*PLAN, "--model=Qwen/Qwen3-8B", "--accelerator=h10"),
        (*PLAN, "--model=Qwen/Qwen3-8B", "--accelerator=l4", "--accelerator=h10:2"),
        (*TUNE, "--accelerator=h10"),
        ("emulate", "--model=m", "--accelerator=h10"),
        ("emulate", "--model=m", "--accelerator", "h10"),
    ],
)
def test_a_misspelled_accelerator_is_refused_with_the_one_that_was_meant(
    given: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, *given)
    assert line.startswith(f"holdfast {given[0]}: ")
    assert "unknown; did you mean h100? holdfast catalog lists the known ones" in line


def test_bench_names_the_accelerator_that_was_meant_before_all_that_are_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = refused(capsys, "bench", "--url=http://127.0.0.1:1", "--rate=2", "--accelerator=h10")
    assert "'h10' is unknown: did you mean h100? give one of b300, " in line


def test_a_misspelled_model_is_refused_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, *PLAN, "--model=Qwen/Qwen3-8", "--accelerator=h100")
    assert "--model Qwen/Qwen3-8 is unknown; did you mean Qwen/Qwen3-8B?" in line


@pytest.mark.slow
def test_unknown_hardware_is_planned_as_a_guess_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    main([*PLAN, "--model=Qwen/Qwen3-8B", "--accelerator=h10", "--unknown", "--json"])
    assert {offer["source"] for offer in json.loads(capsys.readouterr().out)["offers"]} == {"unknown"}


def test_an_engine_emulates_unknown_hardware_if_asked_for_or_if_its_pod_says_so() -> None:
    assert parse_options(["--model=m", "--accelerator=h10", "--unknown"], {})[0].accelerator == "h10"
    assert parse_options(["--model=m"], {"HOLDFAST_ACCELERATOR": "pool-7"})[0].accelerator == "pool-7"
    with pytest.raises(BadOptions):
        parse_options(["--model=m", "--accelerator=pool-7"], {"HOLDFAST_ACCELERATOR": "pool-7"})


def test_every_suggested_accelerator_is_known_and_near_names_lead_to_it() -> None:
    assert all(find_accelerator(name) for name in accelerator_names())
    near = {"l50s": "l40s", "H10": "h100", "mi300y": "mi300x", "gaudi": "gaudi3", "a10g0": "a10g", "b20": "b200"}
    assert {name: like_accelerator(name) for name in near} == {a: f"did you mean {b}? " for a, b in near.items()}
    assert like_accelerator("pool-7") == like_accelerator("") == like_model("acme/secret") == ""


def test_the_catalog_says_what_a_bare_name_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "h100"]) == 0
    assert capsys.readouterr().out.startswith("accelerator h100: h100_sxm, 79.6 GiB")
    assert main(["catalog", "Qwen/Qwen3-8B", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["name"] == "Qwen/Qwen3-8B"
    assert main(["catalog", "h10"]) == 1
    assert "Did you mean h100?" in capsys.readouterr().out
    assert main(["catalog", "Qwen/Qwen3-8"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert "Did you mean Qwen/Qwen3-8B?" in line
    assert main(["catalog", "h100", "--model", "Qwen/Qwen3-8B"]) == 2

"""`holdfast catalog`: what is known, and what a name is taken for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.cli.main import main


def printed(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[int, str]:
    code = main(["catalog", *given])
    return code, capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[int, Any]:
    code, text = printed(capsys, "--json", *given)
    return code, json.loads(text)


def test_the_catalog_lists_models_and_accelerators_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(capsys)
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert code == 0
    assert rows["Qwen/Qwen3-14B"] == ["Qwen/Qwen3-14B", "14.8B", "14.8B", "bf16", "30", "163840", "-"]
    assert rows["moonshotai/Kimi-K2"][1:5] == ["1026B", "32B", "fp8", "1026"]
    assert rows["h100_sxm"] == ["h100_sxm", "79.6", "3350", "989"]
    assert "accelerators[].hardware" in text


def test_the_json_names_the_step_tables_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = as_json(capsys)
    tables = {model["name"]: model["stepTables"] for model in found["models"]}
    assert {"accelerator": "h100_sxm", "gpus": 1} in tables["Qwen/Qwen3-8B"]
    assert tables["deepseek-ai/DeepSeek-V3"] == []
    assert {"name": "mi355x", "memoryGiB": 288.0, "bandwidthGBs": 8000.0, "teraflops": 2500.0} in found["accelerators"]


def test_a_name_is_shown_as_what_it_is_taken_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = printed(
        capsys, "--model", "Qwen/Qwen3-8B-AWQ", "--accelerator", "h100", "--resource", "nvidia.com/mig-3g.40gb"
    )
    model, accelerator = text.splitlines()
    assert code == 0
    assert "int4 weights of 6 GB" in model
    assert "no step table" in model
    assert accelerator.startswith("accelerator h100: h100_sxm-mig-3g.40gb, 39.8 GiB")


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (("--model", "pvc://models/tiny"), "LLMBenchmark"),
        (("--model", "Qwen/Qwen3-8B", "--quantization", "compressed-tensors"), "LLMBenchmark"),
        (("--accelerator", "pool-7"), "accelerators[].hardware"),
        (("--product", "NVIDIA-A40-12Q"), "accelerators[].hardware"),
        (("--accelerator", "h100", "--resource", "nvidia.com/gpu.shared"), "accelerators[].hardware"),
        (("--model", "", "--accelerator", "h100"), "LLMBenchmark"),
    ],
)
def test_an_unknown_name_is_answered_with_the_remedy_and_exit_code_1(
    given: tuple[str, ...], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = printed(capsys, *given)
    assert code == 1
    assert "unknown" in text
    assert remedy in text


def test_an_unknown_name_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = as_json(capsys, "--model", "Qwen/Qwen3-8B", "--product", "NVIDIA-L4", "--kv-cache-dtype", "fp8")
    assert (code, found["model"]["kvBytesPerToken"], found["accelerator"]["name"]) == (0, 147456 / 2, "l4")
    assert as_json(capsys, "--accelerator", "pool") == (1, {"accelerator": None})


def test_a_name_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = printed(capsys, "--model", "acme/\x1b[2Jx\nmodel y: known")
    assert "\x1b" not in text
    assert len(text.splitlines()) == 1

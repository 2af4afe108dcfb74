"""Which container of somebody else's pod template runs vLLM, and what its command line says."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.observe.vllm_container import VllmContainer, vllm_containers

IMAGE = "vllm/vllm-openai:v0.32.0"
MODEL = "Qwen/Qwen3-8B"
GPU = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}


def containers(*given: dict[str, Any]) -> tuple[VllmContainer, ...]:
    return vllm_containers({"spec": {"containers": [{"name": f"c{i}", **each} for i, each in enumerate(given)]}})


def only(container: dict[str, Any]) -> VllmContainer:
    (found,) = containers(container)
    return found


STARTS: dict[str, dict[str, Any]] = {
    "the image's own command": {"image": IMAGE, "args": ["--model", MODEL, "--max-model-len=8k"]},
    "the image's own command with a positional model": {"image": IMAGE, "args": [MODEL, "--max-model-len", "8k"]},
    "the image's vllm": {"image": IMAGE, "args": ["serve", MODEL, "--max-model-len", "8k"]},
    "a private mirror with a digest": {
        "image": "reg.local:5000/ml/rocm-vllm@sha256:1",
        "args": [MODEL, "--max-model-len=8k"],
    },
    "vllm serve": {"image": "x", "command": ["vllm", "serve", MODEL], "args": ["--max_model_len=8000"]},
    "a path": {"image": "x", "command": ["/opt/venv/bin/vllm"], "args": ["serve", MODEL, "--max-model-len=8000"]},
    "the module": {
        "image": "x",
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": ["--model", MODEL, "--max-model-len", "8000"],
    },
    "a shell": {"image": "x", "command": ["/bin/sh", "-c"], "args": [f"vllm serve {MODEL} --max-model-len 8000"]},
    "a script": {
        "image": "x",
        "command": ["bash", "-ec"],
        "args": [f"pip install x && export A=1\nexec vllm serve {MODEL} \\\n  --max-model-len 8000 2>&1 | tee /log"],
    },
    "a quoted model": {"image": "x", "command": ["sh", "-c", f"vllm serve '{MODEL}' --max-model-len 8000;sleep 1"]},
    "a variable of Kubernetes": {
        "image": IMAGE,
        "args": ["--model=$(MODEL)", "--max-model-len=8k"],
        "env": [{"name": "MODEL", "value": MODEL}],
    },
    "a variable of the shell": {
        "image": "x",
        "command": ["sh", "-c", 'vllm serve "${MODEL}" --max-model-len $LEN'],
        "env": [{"name": "MODEL", "value": MODEL}, {"name": "LEN", "value": "8000"}],
    },
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())
def test_the_container_that_starts_vllm_is_read(start: dict[str, Any]) -> None:
    found = only(start)
    assert found.model == MODEL
    assert found.number("--max-model-len") == 8000


@pytest.mark.parametrize(
    "other",
    [
        {"image": "nginx", "args": ["-g", "daemon off;"]},
        {"image": IMAGE, "command": ["sleep", "inf"]},
        {"image": IMAGE, "command": ["vllm", "bench", "serve"]},
        {"image": "lmcache/vllm-router:1", "args": ["--port", "80"]},
        {"image": "vllm/production-stack:1"},
        {"image": "company/myvllmish"},
        {"image": None, "command": None, "args": None, "env": None},
        {"command": ["sh"]},
        {"command": ["sh", "-c"]},
        {"command": ["sh", "-c", "echo 'vllm serve' # vllm serve x"]},
    ],
)
def test_a_container_that_runs_something_else_is_none(other: dict[str, Any]) -> None:
    assert containers(other) == ()


def test_every_container_that_runs_vllm_is_found_in_order() -> None:
    found = containers({"image": IMAGE}, {"image": "nginx"}, {"command": ["vllm", "serve", "b"]})
    assert [each.name for each in found] == ["c0", "c2"]


@pytest.mark.parametrize("template", [{}, {"spec": None}, {"spec": {"containers": None}}])
def test_a_template_without_containers_runs_no_vllm(template: dict[str, Any]) -> None:
    assert vllm_containers(template) == ()


def test_gpus_are_those_of_the_limits_and_network_cards_are_none() -> None:
    limits = {"rdma/hca": "8", "nvidia.com/gpu": "2", "cpu": "8", "memory": "64Gi"}
    found = only({"image": IMAGE, "resources": {"limits": limits}})
    assert (found.resource, found.gpus) == ("nvidia.com/gpu", 2)
    found = only({"image": IMAGE, "resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}})
    assert (found.resource, found.gpus) == ("nvidia.com/mig-1g.10gb", 1)
    assert only({"image": IMAGE, "resources": {"limits": {"nvidia.com/gpu": "many"}}}).gpus == 0
    assert only({"image": IMAGE}).resource is None


def test_the_sharing_of_gpus_is_read_in_every_spelling() -> None:
    assert only({"image": IMAGE, "args": ["-tp", "4", "--pipeline_parallel_size=2", "-dp=2"]}).sharing == (4, 2, 2)
    assert only({"image": IMAGE, "args": ["--tensor-parallel-size", "0", "-pp", "x"]}).sharing == (1, 1, 1)


@pytest.mark.parametrize("text", ["", "-1", "0", "nan", "inf", "1e9", "9999999999", "8kk", "٣", "auto", "0.5"])
def test_a_number_that_vllm_would_not_take_is_unknown(text: str) -> None:
    assert only({"image": IMAGE, "args": [f"--max-num-seqs={text}"]}).number("--max-num-seqs") is None


def test_the_name_that_clients_use_stands_in_for_a_model_from_elsewhere() -> None:
    assert (
        only({"image": IMAGE, "args": ["--config", "/c.yaml", "--served-model-name", "qwen3-8b"]}).model == "qwen3-8b"
    )
    assert only({"image": IMAGE}).model is None


def test_an_unfinished_quotation_in_a_script_is_no_error() -> None:
    assert only({"command": ["sh", "-c", f"vllm serve {MODEL} --x 'a"]}).model == MODEL

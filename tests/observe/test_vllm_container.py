"""Which container of somebody else's pod template runs vLLM, and what its command line says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.observe.objects.vllm_container import VllmContainer, engine_url, vllm_containers
from holdfast.rendered.names import CONTAINER

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


# D13: commands of benchmarks, nix files and start scripts.
STARTS |= {
    f"D13 {title}": {"image": "x", **container}
    for title, container in {
        "the module of the command": {
            "command": ["python3", "-m", "vllm.entrypoints.cli.main", "serve", MODEL, "--max-model-len=8k"]
        },
        "flags before the model": {"command": ["vllm", "serve", "--port", "8000", "--max-model-len=8k", MODEL]},
        "a switch before it": {"command": ["vllm", "serve", "--enable-prefix-caching", MODEL, "--max-model-len=8k"]},
        "a process that reaps": {"command": ["tini", "--", "bash", "-c", f"vllm serve {MODEL} --max-model-len 8000"]},
        **{
            text: {"command": ["bash", "-lc", f"{text} --max-model-len ${{LEN:-8000}}"]}
            for text in (
                f'exec vllm serve "${{MODEL_ID:-{MODEL}}}"',
                f"vllm serve ${{MODEL_ID-{MODEL}}}",
                f"vllm serve ${{A:-${{B:-{MODEL}}}}}",
                f"vllm serve \"${{A:='{MODEL}'}}\"",
                f': "${{MODEL:={MODEL}}}"\nvllm serve "$MODEL"',
                f"export MODEL={MODEL}\nvllm serve $MODEL",
                f"export MODEL='{MODEL}' && vllm serve ${{MODEL}}",
                f"MODEL={MODEL}; vllm serve $MODEL",
                "ORG=Qwen NAME=Qwen3-8B\nMODEL=$ORG/$NAME\nCUDA_VISIBLE_DEVICES=0 vllm serve $MODEL",
                f"FLAGS='{MODEL} --dtype auto'\nvllm serve $FLAGS",
                f"MODEL=a/b; MODEL={MODEL}; vllm serve $MODEL",
                f"python -m vllm.entrypoints.openai.api_server --host $(hostname -i) --model {MODEL}",
            )
        },
    }.items()
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


UNREADABLE = (
    "vllm serve $MODEL",
    'vllm serve "${MODEL}" --port 80',
    "vllm serve $(cat /model) --port 80",
    "vllm serve `cat /model`",
    "vllm serve ${MODEL%/}",
    "vllm serve ${MODEL:?set it}",
    'vllm serve "$@"',
    'vllm serve "${ARGS[@]}"',
    "vllm serve --model=$MODEL",
    "vllm serve --served-model-name $NAME",
    "if [ -n $X ]; then MODEL=a/b; else MODEL=c/d; fi\nvllm serve $MODEL",
    "[ -n $X ] && MODEL=a/b\nvllm serve $MODEL",
    "for MODEL in a/b c/d; do vllm serve $MODEL; done",
    "vllm serve ${A:-${B}}",
    "vllm serve ${A:-$A}",
    "vllm serve ${FROM:-Qwen/Qwen3-8B}",
    "vllm serve --port 8000",
    "vllm serve --kv-transfer-config $KV",
)


@pytest.mark.parametrize("script", UNREADABLE)
def test_a_model_that_only_the_running_script_knows_is_unknown_and_never_a_piece_of_shell(script: str) -> None:
    elsewhere = {"name": "FROM", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}
    assert only({"command": ["sh", "-c", script], "env": [elsewhere]}).model is None


def test_a_default_is_unknown_where_a_config_map_may_set_the_variable() -> None:
    container = {"command": ["sh", "-c", f"vllm serve ${{M:-{MODEL}}}"], "envFrom": [{"configMapRef": {"name": "a"}}]}
    assert only(container).model is None
    assert only({**container, "envFrom": [{"secretRef": {"name": "token"}}]}).model == MODEL


@given(st.text(alphabet="$`{}()[]:-=?+%#&;|\\\"' \nAMODELvlmserv/", max_size=60))
def test_no_script_is_an_error_and_no_model_a_piece_of_shell(text: str) -> None:
    for script in (text, f"vllm serve {text}", f"M={text}\nvllm serve $M"):
        for found in containers({"command": ["sh", "-c", script]}):
            assert found.model is None or not {"$", "`"} & set(found.model)


ENGINES = {
    "vllm serve a & vllm serve b": 2,
    "vllm serve a --port 1 & vllm serve b --port 2 & wait": 2,
    "nohup vllm serve a > /log 2>&1 &\nexec python3 -m vllm.entrypoints.openai.api_server --model b": 2,
    "for i in 0 1; do CUDA_VISIBLE_DEVICES=$i vllm serve a --port 800$i & done; wait": 2,
    "vllm serve a & wait": 1,
    "vllm serve a & python3 exporter.py": 1,
    "vllm serve a || vllm serve a --enforce-eager": 1,
    "if [ $X ]; then vllm serve a; else vllm serve b; fi": 1,
    "while true; do vllm serve a; done": 1,
    "vllm bench serve & vllm serve a": 1,
}


@pytest.mark.parametrize(("script", "engines"), ENGINES.items())
def test_engines_that_run_next_to_each_other_are_counted(script: str, engines: int) -> None:
    assert only({"command": ["bash", "-c", script]}).engines == engines


def test_an_unfinished_quotation_in_a_script_is_no_error() -> None:
    assert only({"command": ["sh", "-c", f"vllm serve {MODEL} --x 'a"]}).model == MODEL


def listening(args: list[str], ip: str = "10.0.0.7", name: str = "vllm", **spec: object) -> str:
    """Where the engine of a pod listens."""
    container = {"name": name, "image": "vllm/vllm-openai:v0.32.0", "args": args}
    return engine_url({"spec": {"containers": [container], **spec}, "status": {"podIP": ip} if ip else {}})


def test_an_engine_is_asked_at_the_address_of_its_pod() -> None:
    assert listening(["--model=m"]) == "http://10.0.0.7:8000"
    assert listening(["--model=m", "--port=9000"]) == "http://10.0.0.7:9000"
    assert listening(["--model=m", "--port", "9000", "--ssl-certfile", "/tls.crt"]) == "https://10.0.0.7:9000"
    assert listening(["--model=m", "--port=x"]) == "http://10.0.0.7:8000"
    assert listening(["--model=m"], "fd00::7") == "http://[fd00::7]:8000"


def test_an_engine_of_ours_is_asked_by_its_own_arguments() -> None:
    container = {"name": CONTAINER, "image": "mine", "command": ["python3", "x.py"], "args": ["--ssl-certfile=/tls"]}
    pod = {"spec": {"containers": [{"name": "sidecar", "image": "y"}, container]}, "status": {"podIP": "10.0.0.8"}}
    assert engine_url(pod) == "https://10.0.0.8:8000"


def test_no_pod_is_asked_that_has_no_address_of_its_own() -> None:
    assert listening(["--model=m"], hostNetwork=True) == ""
    assert (listening(["--model=m"], ""), engine_url({}), engine_url({"status": None, "spec": None})) == ("", "", "")

"""The rendered pods of a replica as processes, and weights that do not depend on how layers are divided."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from e2e.campaign.pods import engines, started, tiny
from e2e.campaign.weights import write_weights
from e2e.vllm.model import VOCABULARY, write_model

FOLDERS = {"/holdfast": "/here/files", "/models": "/here/models"}


@pytest.mark.parametrize(
    ("kind", "flag"), [("tensor", "--tensor-parallel-size=2"), ("pipeline", "--pipeline-parallel-size=2")]
)
def test_the_pods_of_a_group_become_a_leader_and_a_follower_that_know_each_other(kind: str, flag: str) -> None:
    containers = engines(tiny(2, **{kind: 2}))
    starts = [
        started(each, f"10.0.0.{rank}", {"LWS_WORKER_INDEX": str(rank), "LWS_LEADER_ADDRESS": "10.0.0.0"}, FOLDERS)
        for rank, each in enumerate(containers)
    ]
    leader, follower = (each.command for each in starts)
    assert leader[:4] == (sys.executable, "/here/files/launcher.py", "serve", "/here/models/tiny")
    assert {flag, "--nnodes=2", "--node-rank=0", "--master-addr=10.0.0.0"} <= set(leader)
    assert {*leader} - {*follower} == {"--node-rank=0"}
    assert {*follower} - {*leader} == {"--node-rank=1", "--headless"}
    assert [each.variables["VLLM_HOST_IP"] for each in starts] == ["10.0.0.0", "10.0.0.1"]


def test_a_replica_of_one_node_is_one_process_that_belongs_to_no_group() -> None:
    (container,) = engines(tiny())
    command = started(container, "10.0.0.0", {}, FOLDERS).command
    assert not [each for each in command if each.startswith(("--nnodes", "--node-rank", "--headless"))]


def test_a_dollar_that_the_operator_has_escaped_is_one() -> None:
    container = {
        "command": ["python3"],
        "args": ["$$(HOME)", "$(HOME)/x"],
        "env": [{"name": "HOME", "value": "/models"}],
    }
    start = started(container, "10.0.0.0", {}, FOLDERS)
    assert start.command == (sys.executable, "$(HOME)", "/here/models/x")
    assert start.variables == {"HOME": "/here/models"}


def test_weights_have_the_places_that_their_header_says_and_are_the_same_for_a_seed(tmp_path: Path) -> None:
    texts = []
    for folder, seed in (("one", 1), ("same", 1), ("other", 2)):
        write_model(tmp_path / folder)
        write_weights(tmp_path / folder, seed)
        texts.append((tmp_path / folder / "model.safetensors").read_bytes())
    assert texts[0] == texts[1] != texts[2]
    length = int.from_bytes(texts[0][:8], "little")
    header, body = json.loads(texts[0][8 : 8 + length]), texts[0][8 + length :]
    del header["__metadata__"]
    ends = [each["data_offsets"] for each in header.values()]
    assert [begin for begin, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert ends[-1][1] == len(body)
    begin, end = header["lm_head.weight"]["data_offsets"]
    head = np.frombuffer(body[begin:end], "<f4").reshape(header["lm_head.weight"]["shape"])
    assert head.shape == (VOCABULARY, 128)
    assert head.std() == pytest.approx(128**-0.5, rel=0.02)

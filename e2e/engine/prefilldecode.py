"""A prefill and a decode engine of the real vLLM, and a client that sends its requests on as a router does."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.engine.server import ADMISSION, MODEL, Prompt, Server, Settings
from e2e.patience import patient
from e2e.ports import free_port
from e2e.vllm.environment import Environment
from holdfast_engine.objectives.rules import Limits, Role

_TO_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
_ANSWER_SECONDS = patient(60.0)
_ARGUMENTS = (ADMISSION, "--enable-log-requests", "--no-enable-prefix-caching")
# Blocks that are freed are soon another prompt's.
_FEW_BLOCKS = ("--num-gpu-blocks-override=64",)
TRACE, NAME_TOKENS = "verdicts.jsonl", 2
"""What e2e.engine.traced writes in an engine's folder, and by how many of its first tokens it calls a request."""


@dataclass
class Answer:
    """What a client got: seconds from sending its prompt to the first token, None without one, and all tokens."""

    ttft_seconds: float | None = None
    tokens: list[int] = field(default_factory=list)


@dataclass
class Pair:
    """Both engines; a client of them hangs up where its request says so."""

    prefill: Server
    decode: Server

    def compute(self, prompt: Prompt) -> dict[str, Any]:
        """What the prefill engine tells the decode engine."""
        answer = self.prefill.ask(prompt, temperature=0, max_tokens=1, kv_transfer_params=_TO_PREFILL)
        assert answer.status == 200, answer.text
        found: dict[str, Any] = json.loads(answer.text)["kv_transfer_params"]
        return found

    def answer(self, prompt: Prompt, way_seconds: float = 0.0, most_tokens: int | None = None) -> Answer:
        """Ask both, and be so long on the way between them; hang up behind `most_tokens`."""
        began = time.monotonic()
        told = self.compute(prompt)
        time.sleep(way_seconds)
        return self.read(prompt, told, began, most_tokens)

    def read(self, prompt: Prompt, told: dict[str, Any], began: float, most_tokens: int | None = None) -> Answer:
        """Ask the decode engine, which is told this."""
        found = Answer()
        with contextlib.closing(_post(self.decode, _body(prompt, stream=True, kv_transfer_params=told))) as connection:
            response = connection.getresponse()
            assert response.status == 200, response.read()
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                tokens = json.loads(line[len(b"data: ") :])["choices"][0].get("token_ids") or []
                if tokens and found.ttft_seconds is None:
                    found.ttft_seconds = time.monotonic() - began
                found.tokens += tokens
                if most_tokens is not None and len(found.tokens) >= most_tokens:
                    break
        return found

    def leave_prefill(self, prompt: Prompt, once: Callable[[], bool]) -> None:
        """Ask the prefill engine, and hang up once something holds."""
        body = _body(prompt, max_tokens=1, kv_transfer_params=_TO_PREFILL)
        with contextlib.closing(_post(self.prefill, body)):
            self.prefill.wait_for(once, 20.0, "moment to hang up")


def _body(prompt: Prompt, **fields: Any) -> dict[str, Any]:
    asked = {"model": MODEL, "prompt": list(prompt.tokens), "max_tokens": prompt.output_tokens}
    return {**asked, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields}


def _post(server: Server, body: dict[str, Any]) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=_ANSWER_SECONDS)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection


@contextlib.contextmanager
def running_pair(
    vllm: Environment,
    plugin: Path,
    folder: Path,
    limits: dict[Role, Limits],
    lease_seconds: int,
    start: Callable[[Settings], Server] = Server,
) -> Iterator[Pair]:
    """Both engines, ready."""
    transfer = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"kv_lease_duration": lease_seconds},
    }
    servers = []
    for role in (Role.PREFILL, Role.DECODE):
        of = folder / role.value
        of.mkdir()
        (of / "engine-limits").write_text(limits[role].to_json())
        arguments = [*_ARGUMENTS, f"--kv-transfer-config={json.dumps(transfer)}"]
        variables = {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        }
        arguments += _FEW_BLOCKS if role is Role.PREFILL else ()
        servers.append(start(Settings(vllm, of, plugin, arguments=arguments, variables=variables, spawns=True)))
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(2) as pool:
        prefill, decode = pool.map(stack.enter_context, servers)
        yield Pair(prefill, decode)

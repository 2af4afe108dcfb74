"""How evenly a router loads replicas: the busiest one as a multiple of the mean, over any 60 s.

    pip install --no-deps --target build/router vllm-router==0.1.17
    PYTHONPATH=build/router python -m benchmarks.router_balance     # some twelve minutes

Emulated engines (eight sequences of Qwen3-8B on an L40S, which carry 0.98 requests/s of 1155 tokens in and 211 out)
behind two of the real vllm-router, as a service has them. Requests arrive at random, at `--load` of what the engines
carry, and each belongs to one of `--sessions` sessions, drawn by lot. Every second each engine is asked how many
requests it has received; printed is the most uneven 60 s of a run, the median one, and the whole run.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from benchmarks.router_sessions import router, wait_until_ready
from e2e.engine.server import samples_of
from e2e.ports import free_port
from holdfast.router.options import POLICIES
from holdfast.tools.bench.generators.client import OwnGenerator
from holdfast.tools.bench.load import workload
from holdfast.tools.bench.load.load_generator import Endpoint, Load, LoadStep
from holdfast.tools.bench.load.records import RequestOutcome
from holdfast.twin.arrays.timers import Floats

MODEL = "Qwen/Qwen3-8B"
CARRIES_RPS = 0.98
PROMPT_TOKENS, OUTPUT_TOKENS = 1155, 211
ENGINE = ("--accelerator=l40s", "--max-num-seqs=8", "--max-num-batched-tokens=2048")
ROUTERS = 2
WINDOW_SECONDS = 60
BAR = 1.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=6, help="default 6")
    parser.add_argument("--sessions", type=int, nargs="+", default=[20, 100], help="per replica (default 20 100)")
    parser.add_argument("--load", type=float, default=0.8, help="of what the engines carry (default 0.8)")
    parser.add_argument("--seconds", type=float, default=240.0, help="of a run (default 240)")
    options = parser.parse_args()
    print(
        f"{options.replicas} engines at {options.load:g} of what they carry, {options.seconds:g} s, {ROUTERS} routers"
    )
    print(f"policy           sessions/replica  busiest/mean of 60 s: worst  median  whole run  (bar {BAR:g})")
    with ExitStack() as stack:
        engines = [stack.enter_context(engine()) for _ in range(options.replicas)]
        for policy in POLICIES:
            for sessions in options.sessions if policy == POLICIES[1] else options.sessions[-1:]:
                received = asyncio.run(_run(policy, engines, options, sessions))
                worst, middle, whole = uneven(received)
                print(f"{policy:15}  {sessions:16}  {worst:27.2f}  {middle:6.2f}  {whole:9.2f}", flush=True)
    return 0


def uneven(received: Floats) -> tuple[float, float, float]:
    """Return busiest by mean replica: the worst and the median of all 60 s, and the whole.

    `received` counts the requests of each replica since its start: (seconds, replicas).
    """
    windows = received[WINDOW_SECONDS:] - received[:-WINDOW_SECONDS]
    ratios = windows.max(axis=1) / windows.mean(axis=1)
    whole = received[-1] - received[0]
    return float(ratios.max()), float(np.median(ratios)), float(whole.max() / whole.mean())


@contextmanager
def engine() -> Iterator[str]:
    """The address of an emulated engine that serves."""
    port = free_port()
    command = [sys.executable, "-m", "holdfast.cli.main", "emulate", "serve", MODEL, f"--port={port}", *ENGINE]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()


async def _run(policy: str, engines: Sequence[str], options: argparse.Namespace, sessions: int) -> Floats:
    """Requests that each engine has received, one row a second."""
    with ExitStack() as stack:
        urls = [stack.enter_context(router(policy, engines)) for _ in range(ROUTERS)]
        await asyncio.gather(*map(wait_until_ready, urls))
        loads = [_load(url, options, sessions * len(engines) // ROUTERS, seed) for seed, url in enumerate(urls)]
        load = asyncio.gather(*loads)
        rows, began = [], time.monotonic()
        for second in range(int(options.seconds)):
            await asyncio.sleep(max(0.0, began + second - time.monotonic()))
            rows.append(await asyncio.gather(*(asyncio.to_thread(_received, url) for url in engines)))
        await load
    return np.array(rows)


async def _load(url: str, options: argparse.Namespace, sessions: int, seed: int) -> None:
    lengths = workload.fixed(PROMPT_TOKENS, OUTPUT_TOKENS)
    rate_rps = options.load * CARRIES_RPS * options.replicas / ROUTERS
    planned = workload.at_rate((LoadStep(0.0, rate_rps),), False, 1.0, options.seconds, lengths, seed)
    run = await OwnGenerator().run(
        Endpoint(url, MODEL, sessions=sessions, prefix_tokens=64), Load(planned, len(planned)), lambda record: None
    )
    bad = [each for each in run.records if each.outcome is not RequestOutcome.FINISHED]
    if bad:
        raise RuntimeError(f"{len(bad)} of {len(run.records)} requests failed, such as: {bad[0].error}")


def _received(url: str) -> float:
    """Requests that ended, run or wait."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10.0) as answer:
        page = answer.read().decode()
    names = ("request_success_total", "num_requests_running", "num_requests_waiting")
    return sum(value for name in names for value in samples_of(page, f"vllm:{name}").values())


if __name__ == "__main__":
    sys.exit(main())

"""What a router gains that keeps a session at one replica: prompt tokens found in prefix caches, and TTFT.

    pip install --no-deps --target build/router vllm-router==0.1.17
    PYTHONPATH=build/router python -m benchmarks.router_sessions     # some five minutes, after `make vllm-cpu`

Real vLLM for CPUs with a tiny model behind the real vllm-router, once for each policy, `--rounds` times in turn.
Requests arrive at random and each continues one of `--sessions` sessions, drawn by lot: its prompt begins with the
session's prefix. The engines' KV cache holds `--held` of all prefixes, so that a replica that gets every session must
forget some. Every run has new prefixes. Printed are the share of prompt tokens that the engines found in their prefix
caches, TTFT, and how many requests the busiest replica got, as a multiple of the mean.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from e2e.engine.server import MODEL, Server, Settings
from e2e.ports import free_port
from e2e.vllm.environment import environment
from holdfast.router.options import POLICIES, Options
from holdfast.router.serve import COMMAND
from holdfast.tools.bench.figures import definitions
from holdfast.tools.bench.generators.client import OwnGenerator
from holdfast.tools.bench.load import workload
from holdfast.tools.bench.load.load_generator import Endpoint, Load, LoadStep, PromptKind
from holdfast.tools.bench.load.records import RequestOutcome
from holdfast.twin.arrays.timers import Floats

BLOCK_TOKENS = 128
"""Of vLLM for CPUs."""
OWN_TOKENS, OUTPUT_TOKENS = 32, 8
"""Of a request, after its session's prefix, and of its answer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: shares of prompt tokens and of requests, and TTFT in seconds."""

    cached_share: float
    ttft_p50_seconds: float
    ttft_p90_seconds: float
    busiest_to_mean: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=2, help="default 2")
    parser.add_argument("--sessions", type=int, default=48, help="default 48")
    parser.add_argument("--prefix-tokens", type=int, default=512, help="default 512")
    parser.add_argument("--held", type=float, default=0.75, help="of the prefixes, in a replica's cache (default 0.75)")
    parser.add_argument("--rate", type=float, default=8.0, help="requests/s (default 8)")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a run (default 40)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each policy (default 3)")
    options = parser.parse_args()
    runs = asyncio.run(_measured(options))
    print(
        f"{options.replicas} engines, {options.sessions} sessions of {options.prefix_tokens} tokens, an engine holds "
        f"{options.held:.0%} of them; {options.rate:g} req/s for {options.seconds:g} s, tiny model, CPU"
    )
    for line in told(runs):
        print(line)
    return 0


def told(runs: dict[str, list[Outcome]]) -> Iterator[str]:
    """A line for each policy: the median of its runs, with the least and the most of the share that was found."""
    yield "policy           tokens found in the prefix cache  TTFT p50, ms  p90, ms  busiest/mean"
    for policy, found in runs.items():
        shares = sorted(each.cached_share for each in found)
        p50, p90, uneven = (
            median(getattr(each, name) for each in found)
            for name in ("ttft_p50_seconds", "ttft_p90_seconds", "busiest_to_mean")
        )
        shown = f"{median(shares):.1%} ({shares[0]:.1%} to {shares[-1]:.1%})"
        yield f"{policy:15}  {shown:>32}  {1000 * p50:>12.1f}  {1000 * p90:>7.1f}  {uneven:>12.2f}"


async def _measured(options: argparse.Namespace) -> dict[str, list[Outcome]]:
    runs: dict[str, list[Outcome]] = {policy: [] for policy in POLICIES}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        engines = [stack.enter_context(_engine(Path(folder) / str(each), options)) for each in range(options.replicas)]
        for number in range(options.rounds):
            for policy in POLICIES[:: 1 if number % 2 == 0 else -1]:
                with router(policy, [engine.url for engine in engines]) as url:
                    runs[policy].append(await _run(url, engines, options, number))
    return runs


def _engine(folder: Path, options: argparse.Namespace) -> Server:
    blocks = math.ceil(options.held * options.sessions * options.prefix_tokens / BLOCK_TOKENS)
    return Server(Settings(environment(), folder, arguments=(f"--num-gpu-blocks-override={blocks}",)))


@contextmanager
def router(policy: str, urls: Sequence[str]) -> Iterator[str]:
    """vllm-router with our flags; replicas are given at its start, because one machine has no DNS name for several."""
    port = free_port()
    flags = Options("", port=port, metrics_port=free_port(), policy=policy).flags()
    with subprocess.Popen([*COMMAND, *flags, "--worker-urls", *urls], stdout=subprocess.DEVNULL) as child:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()


async def _run(url: str, engines: Sequence[Server], options: argparse.Namespace, seed: int) -> Outcome:
    await wait_until_ready(url)
    before = list(map(_counted, engines))
    ttft = await _ttft_seconds(url, options, seed)
    gained = np.array(list(map(_counted, engines))) - np.array(before)
    asked, found, served = gained.sum(axis=0)
    p50, p90 = (definitions.percentile(ttft, share) for share in (0.5, 0.9))
    return Outcome(found / asked, p50, p90, gained[:, 2].max() * len(engines) / served)


async def _ttft_seconds(url: str, options: argparse.Namespace, seed: int) -> Floats:
    """Of each request of a load."""
    lengths = workload.fixed(options.prefix_tokens + OWN_TOKENS, OUTPUT_TOKENS)
    planned = workload.at_rate((LoadStep(0.0, options.rate),), False, 1.0, options.seconds, lengths, seed)
    prefixes = {"sessions": options.sessions, "prefix_tokens": options.prefix_tokens}
    endpoint = Endpoint(url, MODEL, prompts=PromptKind.IDS, **prefixes)
    run = await OwnGenerator().run(endpoint, Load(planned, len(planned)), lambda record: None)
    bad = [each for each in run.records if each.outcome is not RequestOutcome.FINISHED]
    if bad:
        raise RuntimeError(f"{len(bad)} of {len(run.records)} requests failed, such as: {bad[0].error}")
    return np.array([definitions.ttft_seconds(each) for each in run.records])


def _counted(engine: Server) -> tuple[float, float, float]:
    """Prompt tokens looked up in the prefix cache, those found, and requests that ended, since the engine's start."""
    queries, hits, ended = (
        sum(engine.samples(f"vllm:{name}_total").values())
        for name in ("prefix_cache_queries", "prefix_cache_hits", "request_success")
    )
    return queries, hits, ended


async def wait_until_ready(url: str) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(f"{url}/readiness", timeout=2.0) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            await asyncio.sleep(0.1)
    raise RuntimeError("vllm-router is not ready after 30 s; its log is above")


if __name__ == "__main__":
    sys.exit(main())

"""What the client of `holdfast bench` adds to a TTFT: an emulated engine notes when it writes each first token.

python benchmarks/bench_client.py --check    # 2,000 streams, 5,000 chunks/s and more, a minute

Both clocks are the machine's monotonic one. The engine runs on one core and the client on another where there are two.
What the client itself would refuse to report counts as missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from aiohttp import web

from holdfast.cli.bench import allow_connections
from holdfast.emulator import server
from holdfast.emulator.options import EmulatorOptions, set_up
from holdfast.emulator.stream import TokenStream
from holdfast.enginemodel.host import Host
from holdfast.tools.bench.generators.client import OwnGenerator
from holdfast.tools.bench.load.load_generator import Endpoint, Load, Planned
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord

MODEL = "Qwen/Qwen3-8B"
STREAMS, CHUNKS_PER_SECOND = 2000, 5300.0
"""Asked for: every step of the engine is a little late."""

LONGEST_MS, LEAST_CHUNKS = 5.0, 5000.0
"""The bar: of added TTFT at p99, and of the chunks that came."""

LAG_SECONDS = 0.005
"""That `holdfast bench` allows its client."""

SPEED = 1e6
"""Of the emulated engine: its steps last as long as their launches alone."""


class StampedStream(TokenStream):
    """Notes when its first token was handed to the network."""

    stamps: dict[int, float] = {}  # noqa: RUF012 - of one process, which serves one run

    def __init__(self, request: web.Request, *more: Any) -> None:
        super().__init__(request, *more)
        self._index = int(request.headers["X-Request-Id"].rpartition("-")[2])

    def _write(self, data: bytes) -> None:
        if data and self._opened and self._index not in self.stamps:
            self.stamps[self._index] = time.monotonic()
        super()._write(data)


def serve(pipe: Connection, options: EmulatorOptions, core: int | None) -> None:
    """An engine until the pipe says so; then the stamps go back."""
    _pin(core)
    server.TokenStream = StampedStream  # type: ignore[misc]
    asyncio.run(_serve(pipe, options))


async def _serve(pipe: Connection, options: EmulatorOptions) -> None:
    runner = server.runner_of(server.EmulatorServer(set_up(options)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    pipe.send(runner.addresses[0][1])
    await asyncio.to_thread(pipe.recv)
    pipe.send(StampedStream.stamps)
    await runner.cleanup()


def measure(streams: int, chunks_per_second: float, seconds: float) -> dict[str, Any]:
    """Keep so many streams under way; each takes chunks at its share of the rate."""
    cores = sorted(os.sched_getaffinity(0))
    engine_core = cores[1] if len(cores) > 1 else None
    # Every stream gets a token a step, so that steps come as often as one stream's share of the chunks.
    step = streams / chunks_per_second
    options = EmulatorOptions(
        model=MODEL,
        accelerator="h100",
        max_num_seqs=streams,
        max_num_batched_tokens=65_536,
        kv_tokens=streams * 1000,
        engine_host=Host(launch_seconds=(SPEED * step,) * 3),
        speed=SPEED,
        drain_file="/nonexistent/draining",
    )
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs, options, engine_core), daemon=True
    )
    server.start()
    try:
        url = f"http://127.0.0.1:{ours.recv()}"
        _pin(cores[0] if engine_core is not None else None)
        return asyncio.run(_measure(url, streams, step, seconds, ours))
    finally:
        server.terminate()
        os.sched_setaffinity(0, cores)


async def _measure(url: str, streams: int, step: float, seconds: float, pipe: Connection) -> dict[str, Any]:
    # Answers of different lengths end and begin evenly over the run.
    tokens = max(4, int(seconds / 3 / step))
    lengths = [2 + (number * 7919) % (2 * tokens) for number in range(streams * 20)]
    planned = [Planned(0.0, 8, length) for length in lengths]
    load = Load(iter(planned), 0, concurrency=streams, stop_after_seconds=seconds, drain_seconds=120.0)
    wall = time.monotonic()
    run = await OwnGenerator().run(Endpoint(url, MODEL), load, lambda record: None)
    wall = time.monotonic() - wall
    pipe.send("stamps")
    stamps: dict[int, float] = await asyncio.to_thread(pipe.recv)
    assert run.client is not None
    return figures(list(run.records), stamps) | {
        "refused": run.client.overloaded(LAG_SECONDS, step),
        "wall_seconds": wall,
        "client_cores": run.client.cpu_share,
        "client_lag_most_ms": 1000.0 * run.client.lag_most_seconds,
        "client_says_lag_p99_ms": 1000.0 * run.client.lag_p99_seconds,
        "us_per_chunk": 1e6 * run.client.cpu_share * wall / max(1, sum(len(each.token_at) for each in run.records)),
    }


def figures(records: list[RequestRecord], stamps: dict[int, float]) -> dict[str, float]:
    """The client's error of TTFT, and what it took in while all streams were under way."""
    moments = np.concatenate([np.asarray(record.token_at) for record in records])
    # Not the beginning, where all connections open at once, and not the end, where ever fewer streams are left.
    begin, end = np.quantile(moments, [0.2, 0.7])
    first = {record.index: record.token_at[0] for record in records if record.token_at}
    known = [index for index, at in first.items() if index in stamps and begin <= at < end]
    added = np.array([1000.0 * (first[index] - stamps[index]) for index in known])
    inside = int(((moments >= begin) & (moments < end)).sum())
    return {
        "requests": len(records),
        "first_tokens_compared": len(known),
        "not_finished": sum(record.outcome is not RequestOutcome.FINISHED for record in records),
        "chunks_per_second": inside / max(1e-9, end - begin),
        "added_ttft_p50_ms": float(np.quantile(added, 0.5)),
        "added_ttft_p99_ms": float(np.quantile(added, 0.99)),
        "added_ttft_most_ms": float(added.max()),
    }


def missed(found: dict[str, Any]) -> list[str]:
    """The bars that a measurement does not keep."""
    bars = {
        f"added TTFT of at most {LONGEST_MS:g} ms (p99)": found["added_ttft_p99_ms"] <= LONGEST_MS,
        f"{LEAST_CHUNKS:g} chunks/s": found["chunks_per_second"] >= LEAST_CHUNKS,
        "every request answered": not found["not_finished"],
        "a client that trusts itself": not found["refused"],
    }
    return [bar for bar, kept in bars.items() if not kept]


def _pin(core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})


def main() -> int:
    """Print the figures as JSON; 1 with --check where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--chunks-per-second", type=float, default=CHUNKS_PER_SECOND)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    allow_connections()
    found = measure(given.streams, given.chunks_per_second, given.seconds)
    print(json.dumps(found, indent=1))
    lost = missed(found)
    for bar in lost:
        print(f"missed: {bar}", file=sys.stderr)
    return 1 if lost and given.check else 0


if __name__ == "__main__":
    raise SystemExit(main())

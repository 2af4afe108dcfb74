"""Measure what the client itself costs: CPU seconds per second while it reads a given number of tokens per second.

python -m e2e.load.cost --streams 30 --tokens-per-second 50 --seconds 20
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from aiohttp import web

from e2e.load.client import ClientSettings, LoadClient
from e2e.load.trace import Arrival

_EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1763700000,'
    b'"model":"chat","choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}],"usage":null}\n\n'
)


def serve(port: Connection, tokens_per_second: float) -> None:
    """Stream as many tokens as asked for, one network write per token; the port goes back through the pipe."""
    asyncio.run(_serve(port, tokens_per_second))


async def measure(streams: int, tokens_per_second: float, seconds: float, connections: int) -> str:
    """Return one line of figures for `streams` concurrent streams."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, tokens_per_second), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{await asyncio.to_thread(ours.recv)}"
        tokens = 200
        length = tokens / tokens_per_second
        arrivals = [Arrival(k * length / streams, 1000, tokens) for k in range(int(streams * seconds / length))]
        async with LoadClient(ClientSettings(url, "chat", connections)) as client:
            wall, cpu = time.monotonic(), time.process_time()
            records = await client.run(arrivals)
            wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    finally:
        server.terminate()
    received = sum(record.output_tokens for record in records)
    complete = sum(record.status == "ok" for record in records)
    return (
        f"{complete}/{len(records)} requests complete, {received / wall:.0f} tokens/s, {cpu / wall:.3f} cores, "
        f"{cpu / received * 1e6:.0f} us per token"
    )


async def _serve(port: Connection, tokens_per_second: float) -> None:
    async def completions(request: web.Request) -> web.StreamResponse:
        wanted = (await request.json())["max_tokens"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(wanted):
            await asyncio.sleep(1 / tokens_per_second)
            await response.write(_EVENT)
        await response.write(b"data: [DONE]\n\n")
        return response

    application = web.Application()
    application.router.add_post("/v1/completions", completions)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port.send(runner.addresses[0][1])
    await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> None:
    """Print the cost of the client."""
    parser = argparse.ArgumentParser(prog="python -m e2e.load.cost", description=main.__doc__)
    parser.add_argument("--streams", type=int, default=30)
    parser.add_argument("--tokens-per-second", type=float, default=50.0, help="per stream")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--connections", type=int, default=64, help="0: a new connection per request")
    options = parser.parse_args(argv)
    print(asyncio.run(measure(options.streams, options.tokens_per_second, options.seconds, options.connections)))


if __name__ == "__main__":
    main()

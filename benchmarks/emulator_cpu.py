"""CPU one emulated engine takes to stream tokens: the client runs in this process and is not counted.

python benchmarks/emulator_cpu.py --streams 50 --seconds 20
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

MODEL = "Qwen/Qwen3-8B"
SPEED = 0.385
"""Brings a decode step of 50 sequences on an H100 to 20 ms: 50 tokens/s per stream."""


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def consume(port: int, tokens: int) -> int:
    """One streaming request; returns the events received."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": MODEL, "holdfast_prompt_tokens": 64, "max_tokens": tokens, "stream": True}).encode()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    received = 0
    while data := await reader.read(65536):
        received += data.count(b"data: {")
        if b"[DONE]" in data:
            break
    writer.close()
    return received


async def measure(streams: int, seconds: float, port: int) -> dict[str, float]:
    """Start an engine, stream for about `seconds`, and divide its CPU time by the time the streams took."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast.cli.main", "emulate", "serve", MODEL, f"--port={port}"),
        f"--speed={SPEED}",
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    tokens = int(seconds * 50)
    before, started = cpu_seconds(process.pid), time.monotonic()
    received = sum(await asyncio.gather(*(consume(port, tokens) for _ in range(streams))))
    elapsed, used = time.monotonic() - started, cpu_seconds(process.pid) - before
    memory = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmRSS" in line)
    process.terminate()
    await process.wait()
    return {
        "streams": streams,
        "tokens_per_second_per_stream": received / streams / elapsed,
        "cores": used / elapsed,
        "microseconds_per_token": used / received * 1e6,
        "rss_mib": int(memory.split()[1]) / 1024,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--port", type=int, default=18765)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments.streams, arguments.seconds, arguments.port))
    if arguments.json:
        print(json.dumps(result))
    else:
        print("  ".join(f"{name} {value:.3g}" for name, value in result.items()))
    return 0 if result["cores"] <= 0.3 else 1


if __name__ == "__main__":
    sys.exit(main())

"""The emulator in place of vLLM, to try the benchmark itself where vLLM is not installed: its figures mean nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.engine_overload.engines import Cores, Engine, Load, Paced, Start, on_core
from e2e.engine.server import MODEL, Server, Settings
from e2e.load.client import ClientSettings, LoadClient
from e2e.load.records import Record
from e2e.load.trace import Arrival
from e2e.vllm.environment import REPOSITORY, Environment

# About ten requests of a conversation a second.
_ENGINE = ("Qwen/Qwen3-8B", "--accelerator=l40s", "--speed=1")
_MAIN = "import sys; from holdfast.cli.main import main; sys.exit(main())"
# What is not answered so long after the last arrival is let go.
_LET_GO_SECONDS = 2.0


class EmulatedEngines:
    """`holdfast emulate`, and the project's own client."""

    # It has no scheduler with fixed limits that change, and starts in a second.
    live_limits = False

    def __init__(self, cores: Cores) -> None:
        self._cores = cores

    @contextlib.contextmanager
    def start(self, start: Start, folder: Path, limits: str) -> Iterator[Engine]:
        """A server with this text as its file of limits, ready once entered."""
        (folder / "engine-limits").write_text(limits)
        arguments = list(start.arguments)
        if start.kind == "plugin":
            arguments.append(f"--engine-limits={folder / 'engine-limits'}")
        with contextlib.ExitStack() as stack:
            with on_core(self._cores.engine):
                server = stack.enter_context(_Server(Settings(Environment(folder), folder, arguments=arguments)))
            yield server

    def offer(self, engine: Engine, load: Load) -> dict[str, Any]:
        """Play the trace; what is still under way a little after its end is let go."""
        with on_core(self._cores.client):
            records = asyncio.run(_play(engine.url, load))
        answered = [each for each in records if each.status == "ok"]
        seconds = max(each.finished_at for each in records) - min(each.sent_at for each in records)
        return {
            "start_times": [each.sent_at for each in records],
            "ttfts": [(each.first_token_at or each.sent_at) - each.sent_at for each in records],
            "latencies": [each.finished_at - each.sent_at for each in records],
            "output_lens": [each.output_tokens for each in records],
            "errors": ["" if each.status == "ok" else each.status for each in records],
            "completed": len(answered),
            "duration": seconds,
            "request_goodput": 0.0,
        }

    def paced(self, engine: Engine) -> Paced:
        """It has no pace but its own."""
        return Paced()

    def close(self) -> None:
        """Nothing runs."""


class _Server(Server):
    """The emulator, started and asked as vLLM is."""

    def _command(self) -> list[str]:
        port = self.url.rpartition(":")[2]
        served = (f"--served-model-name={MODEL}", "--host=127.0.0.1", f"--port={port}")
        return [sys.executable, "-c", _MAIN, "emulate", "serve", *_ENGINE, *served, *self._settings.arguments]

    def _variables(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(REPOSITORY / "operator")}


async def _play(url: str, load: Load) -> list[Record]:
    records: list[Record] = []
    requests = [Arrival(each.at_seconds, each.prompt_tokens, each.output_tokens) for each in load.requests]
    async with LoadClient(ClientSettings(url, MODEL), records.append) as client:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(client.run(requests), load.lets_go_seconds + _LET_GO_SECONDS)
    return sorted(records, key=lambda record: record.index)

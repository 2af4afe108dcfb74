"""Runs vllm-router, tells it the ready replicas, and lets it finish its requests at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence

import aiohttp

from holdfast.router.options import Options
from holdfast.router.replicas import PROBE_SECONDS, Replicas

_LOG = logging.getLogger(__name__)
_WARNED_SECONDS = 60.0
COMMAND = (sys.executable, "-m", "holdfast.router.child")


async def serve(options: Options, command: Sequence[str] = COMMAND) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status of vllm-router.

    A pod that ends is still sent requests until every node knows: the replicas are looked at until then.
    """
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    child = await asyncio.create_subprocess_exec(*command, *options.flags(), start_new_session=True)
    looking = asyncio.create_task(_keep_looking(options))
    try:
        lingering = asyncio.create_task(_linger(ending, options.linger_seconds))
        ended = asyncio.create_task(child.wait())
        await asyncio.wait((lingering, ended, looking), return_when=asyncio.FIRST_COMPLETED)
        lingering.cancel()
        if not ended.done():
            child.terminate()
        return await ended
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


async def _linger(ending: asyncio.Event, seconds: float) -> None:
    await ending.wait()
    await asyncio.sleep(seconds)


async def _keep_looking(options: Options) -> None:
    """Look at the replicas again and again; a router that does not answer yet, or any more, is asked again."""
    warned_at = -_WARNED_SECONDS
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:
        replicas = Replicas(options, session)
        while True:
            try:
                await replicas.look()
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                if loop.time() - warned_at >= _WARNED_SECONDS:
                    warned_at = loop.time()
                    _LOG.warning("vllm-router does not tell its replicas: %r", error)
            await asyncio.sleep(PROBE_SECONDS)

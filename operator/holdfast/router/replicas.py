"""Which replicas a router sends requests to: DNS lists all of them, and each says whether it is ready.

vllm-router could watch the pods itself. That needs a token of the API server, keeps replicas that are no longer ready,
and keeps replicas that are deleted while the watch is broken. Comparing the whole list each time has none of this.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import ip_address

import aiohttp

from holdfast.rendered.names import POD_PORT, READY_PATH
from holdfast.router.options import Options

_LOG = logging.getLogger(__name__)
PROBE_SECONDS = 0.5
"""Between two looks: a replica that drains or died gets requests for so long."""
LOOKUP_SECONDS = 2.0
"""Between two DNS queries: answers are cached for 5 to 30 s anyway (CoreDNS)."""
_LOOKUP_TIMEOUT_SECONDS = 0.2
SILENT_SECONDS = 30.0
"""A replica that has not answered for so long is gone: Kubernetes keeps the pods of a dead node for minutes."""
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_OF_ROUTER = aiohttp.ClientTimeout(total=10.0)  # it asks a new replica for its /health first
Lookup = Callable[[str, int], Awaitable[frozenset[str] | None]]
_NOTHING_LISTENS = 0
REGULAR, PREFILL, DECODE = "regular", "prefill", "decode"
"""What vllm-router calls engines that serve whole requests, and those of two pools."""
_NO_ADDRESS = (socket.EAI_NONAME, socket.EAI_NODATA)


class Answer(enum.Enum):
    """What a replica says of itself."""

    READY = "ready"
    NOT_READY = "not ready"  # it drains, loads or hangs
    SILENT = "silent"  # no answer in time: it may only be busy
    GONE = "gone"  # nothing listens there, or it has been silent for long


def wanted(
    listed: frozenset[str] | None, workers: frozenset[str], answers: Mapping[str, Answer], *, spared: bool = False
) -> frozenset[str]:
    """Return the replicas to send requests to.

    `listed` are those of DNS, None if DNS does not answer; `workers` is the router's present list. Without a ready one
    a replica that drains stays: it still serves, and DNS may tell of its successor later. Not if it is `spared`,
    because others serve in its place.
    """
    known = workers if listed is None else listed
    answer = {url: answers.get(url, Answer.SILENT) for url in known}
    ready = {url for url in known if answer[url] is Answer.READY}
    stays = (Answer.SILENT,) if ready or spared else (Answer.SILENT, Answer.NOT_READY)
    return frozenset(ready | {url for url in known & workers if answer[url] in stays})


def roles(replicas: frozenset[str], prefill: frozenset[str]) -> dict[str, str]:
    """What each engine does, in vllm-router's words; without a prefill engine, replicas serve whole requests."""
    if not (replicas and prefill):
        return dict.fromkeys(replicas, REGULAR)
    return dict.fromkeys(prefill, PREFILL) | dict.fromkeys(replicas, DECODE)


async def lookup(name: str, port: int) -> frozenset[str] | None:
    """Return the URLs of the replicas of a DNS name; None if DNS does not answer."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return frozenset() if error.errno in _NO_ADDRESS else None
    return frozenset(_url(str(address[0]), port) for *_, address in found)


class _Listing:
    """What DNS lists under the name of one pool: `urls`, None if it does not answer."""

    def __init__(self, lookup: Lookup, name: str, port: int) -> None:
        self.urls: frozenset[str] | None = None
        self._ask = functools.partial(lookup, name, port)
        self._looked_up_at = -LOOKUP_SECONDS
        self._asking: asyncio.Future[frozenset[str] | None] | None = None

    async def look_up(self) -> None:
        """Ask DNS if it is time; the last answer stays until the next one, so that a slow DNS keeps no dead replica."""
        now = asyncio.get_running_loop().time()
        if self._asking is None and now - self._looked_up_at >= LOOKUP_SECONDS:
            self._looked_up_at = now
            self._asking = asyncio.ensure_future(self._ask())
        if self._asking is not None and (await asyncio.wait((self._asking,), timeout=_LOOKUP_TIMEOUT_SECONDS))[0]:
            answered, self._asking = self._asking, None
            self.urls = answered.result()


class Replicas:
    """Keeps a router's list of replicas, and of the engines of a prefill pool."""

    def __init__(self, options: Options, session: aiohttp.ClientSession, lookup: Lookup = lookup) -> None:
        self._options = options
        self._session = session
        self._router = f"http://127.0.0.1:{options.port}"
        self._replicas = _Listing(lookup, options.replicas, options.replica_port)
        self._prefill = _Listing(lookup, options.prefill, options.replica_port) if options.prefill else None
        self._silent_since: dict[str, float] = {}

    async def look(self) -> None:
        """Compare the router's list with what is there, and write the difference; raises if the router is away."""
        workers = await self._workers()
        pools = [self._replicas, *([self._prefill] if self._prefill else [])]
        await asyncio.gather(*(pool.look_up() for pool in pools))
        prefill = frozenset(url for url, role in workers.items() if role == PREFILL)
        now = [frozenset(workers) - prefill, prefill][: len(pools)]
        # Nobody else's address is asked, though clients can add any to the router's list.
        known = (own if pool.urls is None else pool.urls for pool, own in zip(pools, now, strict=True))
        answers = await self._answers(sorted(frozenset().union(*known)))
        found = [
            wanted(pool.urls, own, answers, spared=pool is self._prefill) for pool, own in zip(pools, now, strict=True)
        ]
        await self._write(workers, roles(found[0], found[1] if self._prefill else frozenset()))

    async def _write(self, workers: Mapping[str, str], target: Mapping[str, str]) -> None:
        await asyncio.gather(*(self._remove(url) for url, role in workers.items() if target.get(url) != role))
        await asyncio.gather(*(self._add(url, role) for url, role in target.items() if workers.get(url) != role))

    async def _workers(self) -> dict[str, str]:
        """The router's list: the role of each engine."""
        path = "workers" if self._prefill else "list_workers"
        async with self._session.get(f"{self._router}/{path}", timeout=_OF_ROUTER) as answer:
            said = await answer.json()
        if self._prefill:
            return {each["url"]: each["worker_type"] for each in said["workers"]}
        return dict.fromkeys(said["urls"], REGULAR)

    async def _answers(self, urls: Sequence[str]) -> dict[str, Answer]:
        answers = dict(zip(urls, await asyncio.gather(*map(self._ask, urls)), strict=True))
        now, before = asyncio.get_running_loop().time(), self._silent_since
        self._silent_since = {url: before.get(url, now) for url in urls if answers[url] is Answer.SILENT}
        gone = (url for url, since in self._silent_since.items() if now - since >= SILENT_SECONDS)
        return answers | dict.fromkeys(gone, Answer.GONE)

    async def _ask(self, url: str) -> Answer:
        """A pod whose first process serves no requests answers at a port of its own."""
        host = url.removeprefix("http://").rpartition(":")[0]
        status = await self._status(f"{url}{READY_PATH}")
        if status == 404:
            status = await self._status(f"http://{host}:{POD_PORT}{READY_PATH}")
        if status is None:
            return Answer.SILENT
        return {200: Answer.READY, _NOTHING_LISTENS: Answer.GONE}.get(status, Answer.NOT_READY)

    async def _status(self, url: str) -> int | None:
        try:
            async with self._session.get(url, timeout=_TIMEOUT) as answer:
                return answer.status
        except aiohttp.ClientConnectorError:
            return _NOTHING_LISTENS
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def _add(self, url: str, role: str) -> None:
        if self._prefill:
            await self._tell("workers", url, json={"url": url, "worker_type": role, "model_id": self._options.model})
        else:
            await self._tell("add_worker", url, params={"url": url})

    async def _remove(self, url: str) -> None:
        await self._tell("remove_worker", url, params={"url": url})

    async def _tell(self, what: str, url: str, **said_of_it: Mapping[str, str]) -> None:
        try:
            asked = self._session.post(f"{self._router}/{what}", timeout=_OF_ROUTER, **said_of_it)  # type: ignore[arg-type]
            async with asked as answer:
                said = (await answer.text()).strip()
                _LOG.info("%s %s: %s", what, url, said)
        except (aiohttp.ClientError, TimeoutError) as error:
            _LOG.warning("%s %s failed, and is tried again: %r", what, url, error)


def _url(address: str, port: int) -> str:
    host = f"[{address}]" if ip_address(address).version == 6 else address
    return f"http://{host}:{port}"

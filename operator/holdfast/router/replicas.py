"""Which replicas a router sends requests to: DNS lists all of them, and each says whether it is ready.

vllm-router could watch the pods itself. That needs a token of the API server, keeps replicas that are no longer ready,
and keeps replicas that are deleted while the watch is broken. Comparing the whole list each time has none of this.
"""

from __future__ import annotations

import asyncio
import enum
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
_NO_ADDRESS = (socket.EAI_NONAME, socket.EAI_NODATA)


class Answer(enum.Enum):
    """What a replica says of itself."""

    READY = "ready"
    NOT_READY = "not ready"  # it drains, loads or hangs
    SILENT = "silent"  # no answer in time: it may only be busy
    GONE = "gone"  # nothing listens there, or it has been silent for long


def wanted(listed: frozenset[str] | None, workers: frozenset[str], answers: Mapping[str, Answer]) -> frozenset[str]:
    """Return the replicas to send requests to.

    `listed` are those of DNS, None if DNS does not answer; `workers` is the router's present list. Without a ready one
    a replica that drains stays: it still serves, and DNS may tell of its successor later.
    """
    known = workers if listed is None else listed
    answer = {url: answers.get(url, Answer.SILENT) for url in known}
    ready = {url for url in known if answer[url] is Answer.READY}
    stays = (Answer.SILENT,) if ready else (Answer.SILENT, Answer.NOT_READY)
    return frozenset(ready | {url for url in known & workers if answer[url] in stays})


async def lookup(name: str, port: int) -> frozenset[str] | None:
    """Return the URLs of the replicas of a DNS name; None if DNS does not answer."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return frozenset() if error.errno in _NO_ADDRESS else None
    return frozenset(_url(str(address[0]), port) for *_, address in found)


class Replicas:
    """Keeps a router's list of replicas."""

    def __init__(self, options: Options, session: aiohttp.ClientSession, lookup: Lookup = lookup) -> None:
        self._options = options
        self._session = session
        self._lookup = lookup
        self._router = f"http://127.0.0.1:{options.port}"
        self._listed: frozenset[str] | None = None
        self._looked_up_at = -LOOKUP_SECONDS
        self._asking: asyncio.Future[frozenset[str] | None] | None = None
        self._silent_since: dict[str, float] = {}

    async def look(self) -> None:
        """Compare the router's list with what is there, and write the difference; raises if the router is away."""
        workers = await self._workers()
        await self._look_up()
        # Nobody else's address is asked, though clients can add any to the router's list.
        candidates = sorted(workers if self._listed is None else self._listed)
        target = wanted(self._listed, workers, await self._answers(candidates))
        await asyncio.gather(*(self._tell("remove_worker", url) for url in workers - target))
        await asyncio.gather(*(self._tell("add_worker", url) for url in target - workers))

    async def _look_up(self) -> None:
        """Ask DNS if it is time; the last answer stays until the next one, so that a slow DNS keeps no dead replica."""
        now = asyncio.get_running_loop().time()
        if self._asking is None and now - self._looked_up_at >= LOOKUP_SECONDS:
            self._looked_up_at = now
            self._asking = asyncio.ensure_future(self._lookup(self._options.replicas, self._options.replica_port))
        if self._asking is not None and (await asyncio.wait((self._asking,), timeout=_LOOKUP_TIMEOUT_SECONDS))[0]:
            answered, self._asking = self._asking, None
            self._listed = answered.result()

    async def _workers(self) -> frozenset[str]:
        async with self._session.get(f"{self._router}/list_workers", timeout=_OF_ROUTER) as answer:
            return frozenset((await answer.json())["urls"])

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

    async def _tell(self, what: str, url: str) -> None:
        try:
            async with self._session.post(f"{self._router}/{what}", params={"url": url}, timeout=_OF_ROUTER) as answer:
                said = (await answer.text()).strip()
                _LOG.info("%s %s: %s", what, url, said)
        except (aiohttp.ClientError, TimeoutError) as error:
            _LOG.warning("%s %s failed, and is tried again: %r", what, url, error)


def _url(address: str, port: int) -> str:
    host = f"[{address}]" if ip_address(address).version == 6 else address
    return f"http://{host}:{port}"

"""The engines behind an activator: one address that never comes from a request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

PROBE_SECONDS = 0.5
CONNECT_SECONDS = 3.0
GONE_SECONDS = 30.0
"""DNS that does not know the engines for so long knows best; it is put right, and restarted, in less."""
_PIECE_BYTES = 64 * 1024

# RFC 9110, 7.6.1; the length is known anew, and nobody is asked to wait for what has been read already.
_OF_ONE_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_OURS = frozenset(("content-length", "expect", "host"))


class NotThere(Exception):
    """No replica takes connections: nothing of the request was sent."""


class Gone(Exception):
    """The service was deleted: no replica will ever come."""


class Upstream:
    """Passes requests on, each over a connection of its own, so that Kubernetes spreads them over the replicas."""

    def __init__(self, address: URL) -> None:
        self._address = address
        self._session: aiohttp.ClientSession | None = None
        self._leaving = False
        self._unknown = False  # the last probe found no such name
        self._probing: asyncio.Task[None] | None = None

    async def opened(self, _: web.Application) -> AsyncIterator[None]:
        """Connections can be made while the application runs."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        yield
        if self._probing is not None:
            self._probing.cancel()
        await self._session.close()

    async def send(self, request: web.Request, body: bytearray) -> aiohttp.ClientResponse:
        """Return the answer as soon as it begins; NotThere where none can come, ClientError where it broke off.

        Path and query are taken as they are written, host and port are never the request's.
        """
        if self._session is None:
            raise NotThere
        path, _, query = request.rel_url.raw_path_qs.partition("?")
        address = self._address
        url = URL.build(
            scheme=address.scheme, host=address.host or "", port=address.port, path=path, query_string=query,
            encoded=True,
        )  # fmt: skip
        headers = _passed_on(request.headers, _OURS)
        if body:
            headers["Content-Length"] = str(len(body))
        try:
            return await self._session.request(
                request.method, url, headers=headers, data=_pieces(body) if body else None, allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotThere from error

    def leave(self) -> None:
        """The process got a signal to end: from now on it matters whether the engines' name exists."""
        self._leaving = True

    async def there(self) -> None:
        """Wait until a replica takes connections; one probe stands for all who wait. Gone where none ever will."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())
        await asyncio.shield(self._probing)

    async def _probe(self) -> None:
        loop = asyncio.get_running_loop()
        unknown_since: float | None = None
        while not await self._connects():
            if self._leaving and self._unknown:
                unknown_since = loop.time() if unknown_since is None else unknown_since
                if loop.time() - unknown_since >= GONE_SECONDS:
                    raise Gone
            else:
                unknown_since = None
            await asyncio.sleep(PROBE_SECONDS)

    async def _connects(self) -> bool:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(self._name(), self._address.port)
        except (OSError, TimeoutError) as error:
            self._unknown = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
            return False
        writer.close()
        return True

    def _name(self) -> str:
        """The engines' name, in full once it matters whether it exists: who searches for a short one is sent on outside
        the cluster, where nobody may answer."""
        host = self._address.host or ""
        return in_full(host, _search_domains()) if self._leaving else host


def in_full(host: str, search: Sequence[str]) -> str:
    """Return the absolute name of SERVICE.NAMESPACE.svc where a pod's search domains tell it, else the name itself."""
    service, _, rest = host.partition(".")
    domain = next((domain for domain in search if domain.startswith(f"{rest}.")), None)
    return host if domain is None else f"{service}.{domain.rstrip('.')}."


def _search_domains() -> list[str]:
    """Return the domains that the kubelet wrote; none where they cannot be read."""
    try:
        lines = Path("/etc/resolv.conf").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [domain for line in lines if line.split()[:1] == ["search"] for domain in line.split()[1:]]


async def _pieces(body: bytearray) -> AsyncIterator[bytes]:
    """In one piece it would lie in memory twice, for all that were held at once."""
    for begin in range(0, len(body), _PIECE_BYTES):
        yield bytes(body[begin : begin + _PIECE_BYTES])


def answer_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Headers of an engine's answer for the client."""
    return _passed_on(headers, frozenset())


def _passed_on(headers: Mapping[str, str], ours: frozenset[str]) -> CIMultiDict[str]:
    named = {token.strip().lower() for name, value in headers.items() if name.lower() == "connection"
             for token in value.split(",")}  # fmt: skip
    dropped = _OF_ONE_HOP | ours | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)

"""The page over HTTP: files of the wheel and the board's answers, for reading only."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus
from importlib import resources

from aiohttp import web

from holdfast.domain.service import ServiceKey
from holdfast.page.access import Token, known_host
from holdfast.page.board import Board, JsonResponse

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
    "Vary": "Accept-Encoding, Authorization",
    "Server": "holdfast",
}
_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".uPlot": "text/plain",
}
_READING = ("GET", "HEAD")
NOBODY = (
    "No decisions in this process: it does not lead, or its first tick has not ended. Only the leader has data; "
    "find it with kubectl -n holdfast-system get lease holdfast"
)
UNKNOWN = (
    "this operator decides on no LLMService with this name; "
    "services with an invalid spec are in the list of all services"
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(board: Board, token: Token | None = None, hosts: Collection[str] = ()) -> web.Application:
    """Return the app: the page at /, its data at /api/services and /api/services/NAMESPACE/NAME."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = _refusal(request, token, hosts)
        if refused is not None:
            return refused
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _text(error.status, error.reason)

    async def services(request: web.Request) -> web.StreamResponse:
        return _sent(request, await board.fleet(), "application/json", _nobody(board))

    async def service(request: web.Request) -> web.StreamResponse:
        key = ServiceKey(request.match_info["namespace"], request.match_info["name"])
        return _sent(
            request, board.service(key), "application/json", _nobody(board) if board.blank else f"{key}: {UNKNOWN}"
        )

    app = web.Application(middlewares=[guarded], client_max_size=1024)
    app.on_response_prepare.append(_harden)
    app.router.add_get("/api/services", services)
    app.router.add_get("/api/services/{namespace}/{name}", service)
    for name, kind, answer in _files():
        app.router.add_get("/" if name == "index.html" else f"/{name}", _file(kind, answer))
    return app


def _nobody(board: Board) -> str:
    """Why there is no data here; without the API server, nobody can lead."""
    outage = board.api_outage()
    return f"The API server does not answer: {outage}. Engines keep running. {NOBODY}" if outage else NOBODY


async def _harden(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


def _refusal(request: web.Request, token: Token | None, hosts: Collection[str]) -> web.Response | None:
    if request.method not in _READING:
        refused = _text(HTTPStatus.METHOD_NOT_ALLOWED, "this page is read-only")
        refused.headers["Allow"] = ", ".join(_READING)
        return refused
    if not known_host(request.headers.get("Host", ""), hosts):
        told = "this host name is not allowed: use an IP address or localhost, or set --status-host"
        return _text(HTTPStatus.MISDIRECTED_REQUEST, told)
    if token is not None and not token.admits(request.headers.get("Authorization", "")):
        refused = _text(
            HTTPStatus.UNAUTHORIZED, "a token is required: as the password of any user, or as a bearer token"
        )
        refused.headers["WWW-Authenticate"] = 'Basic realm="Holdfast", charset="UTF-8"'
        return refused
    return None


def _sent(request: web.Request, answer: JsonResponse | None, kind: str, unless: str = "") -> web.Response:
    if answer is None:
        return web.json_response({"message": unless}, status=HTTPStatus.NOT_FOUND)
    zipped = "gzip" in request.headers.get("Accept-Encoding", "").lower()
    tag = f'"{answer.tag}{"-gzip" if zipped else ""}"'
    if tag in (each.strip() for each in request.headers.get("If-None-Match", "").split(",")):
        return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
    headers = {"ETag": tag, **({"Content-Encoding": "gzip"} if zipped else {})}
    body = answer.zipped if zipped else answer.body
    return web.Response(
        body=body, content_type=kind, charset=None if kind == "image/svg+xml" else "utf-8", headers=headers
    )


def _text(status: int, told: str) -> web.Response:
    return web.Response(status=status, text=told + "\n")


def _file(kind: str, answer: JsonResponse) -> Handler:
    async def send(request: web.Request) -> web.StreamResponse:
        return _sent(request, answer, kind)

    return send


def _files() -> list[tuple[str, str, JsonResponse]]:
    """Name, type and content of every file of the page; read once, nothing of the disk is served afterwards."""
    found = []
    for file in (resources.files("holdfast.page") / "static").iterdir():
        kind = _TYPES.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            found.append(
                (
                    file.name,
                    kind,
                    JsonResponse(hashlib.sha256(body).hexdigest()[:16], body, gzip.compress(body, mtime=0)),
                )
            )
    return found

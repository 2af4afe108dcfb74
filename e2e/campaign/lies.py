"""Twelve ways for Prometheus to lie, told by a proxy between the operators and the real one.

Nine change the rows of one service's namespace, so that several can be told at once; three are whole answers.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from e2e.patience import patient

Row = dict[str, Any]

EVERYWHERE = ""
"""In place of a namespace: all of them."""
LATE_SECONDS = 600.0
_GONE_SECONDS = patient(60.0)


def _valued(value: Callable[[str], str]) -> Callable[[Sequence[Row]], list[Row]]:
    """The same rows with other values, at each time."""

    def point(pair: Sequence[Any]) -> list[Any]:
        return [pair[0], value(pair[1])]

    def changed(row: Row) -> Row:
        return {
            **row,
            **({"value": point(row["value"])} if "value" in row else {}),
            **({"values": [point(pair) for pair in row["values"]]} if "values" in row else {}),
        }

    return lambda rows: [changed(row) for row in rows]


ROW_LIES: dict[str, Callable[[Sequence[Row]], list[Row]]] = {
    "nan": _valued(lambda _: "NaN"),
    "infinite": _valued(lambda _: "+Inf"),
    "negative": _valued(lambda value: value.removeprefix("-") if value.startswith("-") else f"-{value}"),
    "huge": _valued(lambda _: "1e300"),
    "zero": _valued(lambda _: "0"),
    "duplicate": lambda rows: [*rows, *rows],
    "half": lambda rows: list(rows[::2]),
}
"""Lies that need only the truth. `frozen` repeats an earlier answer, and `late` asks for what was ten minutes ago."""


def told(rows: Sequence[Row], lies: dict[str, str], frozen: Sequence[Row], late: Sequence[Row]) -> list[Row]:
    """What is told in place of the truth, by the lie of each namespace; `frozen` and `late` are other answers."""
    found = [row for row in rows if _namespace(row) not in lies]
    for namespace, lie in lies.items():
        source = {"frozen": frozen, "late": late}.get(lie, rows)
        own = [row for row in source if _namespace(row) == namespace]
        found += ROW_LIES[lie](own) if lie in ROW_LIES else own
    return found


def _namespace(row: Row) -> str:
    return str(row.get("metric", {}).get("namespace", EVERYWHERE))


class Liar:
    """A Prometheus in front of another one; a lie is told while `telling` it."""

    def __init__(self, upstream: str, address: str) -> None:
        self._upstream = upstream
        self._lies: dict[str, str] = {}
        self._remembered: dict[str, list[Row]] = {}
        self._frozen: dict[str, dict[str, list[Row]]] = {}
        self._over = threading.Event()
        liar = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                liar._answer(self, {})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                liar._answer(self, dict(urllib.parse.parse_qsl(body)))

            def log_message(self, *_: object) -> None:
                return

        self._server = _Server((address, 0), Handler)
        self.url = f"http://{address}:{self._server.server_port}"

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Answer while the block runs."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            self._over.set()
            self._server.shutdown()
            self._server.server_close()

    def begin(self, lie: str, namespace: str = EVERYWHERE) -> None:
        """Tell a lie from now on, about one namespace or about all."""
        if lie == "frozen":
            self._frozen[namespace] = {query: list(rows) for query, rows in self._remembered.copy().items()}
        self._over.clear()
        self._lies[namespace] = lie

    def end(self, namespace: str = EVERYWHERE) -> None:
        """Tell the truth about it again."""
        self._lies.pop(namespace, None)
        if EVERYWHERE not in self._lies:
            self._over.set()

    def _answer(self, request: http.server.BaseHTTPRequestHandler, form: dict[str, str]) -> None:
        lies = dict(self._lies)
        lie = lies.pop(EVERYWHERE, "")
        if lie == "hang":
            self._over.wait(_GONE_SECONDS)
            request.close_connection = True
        elif lie == "error":
            _send(request, 500, {"status": "error", "errorType": "internal", "error": "out of memory"})
        else:
            status, answer = self._ask(request.path, form)
            if "result" in (answer.get("data") or {}):
                answer["data"]["result"] = [] if lie == "empty" else self._told(request.path, form, answer, lies)
            _send(request, status, answer)

    def _told(self, path: str, form: dict[str, str], answer: dict[str, Any], lies: dict[str, str]) -> list[Row]:
        query, rows = form.get("query", path), answer["data"]["result"]
        self._remembered[query] = rows
        if not lies:
            return list(rows)
        frozen = [row for namespace in lies for row in self._frozen.get(namespace, {}).get(query, ())]
        late: list[Row] = []
        if "late" in lies.values() and "time" in form:
            before = {**form, "time": str(float(form["time"]) - LATE_SECONDS)}
            late = self._ask(path, before)[1].get("data", {}).get("result", [])
        return told(rows, lies, frozen, late)

    def _ask(self, path: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        body = urllib.parse.urlencode(form).encode() if form else None
        try:
            with urllib.request.urlopen(self._upstream + path, data=body, timeout=_GONE_SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, {"status": "error", "error": error.read().decode(errors="replace")}
        except OSError as error:
            return 502, {"status": "error", "error": str(error)}


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """An operator that is killed resets its connections."""


def _send(request: http.server.BaseHTTPRequestHandler, status: int, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    with contextlib.suppress(OSError):  # the operator waits no longer
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

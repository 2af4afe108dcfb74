"""The pod's own HTTP server, where vLLM's Rust front end takes the place of its Python one (docs/engine.md).

That front end loads no middleware and shows no counter of the plugin. The first process of the pod starts it, and from
then on only waits for its end: a thread of that process answers here.
- `GET /holdfast/ready` is 200 once this engine has really served one token, and as long as its /health is; 503 while
  the pod drains;
- `GET /health`, which the liveness probe asks, is 503 while the engine holds requests and nothing moves in it;
- `GET /metrics` is the engine's own page with the plugin's counters behind it; 503 where the engine does not answer:
  Prometheus gets no number of an engine that is gone.
Standard library only, Python 3.9.
"""

from __future__ import annotations

import http.client
import http.server
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast_middleware import (
    HANG_SECONDS,
    HEALTH_PATH,
    PROGRESS,
    READY_PATH,
    REFUSALS,
    WAITING,
    Draining,
    Refused,
    api_key,
    end_unsupported,
    is_refusal,
    own_name,
    positive,
)

METRICS_PATH = "/metrics"
STARTED_AT = time.time()  # this file is read at the start of the first process
HELD = ("vllm:num_requests_running", "vllm:num_requests_waiting")
ANSWER_SECONDS = 10.0  # of a page or a probe
TOKEN_SECONDS = 600.0  # a first token may wait for a compilation
MOST_BYTES = 16 * 2**20
MOST_AT_ONCE = 16  # requests: a probe and a scrape need one each
LISTEN_SECONDS = 10.0  # within which a client has to send its request
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)")
_END = b"# EOF\n"  # of a page in the OpenMetrics format
PLAIN = "text/plain; charset=utf-8"


class Engine:
    """The engine's own API server in this pod."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body. Raises OSError, http.client.HTTPException."""
        return self._ask("GET", path, None, ANSWER_SECONDS)

    def serve_one_token(self) -> None:
        """Ask for a token. Raises OSError, HTTPException, ValueError and Refused; returns where one came."""
        models = json.loads(self._need("GET", "/v1/models", None))
        request = {"model": models["data"][0]["id"], "prompt": "Hello", "max_tokens": 1}
        if not json.loads(self._need("POST", "/v1/completions", request)).get("choices"):
            raise ValueError("/v1/completions answered without a choice")

    def _need(self, method: str, path: str, body: Any) -> bytes:
        status, _, answer = self._ask(method, path, body, TOKEN_SECONDS)
        if status != 200:
            raise (Refused if is_refusal(status) else ValueError)(f"{path} answered {status}")
        return answer

    def _ask(self, method: str, path: str, body: Any, timeout_seconds: float) -> tuple[int, str, bytes]:
        headers = {"Content-Type": "application/json", "X-Request-Id": own_name().decode()}
        if api_key():
            headers["Authorization"] = f"Bearer {api_key()}"
        connection = http.client.HTTPConnection("localhost", self._port, timeout=timeout_seconds)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise ValueError(f"{path} answered more than {MOST_BYTES} bytes")
            return answer.status, answer.getheader("Content-Type") or PLAIN, content
        finally:
            connection.close()


class WarmUp:
    """One token through the whole engine, asked for by the first probe, and again where that failed.

    An engine that refuses it again and again generates no text, and is ended: a pod that is never ready shows nobody
    why.
    """

    def __init__(self, engine: Engine, end: Callable[[str], None] = end_unsupported) -> None:
        self._engine = engine
        self._end = end
        self._busy = threading.Lock()
        self._refusals = 0
        self.done = False
        self.state = "warming up: no token served yet"

    def start(self) -> None:
        """Begin, unless it is under way."""
        if self._busy.acquire(blocking=False):
            threading.Thread(target=self._run, name="holdfast-warm-up", daemon=True).start()

    def _run(self) -> None:
        try:
            self._engine.serve_one_token()
        except Exception as error:
            self.state = f"warming up: {error}"
            self._refusals = self._refusals + 1 if isinstance(error, Refused) else 0
            if self._refusals == REFUSALS:
                self._end(str(error))
        else:
            self.done = True
            print("holdfast: ready, one token served", file=sys.stderr, flush=True)  # noqa: T201
        finally:
            self._busy.release()


class Progress:
    """How long the engine has held requests at every look, while none of its counters moved.

    Requests that it defers do not count: they wait for something outside of its steps, such as a grammar that compiles.
    """

    def __init__(self) -> None:
        self._seen: list[float] = []
        self._since = time.monotonic()

    def still_seconds(self, page: str) -> float:
        """Seconds since something moved, or nothing was held, by the page of now."""
        now, found = time.monotonic(), samples(page)
        moved = [value for name, _, value in found if name.removesuffix("_total") in PROGRESS]
        held = sum(value for name, _, value in found if name in HELD)
        deferred = sum(value for name, labels, value in found if name == WAITING and '"deferred"' in labels)
        if held <= deferred or not moved or moved != self._seen:
            self._seen, self._since = moved, now
        return now - self._since


def samples(page: str) -> list[tuple[str, str, float]]:
    """Name, labels and value of each sample of a page; what cannot be read is left out."""
    found = []
    for line in page.splitlines():
        match = _SAMPLE.match(line)
        if match:
            try:
                found.append((match[1], match[2] or "", float(match[3])))
            except ValueError:
                continue
    return found


class Pages:
    """What is answered at each path: status, content type and body."""

    def __init__(self, engine: Engine, draining: Callable[[], bool], hang_seconds: float) -> None:
        self._engine = engine
        self._draining = draining
        self._hang_seconds = hang_seconds
        self._warm_up = WarmUp(engine)
        self._progress = Progress()
        self._counters = Counters()

    def of(self, path: str) -> tuple[int, str, bytes]:
        """The answer at a path; 503 where the engine gives none."""
        try:
            if path == READY_PATH:
                return self._ready()
            if path == HEALTH_PATH:
                return self._health()
            if path == METRICS_PATH:
                return self._metrics()
        except (OSError, http.client.HTTPException, ValueError) as error:
            return text(503, f"the engine does not answer: {error}")
        return text(404, "there is nothing at this path")

    def _ready(self) -> tuple[int, str, bytes]:
        if self._draining():
            return text(503, "draining")
        if not self._warm_up.done:
            self._warm_up.start()
            return text(503, self._warm_up.state)
        return self._engine.get(HEALTH_PATH)

    def _health(self) -> tuple[int, str, bytes]:
        answer = self._engine.get(HEALTH_PATH)
        if answer[0] != 200:
            return answer
        seconds = self._progress.still_seconds(self._engine.get(METRICS_PATH)[2].decode(errors="replace"))
        if seconds >= self._hang_seconds:
            return text(503, f"hung: requests are held and nothing has moved for {seconds:.0f} s")
        return answer

    def _metrics(self) -> tuple[int, str, bytes]:
        status, kind, page = self._engine.get(METRICS_PATH)
        if status != 200:
            return text(503, f"the engine's own page answered {status}")
        counters = self._counters.behind(page)
        if page.endswith(_END):
            return status, kind, page[: -len(_END)] + counters + _END
        return status, kind, page + counters


class Counters:
    """The plugin's counters in the OpenMetrics format; empty where no plugin is mounted.

    A plugin that fails takes nothing from the engine's own page.
    """

    def __init__(self) -> None:
        self._page: Any = None
        self._failing = False

    def behind(self, page: bytes) -> bytes:
        """What to add behind the engine's own page."""
        try:
            self._page = self._page or self._imported()
            counters: str = self._page.text(page.decode())
            self._failing = False
            return counters.encode()
        except ImportError:
            return b""
        except Exception as error:
            if not self._failing:
                print(f"holdfast: no counters on /metrics: {error!r}", file=sys.stderr, flush=True)  # noqa: T201
            self._failing = True
            return b""

    @staticmethod
    def _imported() -> Any:
        from holdfast_engine.page import CountersPage

        return CountersPage(STARTED_AT)


def text(status: int, sentence: str) -> tuple[int, str, bytes]:
    """A small plain answer."""
    return status, PLAIN, (sentence + "\n").encode()


class Server(http.server.ThreadingHTTPServer):
    """Listens on IPv4 and, where the kernel has it, on IPv6; answers a bounded number of requests at once."""

    daemon_threads = True

    def __init__(self, port: int, pages: Pages) -> None:
        self.pages = pages
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        self.address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        super().__init__(("::" if self.address_family == socket.AF_INET6 else "0.0.0.0", port), Handler)  # noqa: S104

    def server_bind(self) -> None:
        """Take IPv4 too."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; close the connection while too many requests are being answered."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then make room for the next one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET, one request for each connection."""

    server: Server
    timeout = LISTEN_SECONDS

    def do_GET(self) -> None:
        """Answer what the pages say."""
        status, kind, body = self.server.pages.of(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes and scrapes are nothing to log."""


def start(port: int, engine_port: int) -> Server:
    """Answer on `port` for the engine behind `engine_port`, in threads of this process. Raises OSError."""
    draining = Draining(os.environ.get("HOLDFAST_DRAIN_FILE", "/tmp/holdfast-draining"))  # noqa: S108
    hang_seconds = positive(os.environ.get("HOLDFAST_HANG_SECONDS", ""), HANG_SECONDS)
    server = Server(port, Pages(Engine(engine_port), draining, hang_seconds))
    threading.Thread(target=server.serve_forever, name="holdfast-pod-server", daemon=True).start()
    return server

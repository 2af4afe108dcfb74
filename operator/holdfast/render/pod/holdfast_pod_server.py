"""The pod's own HTTP server, where another process serves requests: vLLM's Rust front end, or several API servers.

The Rust front end loads no middleware and shows no counter of the plugin; of several API servers each knows only what
it did itself. The first process of the pod starts them, and from then on only waits for their end: a thread of that
process answers here (docs/engine.md).
- `GET /holdfast/ready` is 200 once this engine has really served one token, and as long as its /health is; 503 while
  the pod drains;
- `GET /health`, which the liveness probe asks, is 503 while the engine holds requests and nothing moves in it;
- `GET /metrics` is the engine's own page, less what that token has counted, with the plugin's counters behind it; 503
  where the engine does not answer: Prometheus gets no number of an engine that is gone.
Standard library only, Python 3.9.
"""

from __future__ import annotations

import functools
import http.client
import http.server
import json
import os
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast_middleware import (
    HANG_SECONDS,
    HEALTH_PATH,
    PROGRESS,
    READY_PATH,
    WAITING,
    Draining,
    FirstToken,
    Refused,
    api_key,
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
_COUNT = re.compile(rb"^(vllm:\w+_(?:total|count|sum|bucket)(?:\{.*\})?) ([0-9.e+-]+)$", re.MULTILINE)
_END = b"# EOF\n"  # of a page in the OpenMetrics format
PLAIN = "text/plain; charset=utf-8"


class Certificate(NamedTuple):
    """Files with which the engine serves HTTPS, and so does the pod."""

    file: str
    key: str

    def of_server(self) -> ssl.SSLContext:
        """Read anew for each connection: certificates are renewed. Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key)
        return context


class Engine:
    """The engine's own API server in this pod, which is asked with TLS if it has a certificate of its own."""

    def __init__(self, port: int, host: str = "localhost", *, tls: bool = False) -> None:
        self._host, self._port = host, port
        self._connect: Any = http.client.HTTPConnection
        if tls:  # no certificate names localhost, and nobody stands between two processes of a pod
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._connect = functools.partial(http.client.HTTPSConnection, context=context)

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
        connection = self._connect(self._host, self._port, timeout=timeout_seconds)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise ValueError(f"{path} answered more than {MOST_BYTES} bytes")
            return answer.status, answer.getheader("Content-Type") or PLAIN, content
        finally:
            connection.close()


class WarmUp(FirstToken):  # type: ignore[misc]  # mypy does not see that file, which stands alone in pods
    """Asks as a client does, in a thread; `counted` is what vLLM's page says of it."""

    def __init__(self, engine: Engine, end: Callable[[str], None] | None = None) -> None:
        super().__init__(end)
        self._engine = engine
        self._busy = threading.Lock()
        self.counted: Mapping[bytes, float] = {}

    def start(self) -> None:
        """Begin, unless it is under way."""
        if self._busy.acquire(blocking=False):
            threading.Thread(target=self._run, name="holdfast-warm-up", daemon=True).start()

    def _run(self) -> None:
        try:
            self._engine.serve_one_token()
            self.counted = counts(self._engine.get(METRICS_PATH)[2])
        except Exception as error:
            self.failed(error)
        else:
            self.served()
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


def counts(page: bytes) -> dict[bytes, float]:
    """The counters and histograms of vLLM on its page that are not zero, by name and labels."""
    return {series: float(value) for series, value in _COUNT.findall(page) if float(value)}


def without(page: bytes, counted: Mapping[bytes, float]) -> bytes:
    """The page less what was counted before: no client has asked for the pod's own token."""

    def less(sample: re.Match[bytes]) -> bytes:
        before = counted.get(sample[1])
        return sample[0] if before is None else b"%s %r" % (sample[1], max(0.0, float(sample[2]) - before))

    return _COUNT.sub(less, page)


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
        counters, page = self._counters.behind(page), without(page, self._warm_up.counted)
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
        from holdfast_engine.stats.page import CountersPage

        return CountersPage(STARTED_AT)


def text(status: int, sentence: str) -> tuple[int, str, bytes]:
    """A small plain answer."""
    return status, PLAIN, (sentence + "\n").encode()


class Server(http.server.ThreadingHTTPServer):
    """Listens on IPv4 and, where the kernel has it, on IPv6; answers a bounded number of requests at once."""

    daemon_threads = True

    def __init__(self, port: int, pages: Pages, certificate: Certificate | None = None) -> None:
        self.pages = pages
        self._certificate = certificate
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
            if self._certificate is not None:
                request.settimeout(LISTEN_SECONDS)
                request = self._certificate.of_server().wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:  # of a handshake that came to nothing
            self.shutdown_request(request)
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


def start(port: int, engine_port: int, certificate: Certificate | None = None, host: str = "localhost") -> Server:
    """Answer on `port` for the engine at `host` and `engine_port`, in threads of this process. Raises OSError."""
    draining = Draining(os.environ.get("HOLDFAST_DRAIN_FILE", "/tmp/holdfast-draining"))  # noqa: S108
    hang_seconds = positive(os.environ.get("HOLDFAST_HANG_SECONDS", ""), HANG_SECONDS)
    engine = Engine(engine_port, host, tls=certificate is not None)
    server = Server(port, Pages(engine, draining, hang_seconds), certificate)
    threading.Thread(target=server.serve_forever, name="holdfast-pod-server", daemon=True).start()
    return server

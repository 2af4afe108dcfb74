"""The pod's own server beside the Rust front end, against a small HTTP server that behaves like that front end."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from e2e.cluster.certificates import Authority
from holdfast_engine.stats import stats_fields
from holdfast_engine.stats.engine_info import Identity
from holdfast_engine.stats.statsfile import StatsWriter
from tests.render.pod_module import load

POD_SERVER = load("holdfast_pod_server")
READY, HEALTH, METRICS = "/holdfast/ready", "/health", "/metrics"
GAUGES = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} '


class FrontEnd(http.server.ThreadingHTTPServer):
    """vLLM's API server: what it answers, and which requests for tokens it got."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.page = GAUGES + "0\n# EOF\n"
        self.kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
        self.status = {HEALTH: 200, METRICS: 200, "/v1/completions": 200}
        self.tokens: list[tuple[str | None, Any]] = []
        self.served = threading.Event()


class _Answers(http.server.BaseHTTPRequestHandler):
    server: FrontEnd

    def do_GET(self) -> None:
        bodies = {HEALTH: "", METRICS: self.server.page, "/v1/models": json.dumps({"data": [{"id": "llama"}]})}
        self._answer(self.server.status.get(self.path, 200), bodies[self.path])

    def do_POST(self) -> None:
        assert self.headers["Authorization"] == "Bearer secret"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.tokens.append((self.headers["X-Request-Id"], body))
        self._answer(self.server.status[self.path], json.dumps({"choices": [{"text": "x"}]}))
        self.server.served.set()

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", self.server.kind)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None: ...


class Pod:
    """The server that is tested."""

    def __init__(self, engine_port: int) -> None:
        self.server = POD_SERVER.start(0, engine_port)

    def ask(self, path: str) -> tuple[int, str, str]:
        """Status, content type and body."""
        url = f"http://127.0.0.1:{self.server.server_address[1]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10.0) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as problem:
            return problem.code, problem.headers["Content-Type"], problem.read().decode()

    def until_ready(self) -> int:
        """How often it was asked until it was ready."""
        for asked in range(1, 1000):
            if self.ask(READY)[0] == 200:
                return asked
        raise AssertionError("never ready")


@pytest.fixture
def front_end() -> Iterator[FrontEnd]:
    server = FrontEnd()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def pod(front_end: FrontEnd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    monkeypatch.setenv("HOLDFAST_DRAIN_FILE", str(tmp_path / "draining"))
    monkeypatch.setenv("HOLDFAST_OWN_REQUEST_NAME", "holdfast-secret")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("HOLDFAST_HANG_SECONDS", "0.05")
    monkeypatch.setenv(stats_fields.FOLDER_VARIABLE, str(tmp_path))
    found = Pod(front_end.server_address[1])
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_a_pod_is_ready_once_one_token_was_served_under_its_own_name(pod: Pod, front_end: FrontEnd) -> None:
    assert pod.ask(READY)[::2] == (503, "warming up: no token served yet\n")
    pod.until_ready()
    assert front_end.tokens == [("holdfast-secret", {"model": "llama", "prompt": "Hello", "max_tokens": 1})]
    front_end.status[HEALTH] = 503
    assert pod.ask(READY)[0] == 503


def test_a_token_that_failed_is_asked_for_again(pod: Pod, front_end: FrontEnd) -> None:
    front_end.status["/v1/completions"] = 500
    pod.ask(READY)
    front_end.served.wait(10.0)
    front_end.status["/v1/completions"] = 200
    pod.until_ready()
    assert len(front_end.tokens) >= 2


def test_an_engine_that_generates_no_text_is_ended_with_a_sentence(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    front_end.status["/v1/completions"] = 404
    said: list[str] = []
    warm_up = POD_SERVER.WarmUp(POD_SERVER.Engine(front_end.server_address[1]), said.append)
    for _ in range(load("holdfast_middleware").REFUSALS):
        warm_up._busy.acquire()
        warm_up._run()
    assert said == ["/v1/completions answered 404"]


def test_a_draining_pod_is_not_ready(pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "draining").touch()
    assert pod.ask(READY)[::2] == (503, "draining\n")


def test_the_page_is_the_engines_with_the_plugins_counters_behind_it(
    pod: Pod, front_end: FrontEnd, tmp_path: Path
) -> None:
    numbers = stats_fields.nothing_yet()
    numbers[stats_fields.FIELDS.index("arrived")] = 7.0
    for engine in (0, 1):
        StatsWriter(stats_fields.stats_path(engine), len(stats_fields.FIELDS)).write(numbers)
        identity = Identity("llama", "0.1.0", "0.32.0", cache={"num_gpu_blocks": "900", "block_size": "16"})
        stats_fields.identity_path(engine).write_text(identity.to_json())
    front_end.page = GAUGES + "3\n# EOF\n"
    status, kind, page = pod.ask(METRICS)
    assert (status, kind) == (200, front_end.kind)
    samples = {
        (sample.name, sample.labels.get("engine", "")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["vllm:num_requests_running", "0"] == 3.0
    assert [samples["holdfast:requests_arrived_total", engine] for engine in ("0", "1")] == [7.0, 7.0]
    assert refused(page) == 0.0
    assert samples["process_start_time_seconds", ""] == POD_SERVER.STARTED_AT
    assert 'vllm:cache_config_info{block_size="16",cache_dtype="",engine="1",' in page


def refused(page: str) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.labels.get("cause") == "rejected"
    )


def test_what_any_of_several_api_servers_turned_away_is_counted_once(
    pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StatsWriter(stats_fields.stats_path(0), len(stats_fields.FIELDS)).write(stats_fields.nothing_yet())
    stats_fields.identity_path(0).write_text(Identity("llama", "0.1.0", "0.32.0").to_json())
    assert refused(pod.ask(METRICS)[2]) == 0.0
    folder = tmp_path / "prometheus"
    folder.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    for number, rejected in enumerate((3.0, 2.0)):
        StatsWriter(folder / f"holdfast-{number}..rejected", 1).write([rejected])
    assert refused(pod.ask(METRICS)[2]) == 5.0


def test_the_pods_own_token_is_in_no_count_of_the_page(pod: Pod, front_end: FrontEnd) -> None:
    def page(requests: int, seconds: float, running: int) -> str:
        bucket = 'vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0"} '
        return (
            f'vllm:request_success_total{{engine="0",finished_reason="length"}} {requests}\n{bucket}{requests}\n'
            f'vllm:time_to_first_token_seconds_sum{{engine="0"}} {seconds}\n'
            f'vllm:num_requests_running{{engine="0"}} {running}\nhttp_requests_total 4\n# EOF\n'
        )

    front_end.page = page(1, 0.75, 2)
    assert pod.ask(METRICS)[2].startswith(front_end.page.removesuffix("# EOF\n"))
    pod.until_ready()
    for requests, seconds in ((1, 0.75), (5, 2.25)):
        front_end.page = page(requests, seconds, 2)
        told = pod.ask(METRICS)[2].replace(".0", "").replace('le="1"', 'le="1.0"')
        assert told.startswith(page(requests - 1, seconds - 0.75, 2).replace(".0\n", "\n").removesuffix("# EOF\n"))


def test_an_engine_with_a_certificate_is_asked_with_tls_and_so_is_its_pod(
    front_end: FrontEnd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    pair = authority.server("pod", "pod", ["pod"], ["127.0.0.1"])
    certificate = POD_SERVER.Certificate(str(pair.certificate), str(pair.key))
    front_end.socket = certificate.of_server().wrap_socket(front_end.socket, server_side=True)
    monkeypatch.setenv("HOLDFAST_DRAIN_FILE", str(tmp_path / "draining"))
    server = POD_SERVER.start(0, front_end.server_address[1], certificate)
    context = ssl.create_default_context(cafile=str(authority.certificate))
    port = server.server_address[1]
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as silent, silent:
        silent.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")  # of a client that knows nothing of it
    with urllib.request.urlopen(f"https://127.0.0.1:{port}{METRICS}", timeout=10.0, context=context) as answer:
        assert answer.read().decode().startswith(GAUGES)
    server.shutdown()
    server.server_close()


def test_what_the_engines_page_says_itself_is_not_said_twice(pod: Pod, front_end: FrontEnd, tmp_path: Path) -> None:
    stats_fields.identity_path(0).write_text(Identity("llama", "0.1.0", "0.33.0").to_json())
    names = ("vllm:cache_config_info", "process_start_time_seconds")
    front_end.page = "".join(f"# TYPE {name} gauge\n{name} 1\n" for name in names) + "# EOF\n"
    page = pod.ask(METRICS)[2]
    assert [page.count(f"# TYPE {name} ") for name in names] == [1, 1]


@pytest.mark.parametrize("said", ["{not json", "", "[1]"])
def test_a_plugin_that_fails_takes_nothing_from_the_engines_page(
    said: str, pod: Pod, front_end: FrontEnd, tmp_path: Path
) -> None:
    stats_fields.identity_path(0).write_text(said)
    assert pod.ask(METRICS) == (200, front_end.kind, front_end.page)


def test_a_page_in_the_older_format_keeps_it(pod: Pod, front_end: FrontEnd) -> None:
    front_end.page, front_end.kind = GAUGES + "3\n", "text/plain; version=0.0.4"
    status, kind, page = pod.ask(METRICS)
    assert (status, kind) == (200, front_end.kind)
    assert page.startswith(front_end.page)
    assert "EOF" not in page
    StatsWriter(stats_fields.stats_path(0), len(stats_fields.FIELDS)).write(stats_fields.nothing_yet())
    stats_fields.identity_path(0).write_text(Identity("llama", "0.1.0", "0.32.0").to_json())
    families = {family.name: family.type for family in parser.text_string_to_metric_families(pod.ask(METRICS)[2])}
    assert (families["holdfast:requests_arrived"], families["holdfast:plugin_info"]) == ("counter", "gauge")


def test_of_an_engine_that_does_not_answer_no_number_is_shown(pod: Pod, front_end: FrontEnd) -> None:
    front_end.status[METRICS] = 500
    assert pod.ask(METRICS)[::2] == (503, "the engine's own page answered 500\n")
    front_end.server_close()
    front_end.shutdown()
    status, _, said = pod.ask(METRICS)
    assert status == 503
    assert said.startswith("the engine does not answer: ")
    assert pod.ask(HEALTH)[0] == 503


@pytest.mark.parametrize(
    "page", ["", "nonsense\n\x00{", "vllm:num_requests_running NaN\nvllm:num_requests_running x\n"]
)
def test_a_page_that_says_nothing_is_no_hang(page: str) -> None:
    progress = POD_SERVER.Progress()
    progress.still_seconds(page)
    assert progress.still_seconds(page) < 1.0


def test_an_engine_that_holds_requests_and_counts_nothing_is_hung_until_it_goes_on(
    pod: Pod, front_end: FrontEnd
) -> None:
    def page(running: int, tokens: int, deferred: int = 0) -> str:
        waiting = f'vllm:num_requests_waiting_by_reason{{engine="0",reason="deferred"}} {deferred}\n'
        return f'{GAUGES}{running}\n{waiting}vllm:generation_tokens_total{{engine="0"}} {tokens}\n# EOF\n'

    front_end.page = page(running=1, tokens=5)
    assert pod.ask(HEALTH)[0] == 200
    while pod.ask(HEALTH)[0] == 200:
        pass
    assert pod.ask(HEALTH)[2].startswith("hung: requests are held and nothing has moved for ")
    front_end.page = page(running=1, tokens=6)
    assert pod.ask(HEALTH)[0] == 200
    front_end.page = page(running=1, tokens=6, deferred=1)
    assert [pod.ask(HEALTH)[0] for _ in range(3)] == [200, 200, 200]
    front_end.status[HEALTH] = 500
    assert pod.ask(HEALTH)[0] == 500


def test_other_paths_and_methods_lead_nowhere(pod: Pod, front_end: FrontEnd) -> None:
    assert pod.ask("/v1/models")[0] == 404
    assert pod.ask("/metrics?name=x")[0] == 200
    request = urllib.request.Request(f"http://127.0.0.1:{pod.server.server_address[1]}/metrics", b"x")
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(request, timeout=10.0)


def test_clients_beyond_the_bound_are_turned_away_and_later_ones_are_answered(pod: Pod) -> None:
    address = ("127.0.0.1", pod.server.server_address[1])
    silent = [socket.create_connection(address, timeout=10.0) for _ in range(POD_SERVER.MOST_AT_ONCE)]
    # The kernel may hand over a connection later than one that was made after it.
    while pod.server._places._value:
        time.sleep(0.001)
    beyond = socket.create_connection(address, timeout=10.0)
    beyond.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert beyond.recv(1) == b""
    for each in (*silent, beyond):
        each.close()
    for _ in range(1000):
        try:
            assert pod.ask(METRICS)[0] == 200
            break
        except OSError:
            continue
    else:
        raise AssertionError("nobody is answered any more")

"""Whatever Prometheus does, the answer is a named state; never an exception, never a zero that looks like data."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import ipaddress
import json
import os
import re
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.domain.cluster import Replica
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import History, SignalState, Traffic
from holdfast.observe.series import queries
from holdfast.observe.series.client import PrometheusAddress
from holdfast.observe.series.samples import QueryError
from holdfast.observe.signals.prometheus import PrometheusSource
from holdfast.observe.signals.traffic import TrafficRequest
from tests.fakes import FakePrometheus
from tests.observe.observe_builders import ALL_IN_ONE, CHAT, IN_TWO, NOW, SLO, known_queries, ready, request, row

GIVE_UP_SECONDS = 0.5


@contextlib.asynccontextmanager
async def reading(fake: FakePrometheus, **address: object) -> AsyncIterator[PrometheusSource]:
    options: dict[str, object] = {"timeout_seconds": 30.0} | address
    source = PrometheusSource(PrometheusAddress(fake.url, **options))  # type: ignore[arg-type]
    try:
        yield source
    finally:
        await source.close()


@pytest.fixture
async def fake() -> AsyncIterator[FakePrometheus]:
    async with FakePrometheus(known_queries()) as fake:
        fake.rows["engines"] = [row(NOW - 3, pod="chat-0")]
        fake.rows["requests"] = [row(90, metric="request_success_total", finished_reason="stop")]
        yield fake


async def observed(fake: FakePrometheus, **address: object) -> Traffic:
    async with reading(fake, **address) as source:
        return (await source.observe([request(ready("chat-0"))], NOW))[CHAT]


async def test_a_healthy_prometheus_gives_fresh_traffic(fake: FakePrometheus) -> None:
    traffic = await observed(fake)
    assert traffic.state is SignalState.FRESH, traffic.detail
    assert dict(traffic.by_accelerator)["h100"].finished == 90.0


class Waited(tuple[Replica, ...]):
    """Replicas that can be read only while the event loop goes on."""

    gone_on: threading.Event

    def __iter__(self) -> Iterator[Replica]:
        self.gone_on.clear()
        assert self.gone_on.wait(timeout=60.0), "the event loop waits for rows to be read"
        return super().__iter__()


async def test_the_event_loop_goes_on_while_thousands_of_rows_are_read(fake: FakePrometheus) -> None:
    replicas = Waited([ready("chat-0")])
    replicas.gone_on = threading.Event()

    async def others() -> None:
        while True:
            replicas.gone_on.set()
            await asyncio.sleep(0.001)

    beside = asyncio.create_task(others())
    async with reading(fake) as source:
        seen = await source.observe([TrafficRequest(CHAT, SLO, replicas)], NOW)
    beside.cancel()
    assert seen[CHAT].fresh


async def test_all_queries_of_a_tick_are_evaluated_at_one_time(fake: FakePrometheus) -> None:
    await observed(fake)
    assert {form["time"] for form in fake.asked} == {f"{NOW:.3f}"}


async def test_the_number_of_queries_does_not_grow_with_the_services(fake: FakePrometheus) -> None:
    many = [request(key=ServiceKey("prod", f"service-{i}")) for i in range(500)]
    async with reading(fake) as source:
        for tick in range(4):  # the first three begin with what is asked once a minute
            fake.asked.clear()
            await source.observe(many, NOW + tick)
            await source.settle()
            assert len(fake.asked) < 12  # and one more where engines are new
    assert sorted(fake.names) == sorted(IN_TWO)


async def test_all_signals_of_few_services_come_from_one_response(fake: FakePrometheus) -> None:
    fake.rows["series"] = [row(1.0)]
    async with reading(fake) as source:
        for tick in range(6):  # the first ones begin with what is asked once a minute
            fake.asked.clear()
            await source.observe([request(ready("chat-0"))], NOW + tick)
            await source.settle()
    assert fake.names == [ALL_IN_ONE]


async def test_no_service_no_question(fake: FakePrometheus) -> None:
    async with reading(fake) as source:
        assert await source.observe([], NOW) == {}
    assert fake.asked == []


async def test_slow_queries_take_turns_once_a_minute_and_their_answers_serve_between(fake: FakePrometheus) -> None:
    fake.rows["ttft_buckets"] = [row(1.0, le="0.25"), row(1.0, le="+Inf")]
    fake.rows["series"] = [row(1.0)]
    async with reading(fake) as source:
        most, asked = 0, 0
        for tick in range(60):
            before = len(fake.asked)
            traffic = (await source.observe([request(ready("chat-0"))], NOW + 5 * tick))[CHAT]
            await source.settle()
            if tick:
                assert traffic.ttft.p95_seconds == 0.95 * 0.25
                most = max(most, len(fake.asked) - before)
                asked += len(fake.asked) - before - 1
    assert most == 1 + 3, "the rest of the first round, in which nobody has an e2e objective; later one at a time"
    assert 32 <= asked <= 40


async def test_a_failing_slow_query_leaves_its_last_answer_until_it_is_too_old(fake: FakePrometheus) -> None:
    fake.rows["ttft_buckets"] = [row(1.0, le="0.25"), row(1.0, le="+Inf")]
    fake.rows["engines"] = [row(NOW + 400, pod="chat-0")]
    async with reading(fake) as source:
        await source.observe([request()], NOW)
        await source.settle()
        fake.rows["ttft_buckets"] = [{"metric": {}, "value": None}]
        for later, expected in ((290, 0.95 * 0.25), (310, None)):
            traffic = (await source.observe([request()], NOW + later))[CHAT]
            await source.settle()
            assert traffic.ttft.p95_seconds == expected


async def test_an_engine_without_a_past_is_looked_at_by_one_more_query(fake: FakePrometheus) -> None:
    fake.rows["anomalies"] = [row(1, metric="newcomer", pod="chat-0", instance="i")]
    traffic = await observed(fake)
    (query,) = (form["query"] for form in fake.asked if 'pod=~"chat-0"' in form["query"])
    assert 'namespace=~"prod"' in query
    assert traffic.state is SignalState.PARTIAL  # nobody said when it was born


@pytest.mark.parametrize("label", ["namespace", "metric", "pod", "le"])
@pytest.mark.parametrize("text", [["a"], {"a": "b"}, 5, None])
async def test_a_label_that_is_no_text_is_told_and_harms_no_service(
    fake: FakePrometheus, label: str, text: object
) -> None:
    odd = row(1, metric="request_success_total")
    odd["metric"][label] = text
    fake.rows["requests"] = [odd]
    traffic = await observed(fake)
    assert (traffic.state, traffic.detail) == (
        SignalState.UNREACHABLE,
        "requests and 6 more: the answer of Prometheus has a label that is not text",
    )


async def test_a_whole_number_beyond_floating_point_is_told(fake: FakePrometheus) -> None:
    fake.rows["requests"] = [{**row(1), "value": [NOW, 10**400]}]
    assert "a sample that is not a number" in (await observed(fake)).detail


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def respond(status: int = 200, text: str = "", content_type: str = "application/json") -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, content_type=content_type)

    return handler


def result(value: object) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": value}})


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (
            respond(400, '{"status":"error","errorType":"bad_data","error":"parse error"}'),
            "rejected the query (HTTP 400): parse error",
        ),
        (respond(401, "who are you"), "rejected the credentials (HTTP 401)"),
        (respond(403, "no"), "rejected the credentials (HTTP 403)"),
        (respond(404, "not\n found"), "rejected the query (HTTP 404): not found"),
        (respond(422, "too many samples"), "rejected the query (HTTP 422)"),
        (respond(429, "slow down"), "rejected the query (HTTP 429)"),
        (respond(500, "oops"), "cannot serve the query (HTTP 500)"),
        (respond(502, "<html>bad gateway</html>", "text/html"), "cannot serve the query (HTTP 502): <html>bad"),
        (
            respond(503, '{"status":"error","errorType":"timeout"}'),
            'cannot serve the query (HTTP 503): {"status":"error"',
        ),
        (respond(200, "<html>please log in</html>", "text/html"), "the answer is not JSON"),
        (respond(200, ""), "the answer is not JSON"),
        (respond(200, '{"status":"success","data":'), "the answer is not JSON"),
        (respond(200, "[" * 200_000), "JSON of the answer cannot be parsed"),
        (respond(200, f'{{"data":{{"result":[{{"metric":{{}},"value":[1,{"9" * 5000}]}}]}}}}'), "cannot be parsed"),
        (respond(200, "[]"), "has no data.result"),
        (respond(200, "null"), "has no data.result"),
        (respond(200, "{}"), "has no data.result"),
        (respond(200, '{"data": null}'), "has no data.result"),
        (respond(200, '{"data": {"result": null}}'), "is not a list of series"),
        (respond(200, '{"data": {"result": [1, 2]}}'), "is not a list of series"),
        (respond(200, result([{"value": [1, "2"]}])), "without labels"),
        (respond(200, result([{"metric": {}, "values": [[1, "2"]]}])), "is not a number"),
        (respond(200, result([{"metric": {}, "value": [1, "two"]}])), "is not a number"),
        (respond(200, result([{"metric": {}, "value": [1]}])), "is not a number"),
        (respond(200, result([{"metric": {}, "value": [1, None]}])), "is not a number"),
    ],
)
async def test_every_answer_that_is_no_data_says_what_it_is(fake: FakePrometheus, handler: Handler, words: str) -> None:
    fake.handler = handler
    traffic = await observed(fake)
    assert traffic.state is SignalState.UNREACHABLE
    assert words in traffic.detail
    assert traffic.by_accelerator == ()


async def test_a_prometheus_that_is_down_is_unreachable_and_back_at_the_next_tick(fake: FakePrometheus) -> None:
    async with reading(fake) as source:
        port = int(fake.url.rsplit(":", 1)[1])
        await fake.stop_listening()
        down = (await source.observe([request(ready("chat-0"))], NOW))[CHAT]
        await fake.listen(port)
        back = (await source.observe([request(ready("chat-0"))], NOW))[CHAT]
    assert (down.state, back.state) == (SignalState.UNREACHABLE, SignalState.FRESH)
    assert "cannot be reached" in down.detail


async def test_a_slow_prometheus_is_given_up_and_told_so(fake: FakePrometheus) -> None:
    released = asyncio.Event()

    async def slow(_: web.Request) -> web.StreamResponse:
        await released.wait()
        return web.Response()

    fake.handler = slow
    traffic = await observed(fake, timeout_seconds=GIVE_UP_SECONDS)
    released.set()
    assert traffic.state is SignalState.UNREACHABLE
    assert "did not answer within " in traffic.detail
    assert {form["timeout"] for form in fake.asked} == {f"{GIVE_UP_SECONDS:g}s"}


async def test_an_answer_that_drips_is_given_up_though_every_byte_comes_in_time(fake: FakePrometheus) -> None:
    stopped = asyncio.Event()

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while not stopped.is_set():
                await response.write(b" ")
                await asyncio.sleep(GIVE_UP_SECONDS / 10)
        return response

    fake.handler = drip
    traffic = await observed(fake, timeout_seconds=GIVE_UP_SECONDS)
    stopped.set()
    assert traffic.state is SignalState.UNREACHABLE


async def test_an_answer_beyond_the_bound_is_refused(fake: FakePrometheus) -> None:
    fake.handler = respond(200, " " * 4096)
    traffic = await observed(fake, max_answer_bytes=1024)
    assert traffic.state is SignalState.UNREACHABLE


async def test_one_failing_query_makes_the_tick_unreachable_since_a_part_would_mislead(fake: FakePrometheus) -> None:
    fake.rows["edges"] = [{"metric": {}, "value": "garbage"}]
    traffic = await observed(fake)
    assert traffic.state is SignalState.UNREACHABLE
    assert traffic.detail.startswith("requests and 6 more: ")


async def test_warnings_of_a_partial_response_make_it_partial(fake: FakePrometheus) -> None:
    fake.warnings = ["fetching series from store-3: connection refused"]
    traffic = await observed(fake)
    assert traffic.state is SignalState.PARTIAL
    assert "store-3" in traffic.detail


async def test_remarks_on_promql_are_no_partial_response(fake: FakePrometheus) -> None:
    fake.warnings = ['PromQL info: metric might not be a counter, name does not end in _total: "x"']
    assert (await observed(fake)).fresh


@pytest.mark.parametrize("nonsense", ["NaN", "+Inf", "-Inf", "-5"])
async def test_values_that_make_no_sense_are_invalid_and_never_counted(fake: FakePrometheus, nonsense: str) -> None:
    fake.rows["requests"] = [row(nonsense, metric="request_success_total", finished_reason="stop")]
    traffic = await observed(fake)
    assert traffic.state is SignalState.INVALID
    assert dict(traffic.by_accelerator)["h100"].finished == 0.0


async def test_the_bearer_token_is_read_again_when_its_file_changes(fake: FakePrometheus, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with reading(fake, bearer_token_file=token) as source:
        await source.observe([request()], NOW)
        assert {header["Authorization"] for header in fake.headers} == {"Bearer first"}
        fake.headers.clear()
        token.write_text("other\n")
        os.utime(token, ns=(1, 1))
        await source.observe([request()], NOW + 1)
    assert {header["Authorization"] for header in fake.headers} == {"Bearer other"}


async def test_a_token_file_that_is_missing_is_said_without_asking(fake: FakePrometheus, tmp_path: Path) -> None:
    traffic = await observed(fake, bearer_token_file=tmp_path / "missing")
    assert traffic.state is SignalState.UNREACHABLE
    assert "token" in traffic.detail
    assert fake.asked == []


async def test_matchers_keep_other_clusters_of_the_same_store_out_of_every_question(fake: FakePrometheus) -> None:
    await observed(fake, matchers=(("cluster", 'prod "eu"'),))
    assert fake.asked
    for form in fake.asked:
        selectors = re.findall(r"\b(?:vllm:|holdfast:|process_start)\w+(.{0,28})", form["query"])
        assert selectors
        assert all(after.startswith(r'{cluster="prod \"eu\"", ') for after in selectors), form["query"]


async def test_extra_headers_name_the_tenant(fake: FakePrometheus) -> None:
    await observed(fake, headers=(("X-Scope-OrgID", "team-a"),))
    assert {header["X-Scope-OrgID"] for header in fake.headers} == {"team-a"}


async def test_a_secret_never_reaches_the_detail(fake: FakePrometheus, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("hunter2")
    await fake.stop_listening()
    assert "hunter2" not in (await observed(fake, bearer_token_file=token)).detail


async def test_running_by_pod_tells_of_every_pod_that_has_a_number() -> None:
    asked = known_queries() | {queries.running_by_pod_query([CHAT]).promql: "running"}
    async with FakePrometheus(asked) as fake, reading(fake) as source:
        fake.rows["running"] = [row(9, pod="chat-1"), row(2, pod="chat-2"), row("NaN", pod="chat-3")]
        assert await source.running_by_pod([CHAT], NOW) == {CHAT: {"chat-1": 9.0, "chat-2": 2.0}}


async def test_running_by_pod_is_empty_when_prometheus_is_down(fake: FakePrometheus) -> None:
    async with reading(fake) as source:
        await fake.stop_listening()
        assert await source.running_by_pod([CHAT], NOW) == {}


async def test_a_history_that_cannot_be_read_says_why(fake: FakePrometheus) -> None:
    async with reading(fake) as source:
        await fake.stop_listening()
        with pytest.raises(QueryError, match=r"history: Prometheus at http://.* cannot be reached"):
            await source.history([request()], NOW)


async def test_a_prometheus_that_knows_nothing_yet_has_answered(fake: FakePrometheus) -> None:
    async with reading(fake) as source:
        assert await source.history([request()], NOW) == {CHAT: History()}


async def test_history_says_how_far_prometheus_remembers_and_whether_it_was_answered_for_all_of_it(
    fake: FakePrometheus,
) -> None:
    async def only_the_last_hour(asked: web.Request) -> web.StreamResponse:
        form = await asked.post()
        if float(str(form["start"])) < NOW - 3600.0:
            return web.json_response({"status": "error", "error": "query timed out"}, status=503)
        rows = [{"metric": {"metric": "remembered"}, "values": [[NOW - 1800.0, "1"], [NOW, "1"]]}]
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": rows}})

    fake.handler = only_the_last_hour
    hour, month = (dataclasses.replace(SLO, window_seconds=seconds) for seconds in (3600.0, 30 * 86_400.0))
    async with reading(fake) as source:
        assert (await source.history([request(slo=hour)], NOW))[CHAT] == History((), None, NOW - 1860.0)
        assert (await source.history([request(slo=month)], NOW))[CHAT] == History((), None, NOW - 1860.0, False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "prometheus")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "tls.pem"
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + signed.public_bytes(pem))
    return path


@pytest.fixture
async def secure(certificate: Path) -> AsyncIterator[FakePrometheus]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with FakePrometheus(known_queries(), context) as fake:
        fake.rows["engines"] = [row(NOW - 3, pod="chat-0")]
        yield fake


async def test_a_certificate_is_checked_against_the_given_authority(secure: FakePrometheus, certificate: Path) -> None:
    assert (await observed(secure, ca_file=certificate)).fresh


async def test_an_unknown_certificate_is_refused(secure: FakePrometheus) -> None:
    traffic = await observed(secure)
    assert traffic.state is SignalState.UNREACHABLE
    assert "SSLError" in traffic.detail
    assert secure.asked == []


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
async def test_checks_are_off_only_when_asked_for(secure: FakePrometheus) -> None:
    assert (await observed(secure, insecure=True)).fresh


async def test_a_missing_authority_file_is_a_state(secure: FakePrometheus, tmp_path: Path) -> None:
    assert (await observed(secure, ca_file=tmp_path / "missing.pem")).state is SignalState.UNREACHABLE


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://prometheus.monitoring:9090/", "http://prometheus.monitoring:9090"),
        ("https://reader:secret@metrics.example.com/tenant?key=secret", "https://metrics.example.com/tenant"),
        ("http://[::1", "http://[::1"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert str(PrometheusAddress(url)) == shown

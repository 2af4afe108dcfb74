"""Stand-ins for the outside world, used by unit tests only: real classes, no patching."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import pickle
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import aiohttp
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.registry import Collector

from benchmarks.engine_overload.cells import PROMISED, FixedLimits
from benchmarks.engine_overload.goodput import Figures
from benchmarks.engine_overload.journal import RunKey
from benchmarks.engine_overload.probe import Sampled
from benchmarks.engine_overload.speed import Reference, Speed
from holdfast.act.api import APPLY, ApiError
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import History, SignalState, Traffic
from holdfast.observe.series import combined_queries
from holdfast.observe.series.queries import Query
from holdfast.observe.series.samples import QueryError, QueryResult, Series
from holdfast.observe.signals.traffic import TrafficRequest
from holdfast.page.board import Board, JsonResponse
from holdfast.tools.tune.engine_port import CannotStart, TrialLoad, Tried, UnusableTrial
from holdfast.tools.tune.setting import Setting
from holdfast_engine.objectives.limits import LimitsFiles
from holdfast_engine.objectives.rules import Limits, LimitsError, Objectives, parse_limits


class FakeApi:
    """An API server in memory: objects by path, uids, resourceVersions, conflicts, and scripted failures.

    Apply patches are merged, and their fields noted in managedFields; `edit` is what another writer does.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.fail_with: Exception | None = None
        self._version = 0
        self._manager = ""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        self.requests.append((method, path, dict(query or {}), _copied(body)))
        if self.fail_with is not None:
            raise self.fail_with
        self._manager = (query or {}).get("fieldManager", "") if content_type == APPLY else ""
        before = _copied(self.objects) if "dryRun" in (query or {}) else None
        result: dict[str, Any] = getattr(self, f"_{method.lower()}")(path, body)
        self.objects = self.objects if before is None else before
        return _copied(result)

    def put_object(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Store an object as if somebody had written it, with a new resourceVersion."""
        self._version += 1
        stored = _copied(body)
        stored.setdefault("metadata", {})["resourceVersion"] = str(self._version)
        stored["metadata"].setdefault("uid", f"uid-{self._version}")
        self.objects[path] = stored
        return stored

    def edit(self, path: str, change: dict[str, Any]) -> None:
        """Change an object as somebody else would: who owned a changed field owns it no more."""
        stored = self.put_object(path, _merged(self.objects[path], change))
        for entry in stored["metadata"].get("managedFields", ()):
            entry["fieldsV1"] = _without(entry["fieldsV1"], _fields(change))

    def writes(self) -> list[tuple[str, str]]:
        """Every request that was no read, as (method, path)."""
        return [(method, path) for method, path, query, _ in self.requests if method != "GET" and "dryRun" not in query]

    def _get(self, path: str, _: Any) -> dict[str, Any]:
        base = path.removesuffix("/scale")
        if base not in self.objects:
            raise ApiError(404, f"{path} not found")
        return self.objects[base]

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        target = f"{path}/{body['metadata']['name']}"
        if target in self.objects:
            raise ApiError(409, f"{target} exists")
        return self.put_object(target, body)

    def _put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._check_version(path, body)
        return self.put_object(path, body)

    def _patch(self, path: str, body: Any) -> dict[str, Any]:
        base = path.removesuffix("/scale").removesuffix("/status")
        if isinstance(body, list):
            return self.put_object(base, _patched(self.objects[base], body))
        self._check_version(base, body)
        self._check_uid(base, body)
        stored = self.put_object(base, _merged(self.objects.get(base, {}), body))
        if self._manager and base == path:
            others = [item for item in stored["metadata"].get("managedFields", ()) if item["manager"] != self._manager]
            mine = {"manager": self._manager, "operation": "Apply", "fieldsV1": _fields(body)}
            stored["metadata"]["managedFields"] = [*others, mine]
        return stored

    def _delete(self, path: str, options: dict[str, Any] | None) -> dict[str, Any]:
        if path not in self.objects:
            raise ApiError(404, f"{path} not found")
        expected = (options or {}).get("preconditions", {}).get("uid")
        if expected is not None and expected != self.objects[path]["metadata"]["uid"]:
            raise ApiError(409, f"{path}: uid in precondition is another one")
        del self.objects[path]
        return {}

    def _check_uid(self, path: str, body: dict[str, Any]) -> None:
        expected = body.get("metadata", {}).get("uid")
        actual = self.objects.get(path, {}).get("metadata", {}).get("uid")
        if expected is not None and expected != actual:
            raise ApiError(409, f"uid mismatch: {path} is {actual}, not {expected}")

    def _check_version(self, path: str, body: dict[str, Any]) -> None:
        expected = body.get("metadata", {}).get("resourceVersion")
        if expected is not None and path in self.objects:
            actual = self.objects[path]["metadata"]["resourceVersion"]
            if expected != actual:
                raise ApiError(409, f"{path}: {expected} is not {actual}")


class ListingApi(FakeApi):
    """Lists objects by labels; some paths are `forbidden` or `hanging`, and some rights are `denied`."""

    def __init__(self) -> None:
        super().__init__()
        self.forbidden: set[str] = set()
        self.denied: set[str] = set()
        self.kinds = {"pods", "horizontalpodautoscalers"}
        self.hanging = ""

    async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if method == "GET" and any(f"/{part}" in path for part in self.forbidden):
            raise ApiError(403, "forbidden")
        if self.hanging and path.endswith(self.hanging):
            await asyncio.Event().wait()
        if path.endswith("/selfsubjectaccessreviews"):
            return {"status": {"allowed": more["body"]["spec"]["resourceAttributes"]["verb"] not in self.denied}}
        if method == "GET" and path.rpartition("/")[2] in self.kinds:
            self.requests.append((method, path, dict(more.get("query") or {}), None))
            if self.fail_with is not None:
                raise self.fail_with
            return {"items": list(self._listed(path, (more.get("query") or {}).get("labelSelector", "")))}
        return await super().request(method, path, **more)

    def _listed(self, path: str, selector: str) -> Iterator[dict[str, Any]]:
        wanted = dict(term.split("=") for term in selector.split(",") if term)
        for key, body in self.objects.items():
            labels = body["metadata"].get("labels", {})
            if key.startswith(f"{path}/") and wanted.items() <= labels.items():
                yield _copied(body)


class RefusingApi(FakeApi):
    """Says no to every write of a kind, by its plural."""

    def __init__(self, kind: str, status: int, message: str = "exceeded quota: objects") -> None:
        super().__init__()
        self.kind, self._answer = kind, (status, message)

    async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if method != "GET" and f"/{self.kind}" in path:
            raise ApiError(*self._answer)
        return await super().request(method, path, **more)


class HangingApi(FakeApi):
    """Never answers about one object."""

    def __init__(self, path_part: str) -> None:
        super().__init__()
        self._path_part = path_part

    async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if self._path_part in path:
            await asyncio.Event().wait()
        return await super().request(method, path, **more)


def _copied(body: Any) -> Any:
    """A deep copy; `copy.deepcopy` takes ten times as long for an object of the API server."""
    return pickle.loads(pickle.dumps(body, pickle.HIGHEST_PROTOCOL))


def _patched(old: dict[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
    """JSON Patch with `test` and `remove`."""
    result = _copied(old)
    for operation in operations:
        *way, last = operation["path"].strip("/").split("/")
        there: Any = result
        for step in way:
            there = there[int(step) if isinstance(there, list) else step]
        place = int(last) if isinstance(there, list) else last
        if operation["op"] == "remove":
            del there[place]
        elif there[place] != operation["value"]:
            raise ApiError(422, f"testing {operation['path']} failed")
    return result


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for key, value in new.items():
        result[key] = _merged(result.get(key) or {}, value) if isinstance(value, dict) else value
    return result


def _fields(body: dict[str, Any]) -> dict[str, Any]:
    """The fieldsV1 of what a body says, without its identity."""
    told = {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}
    meta = {key: value for key, value in told.pop("metadata", {}).items() if key in ("labels", "annotations")}
    return _field_set(told | ({"metadata": meta} if meta else {}))


def _field_set(value: Any) -> dict[str, Any]:
    return {f"f:{key}": _field_set(item) for key, item in value.items()} if isinstance(value, dict) else {}


def _without(fields: dict[str, Any], taken: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for key, inner in fields.items():
        if key not in taken:
            kept[key] = inner
        elif rest := _without(inner, taken[key]):
            kept[key] = rest
    return kept


class ManualClock:
    """A clock that moves when told."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class FakeOpenAIServer:
    """A completions endpoint on a real local port that streams tokens, refuses, or breaks, as a script says.

    `script[k]` is what happens to the k-th request that comes (0-based), later ones are "ok". Behaviours: ok, close
    (ok, then the connection ends), reject (503), fail (500), cut (connection closed after `cut_after` tokens), hangup
    (connection closed with no byte of an answer), short (a clean end, one token too few), error (an error event), merge
    (all tokens in one event, usage tells how many), stall (no answer until the server stops).
    """

    def __init__(self, script: Sequence[str] = (), cut_after: int = 2) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.connections: list[int] = []
        self.url = ""
        self._script = itertools.chain(script, itertools.repeat("ok"))
        self._cut_after = cut_after
        self._stopped = asyncio.Event()

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_post("/v1/completions", self._completions)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._stopped.set()
        await self._runner.cleanup()

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        behaviour = next(self._script)  # before any other request can come
        self.bodies.append(await request.json())
        self.connections.append(request.transport.get_extra_info("peername")[1])
        if behaviour in ("reject", "fail"):
            return web.json_response({"error": behaviour}, status=503 if behaviour == "reject" else 500)
        if behaviour == "stall":
            await self._stopped.wait()
        if behaviour in ("hangup", "stall"):
            request.transport.abort()
            return web.Response()
        return await self._stream(request, behaviour, self.bodies[-1]["max_tokens"])

    async def _stream(self, request: web.Request, behaviour: str, wanted: int) -> web.StreamResponse:
        assert request.transport is not None
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "X-Holdfast-Replica": "chat-h100-0"}
        )
        if behaviour == "close":
            response.force_close()
        await response.prepare(request)
        events = {"short": wanted - 1, "cut": self._cut_after, "error": 1, "merge": 1}.get(behaviour, wanted)
        for _ in range(events):
            await response.write(b'data: {"choices":[{"text":" word\\ndata: [DONE] "}]}\n\n')
        if behaviour == "cut":
            # Closed, not reset: a reset may overtake the bytes before it.
            request.transport.close()
            return response
        if behaviour == "error":
            await response.write(b'data: {"error": {"message": "the engine died"}}\n\n')
        if behaviour == "merge":
            await response.write(b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\n' % wanted)
        await response.write(b"data: [DONE]\n\n")
        return response


class FakePrometheus:
    """Prometheus's HTTP API with scripted answers: rows by the name of the query, or a handler for everything.

    `known` tells which PromQL has which name; unknown queries are answered with no rows. A combined query is named by
    its parts (`requests+tokens`) and answered with the rows of all of them, told apart as its PromQL does.
    """

    def __init__(self, known: Mapping[str, str], tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.warnings: list[str] = []
        self.handler: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        self.asked: list[dict[str, str]] = []
        self.headers: list[Mapping[str, str]] = []
        self._known = known

    @property
    def names(self) -> list[str]:
        """Names of the queries asked so far."""
        return [self._known.get(form["query"], "other") for form in self.asked]

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_post("/api/v1/{kind}", self._serve)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await self.listen(0)
        return self

    async def listen(self, port: int) -> None:
        """Serve on a port of 127.0.0.1, 0 for any."""
        self._site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=self._tls)
        await self._site.start()
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop_listening(self) -> None:
        """Refuse connections from now on."""
        await self._site.stop()

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        form = {key: str(value) for key, value in (await request.post()).items()}
        self.asked.append(form)
        self.headers.append(request.headers.copy())
        if self.handler is not None:
            return await self.handler(request)
        rows = self._rows_of(self._known.get(form["query"], ""))
        kind = "matrix" if request.match_info["kind"] == "query_range" else "vector"
        body: dict[str, Any] = {"status": "success", "data": {"resultType": kind, "result": rows}}
        if self.warnings:
            body["warnings"] = self.warnings
        return web.json_response(body)

    def _rows_of(self, name: str) -> list[dict[str, Any]]:
        parts = name.split("+")
        rows = {part: self.rows.get(part, []) for part in parts}
        if len(parts) > 1 and "engines" in rows:
            told_apart = {"metric": combined_queries.SAMPLED_AT}
            rows["engines"] = [{**row, "metric": {**row["metric"], **told_apart}} for row in rows["engines"]]
        return [row for part in parts for row in rows[part]]


class ScriptedRanges:
    """A Prometheus client that answers range queries in turn: with rows, a failure in words, or an error."""

    def __init__(self, answers: Sequence[Sequence[Series] | str | Exception], after: Callable[[], None] = bool) -> None:
        self._answers = list(answers)
        self._after = after
        self.asked: list[tuple[Query, float, float, float]] = []

    def instant(self, query: Query, at: float) -> QueryResult:
        raise AssertionError(f"nobody asks for {query.name} at {at}")

    def range(
        self, query: Query, start: float, end: float, step_seconds: float, timeout_seconds: float
    ) -> tuple[Series, ...]:
        assert timeout_seconds > 0.0
        self.asked.append((query, start, end, step_seconds))
        self._after()
        answer = self._answers.pop(0)
        if isinstance(answer, str):
            raise QueryError(answer)
        if isinstance(answer, Exception):
            raise answer
        return tuple(answer)

    def close(self) -> None:
        """Nothing is open."""


class AuthenticatingProxy:
    """An HTTP proxy before a Prometheus that serves its API below `path`, to who sends all of `wanted` headers.

    It passes their requests on without these headers, and answers all others with `refusal`.
    """

    def __init__(self, behind: str, path: str, wanted: Mapping[str, str], refusal: int = 401) -> None:
        self.wanted = dict(wanted)
        self.passed = self.refused = 0
        self._behind, self._path, self._refusal = behind, path, refusal

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._session = aiohttp.ClientSession()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}{self._path}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.Response:
        if any(request.headers.get(name) != value for name, value in self.wanted.items()):
            self.refused += 1
            return web.Response(status=self._refusal, text="<html>sign in</html>", content_type="text/html")
        if not request.path.startswith(f"{self._path}/api/v1/query"):
            return web.Response(status=404, text=request.path)
        self.passed += 1
        kept = {name: value for name, value in request.headers.items() if name not in (*self.wanted, "Host")}
        url, body = self._behind + request.path.removeprefix(self._path), await request.read()
        async with self._session.request(request.method, url, data=body, headers=kept) as answer:
            return web.Response(body=await answer.read(), status=answer.status, content_type=answer.content_type)


class FakeHistoryStore:
    """A source of metrics that answers live queries at once, and those about the past only while `answers` is set.

    Reads that name one of `failing` raise its error. `reads` are the names of each read, in order.
    """

    def __init__(
        self, history: Callable[[TrafficRequest, float], History] | None = None, live: Traffic | None = None
    ) -> None:
        self._history = history or (lambda request, now: History())
        self.live = live or Traffic(SignalState.ABSENT, "no replica is ready yet")
        self.answers = asyncio.Event()
        self.failing: dict[str, Exception] = {}
        self.reads: list[tuple[str, ...]] = []

    async def observe(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, Traffic]:
        return {request.key: self.live for request in requests}

    async def history(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, History]:
        names = tuple(request.key.name for request in requests)
        self.reads.append(names)
        await self.answers.wait()
        for name in names:
            if name in self.failing:
                raise self.failing[name]
        return {request.key: self._history(request, now) for request in requests}

    async def running_by_pod(self, keys: Iterable[ServiceKey], now: float) -> Mapping[ServiceKey, Mapping[str, float]]:
        return {}

    def catch_up(self) -> None: ...


class RawServer:
    """A local port that answers the k-th request with the k-th script, byte for byte; the last one repeats.

    A script is a list of byte strings, each sent by itself; `CLOSE` ends the connection, `RESET` aborts it, `HOLD`
    keeps it open and silent until the server stops.
    """

    CLOSE, RESET, HOLD = b"\0close", b"\0reset", b"\0hold"

    def __init__(self, *scripts: Sequence[bytes]) -> None:
        self.scripts = list(scripts)
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.url = ""
        self._stopped = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped.set()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [line for line in head.split("\r\n") if line.lower().startswith("content-length:")]
        script = self.scripts[min(len(self.heads), len(self.scripts) - 1)]
        self.heads.append(head)
        self.bodies.append(await reader.readexactly(int(lengths[0].split(":")[1]) if lengths else 0))
        for part in script:
            if part in (self.CLOSE, self.RESET, self.HOLD):
                if part == self.HOLD:
                    await self._stopped.wait()
                elif part == self.RESET:
                    writer.transport.abort()
                return False
            writer.write(part)
            await writer.drain()
            # Each part reaches the client by itself: its read runs before the next write.
            for _ in range(3):
                await asyncio.sleep(0)
        return True


class BrokenBoard(Board):
    """A status page that fails at whatever it is told."""

    def pictured(self, *_: object) -> None:
        raise RuntimeError("no page today")

    def decided(self, *_: object) -> None:
        raise RuntimeError("no page today")


class BrokenCollector(Collector):
    """Metrics that cannot be collected."""

    def collect(self) -> Iterable[Metric]:
        raise ZeroDivisionError("no metrics today")


class HugeBoard(Board):
    """A status page of a fleet that no socket buffer holds."""

    body = bytes(32_000_000)

    async def fleet(self) -> JsonResponse:
        return JsonResponse("tick", self.body, b"")


class FakeOverloadRig:
    """Stock vLLM that carries 20 req/s with 768 tokens per step and 36 sequences, and a plugin; notes every run."""

    def __init__(self, plugin: Callable[[float], float] = lambda rate: min(rate, 19.0)) -> None:
        self.asked: list[RunKey] = []
        self.prepared: list[RunKey] = []
        self._plugin = plugin

    def prepare(self, key: RunKey) -> None:
        self.prepared.append(key)

    def run(self, key: RunKey, number: int) -> Figures:
        assert number == len(self.asked)
        assert self.prepared[-1] == key
        self.asked.append(key)
        goodput = self._plugin(key.rate_rps) if key.variant in PROMISED else _stock(key.limits, key.rate_rps)
        return Figures(100, 90, 0, goodput, 0.4, 0.04, 0.8 * goodput, 40.0, min(key.rate_rps, 25.0), 0.01)


def _stock(limits: FixedLimits | None, rate: float) -> float:
    """It collapses beyond what it can carry."""
    if limits is None:
        return rate if rate <= 17.0 else 0.0
    carried = 20.0 - 4.0 * abs(math.log2(limits.tokens / 768)) - 2.0 * abs(math.log2(limits.sequences / 36))
    return rate if rate <= carried else max(0.0, carried - 6.0 * (rate - carried))


class FakeMeter:
    """A machine of scripted speed: each run takes the next one, at the end always the last."""

    def __init__(self, *during_ms: float) -> None:
        self._to_come = list(during_ms) or [1.0]
        self.waited_for: list[Reference | None] = []

    def wait_until_steady(self, against: Reference | None, tolerance: float, most_seconds: float) -> float:
        self.waited_for.append(against)
        return 0.0

    @contextlib.contextmanager
    def during(self) -> Iterator[Sampled]:
        now = self._to_come.pop(0) if len(self._to_come) > 1 else self._to_come[0]
        yield Sampled(Speed(now, (now, now, now), now))


class FakeEngine:
    """An endpoint and the model of it for the search of limits: every setting carries a rate, and is believed to.

    `learns` is by how much one trial brings a belief towards the truth: 0 never, 1 at once, below 0 away from it.
    """

    def __init__(
        self,
        carries: Mapping[Setting, float],
        believed: Mapping[Setting, float],
        learns: float = 0.0,
        full: bool = False,
    ) -> None:
        self.carries, self.believed, self.learns, self.full = carries, dict(believed), learns, full
        self.idle_is_good, self.doubt, self.good_beyond = True, 0.0, 0.5
        self.rates: list[tuple[Setting, float]] = []

    async def run(self, setting: Setting, rate_rps: float, load: TrialLoad) -> Tried:
        self.rates.append((setting, rate_rps))
        held = rate_rps <= self.carries[setting]
        bad = 0 if held else round((1.0 - self.good_beyond) * load.counted)
        return Tried(setting, rate_rps, held, load.counted, bad, seconds=10.0, memory_full=self.full)

    async def alone(self, setting: Setting, load: TrialLoad) -> Tried:
        bad = 0 if self.idle_is_good else 20
        return Tried(setting, 0.0, self.idle_is_good, 20, bad, seconds=5.0)

    def rate(self, setting: Setting) -> float:
        return self.believed[setting]

    def proposals(self, settings: Sequence[Setting]) -> list[Setting]:
        return sorted(settings, key=lambda each: -self.believed[each])

    def sustained(self, setting: Setting) -> float:
        return 1.0

    def residence_seconds(self, setting: Setting, rate_rps: float) -> float:
        return 0.0

    def learn(self, tried: Tried, load: TrialLoad) -> bool:
        wrong = self.carries[tried.setting] / self.believed[tried.setting]
        self.believed = {setting: rate * wrong**self.learns for setting, rate in self.believed.items()}
        return self.learns > 0.0


class EngineOfLittleMemory(FakeEngine):
    """Does not start with another share of memory than its own."""

    async def run(self, setting: Setting, rate_rps: float, load: TrialLoad) -> Tried:
        if setting.gpu_memory_utilization is not None:
            raise CannotStart("CUDA out of memory")
        return await super().run(setting, rate_rps, load)


class EngineWithoutResult(FakeEngine):
    """Has no result of its second trial, nor of those after it that are named."""

    also: tuple[int, ...] = ()

    async def run(self, setting: Setting, rate_rps: float, load: TrialLoad) -> Tried:
        tried = await super().run(setting, rate_rps, load)
        if len(self.rates) in (2, *self.also):
            raise UnusableTrial("refused at 9 req/s")
        return tried


class FakeKnobs:
    """Takes any limits, and remembers them."""

    def __init__(self, most: Setting) -> None:
        self._most = most
        self.applied: list[Setting] = []

    async def most(self) -> Setting:
        return self._most

    async def apply(self, setting: Setting) -> bool:
        self.applied.append(setting)
        return False


class FakeFailingRestart:
    """Starts an engine with any setting but one."""

    def __init__(self, fails: Setting) -> None:
        self._fails = fails
        self.started: list[Setting] = []

    async def start(self, setting: Setting) -> None:
        self.started.append(setting)
        if setting == self._fails:
            raise CannotStart("CUDA out of memory")


class FakeLimitsEngine:
    """An engine that reports, on a real local port, the limits that stand in a file; or always the same `text`."""

    def __init__(self, path: Path, most: Setting, text: str | None = None) -> None:
        self._path, self._most, self._text = path, most, text
        self.url = ""

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._reported() if self._text is None else self._text)

    def _reported(self) -> str:
        try:
            told = parse_limits(self._path.read_text())
        except (OSError, LimitsError):
            told = Limits(0, Objectives(1.0, 1.0))
        values = {
            "version": told.version,
            "active_sequences": told.active_sequences or self._most.max_num_seqs,
            "tokens_per_step": told.tokens_per_step or self._most.max_num_batched_tokens,
        }
        return "".join(f'holdfast:limits{{name="{name}"}} {value}\n' for name, value in values.items())


class GivenLimits(LimitsFiles):
    """Limits that are there from the start, in place of files."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(list[Path]())
        self._given: Limits | None = limits

    def poll(self, now: float) -> Limits | None:
        """The limits at the first look after they were given, then nothing new."""
        given, self._given = self._given, None
        self.current = given or self.current
        return given

    def give(self, limits: Limits) -> None:
        """Other limits, from the next look on."""
        self._given = limits


class FakeApiServer:
    """vLLM's API server as an ASGI application: requests go to the engine, and events are sent as they are given.

    The scope names the request, and says whether it streams and how many requests of the engine it is (`n`).
    """

    def __init__(self) -> None:
        self.state = SimpleNamespace(engine_client=self, args=SimpleNamespace(api_key=None))
        self.model_config = SimpleNamespace(max_model_len=8192)
        self.output_processor = SimpleNamespace(request_states={}, add_request=self._add_request)
        self.added: list[str] = []
        self._events: dict[str, asyncio.Queue[bytes | None]] = {}

    def give(self, name: str, *events: bytes | None) -> None:
        """Parts of an answer; None is its end."""
        for event in events:
            self._events.setdefault(name, asyncio.Queue()).put_nowait(event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        name, kind = scope["name"], "DELTA" if scope["streams"] else "FINAL_ONLY"
        params = SimpleNamespace(output_kind=SimpleNamespace(name=kind))
        for number in range(scope["n"]):
            given = {"sampling_params": params, "prompt_token_ids": [0] * 200}
            request = SimpleNamespace(request_id=f"{number}_{name}" if number else name, **given)
            self.output_processor.add_request(request, None, None, number, queue=None)
        # Streams are sent by a task of their own.
        await asyncio.create_task(self._answer(name, send))

    async def _answer(self, name: str, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        events = self._events.setdefault(name, asyncio.Queue())
        while (event := await events.get()) is not None:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _add_request(self, request: Any, *_: Any, **__: Any) -> None:
        self.added.append(request.request_id)


class FakeVLLMRouter:
    """The list of replicas of a vllm-router, with the requests that changed it; started for several pools or one."""

    def __init__(self, *urls: str) -> None:
        self.urls = set(urls)
        self.roles: dict[str, str] = {}
        self.told: list[tuple[str, str]] = []
        self.refuses = False

    def app(self) -> web.Application:
        """Its pages, as vllm-router 0.1.17 has them."""
        app = web.Application()
        app.router.add_get("/list_workers", self._list)
        app.router.add_post("/add_worker", self._add)
        app.router.add_post("/remove_worker", self._remove)
        app.router.add_get("/workers", self._list_roles)
        app.router.add_post("/workers", self._add_role)
        return app

    async def _list_roles(self, _: web.Request) -> web.Response:
        found = [{"url": url, "worker_type": role} for url, role in self.roles.items()]
        return web.json_response({"workers": found})

    async def _add_role(self, request: web.Request) -> web.Response:
        said = await request.json()
        assert said["model_id"] == "chat"
        assert said["url"] not in self.roles, "of one that is added again, vllm-router 0.1.17 keeps both roles"
        self.roles[said["url"]] = said["worker_type"]
        return web.json_response({"success": True})

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"urls": sorted(self.urls)})

    async def _add(self, request: web.Request) -> web.Response:
        url = request.query["url"]
        self.told.append(("add", url))
        if self.refuses:
            return web.Response(status=400, text="not healthy")
        self.urls.add(url)
        return web.Response(text="added")

    async def _remove(self, request: web.Request) -> web.Response:
        self.told.append(("remove", request.query["url"]))
        self.urls.discard(request.query["url"])
        self.roles.pop(request.query["url"], None)
        return web.Response(text="removed")


class FakeReplica:
    """The page by which a pod says whether it is ready; `status` None: it does not answer."""

    def __init__(self, status: int | None = 200) -> None:
        self.status = status
        self.asked = 0

    def app(self) -> web.Application:
        """The page."""
        app = web.Application()
        app.router.add_get("/holdfast/ready", self._ready)
        return app

    async def _ready(self, _: web.Request) -> web.Response:
        self.asked += 1
        if self.status is None:
            await asyncio.Event().wait()
        return web.Response(status=self.status or 0)

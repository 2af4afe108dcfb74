"""Queries Prometheus through prometheus-api-client. Every failure becomes a QueryError with one sentence.

The client is synchronous; callers run it in threads.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import prometheus_api_client
import pydantic_core
import requests
import urllib3
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests.auth import AuthBase

from holdfast.observe.series import samples
from holdfast.observe.series.queries import Query
from holdfast.observe.series.samples import QueryError, QueryResult, Series

MOST_CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class PrometheusAddress:
    """Address of Prometheus and the credentials for it.

    `headers` carries what multi-tenant stores need (X-Scope-OrgID), `matchers` the labels by which a store of several
    clusters tells this one. `insecure` switches certificate checks off.
    """

    url: str
    bearer_token_file: Path | None = None
    ca_file: Path | None = None
    headers: tuple[tuple[str, str], ...] = ()
    matchers: tuple[tuple[str, str], ...] = ()
    insecure: bool = False
    timeout_seconds: float = 5.0
    max_answer_bytes: int = 64 * 1024 * 1024

    def __str__(self) -> str:
        """As it may be shown: without a user, a password and what follows a question mark."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2].rstrip('/')}"


class PrometheusClient:
    """Instant and range queries; safe to share between threads."""

    def __init__(self, address: PrometheusAddress) -> None:
        self._session = _BoundedSession(address)
        auth = BearerFromFile(address.bearer_token_file) if address.bearer_token_file else None
        self._client = prometheus_api_client.PrometheusConnect(
            url=address.url.rstrip("/"),
            headers=dict(address.headers) or None,
            retry=urllib3.Retry(total=0),  # the control loop is the retry
            auth=auth,
            session=self._session,
            timeout=address.timeout_seconds,
            method="POST",  # long regular expressions do not fit into every proxy's URL
        )
        # One connection per thread: the client's own pool holds ten and discards the rest.
        adapter = requests.adapters.HTTPAdapter(max_retries=0, pool_maxsize=MOST_CONNECTIONS)
        self._session.mount(address.url.rstrip("/"), adapter)
        self._timeout_seconds = address.timeout_seconds
        self._matchers = address.matchers
        self._address = address

    def instant(self, query: Query, at: float) -> QueryResult:
        """Evaluate at `at` (seconds since the epoch)."""
        result = self._ask(query, self._timeout_seconds, {"time": f"{at:.3f}"})
        return QueryResult(
            _named(query, samples.parse_vector, result), samples.partial_warnings(self._session.warnings)
        )

    def range(
        self, query: Query, start: float, end: float, step_seconds: float, timeout_seconds: float
    ) -> tuple[Series, ...]:
        """Evaluate at every step of [start, end]; the client rounds both ends to whole seconds."""
        times = (datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC), f"{step_seconds:g}s")
        return _named(query, samples.parse_matrix, self._ask(query, timeout_seconds, {}, times))

    def close(self) -> None:
        self._client.close()

    def _ask(
        self,
        query: Query,
        timeout_seconds: float,
        params: dict[str, str],
        times: tuple[datetime, datetime, str] | None = None,
    ) -> object:
        # Prometheus cancels at `timeout` too, so that an abandoned query costs it nothing more.
        params = params | {"timeout": f"{timeout_seconds:g}s"}
        promql = matching(query.promql, self._matchers)
        try:
            if times is None:
                return self._client.custom_query(promql, params, timeout_seconds)
            return self._client.custom_query_range(promql, *times, params, timeout_seconds)
        except PrometheusApiClientException as error:
            raise QueryError(f"{_title(query)}: {_refusal(self._session.status, self._session.refusal)}") from error
        except (requests.Timeout, TimeoutError) as error:
            raise QueryError(
                f"{_title(query)}: Prometheus at {self._address} did not answer within {timeout_seconds:g} s"
            ) from error
        except requests.JSONDecodeError as error:
            raise QueryError(
                f"{_title(query)}: the answer is not JSON; check that the address is that of Prometheus"
            ) from error
        except (KeyError, TypeError, AttributeError) as error:
            raise QueryError(f"{_title(query)}: the answer has no data.result") from error
        except (requests.RequestException, OSError) as error:
            raise QueryError(
                f"{_title(query)}: Prometheus at {self._address} cannot be reached ({type(error).__name__}); "
                "check --prometheus-url, its Service and NetworkPolicies"
            ) from error
        except (ValueError, RecursionError) as error:
            raise QueryError(
                f"{_title(query)}: the JSON of the answer cannot be parsed: too deep, or numbers too large"
            ) from error


def matching(promql: str, matchers: Iterable[tuple[str, str]]) -> str:
    """Restrict a query to series with these labels. Every selector of ours has braces, and nothing else has."""
    given = "".join(f"{name}={json.dumps(value, ensure_ascii=False)}, " for name, value in matchers)
    return promql.replace("{", f"{{{given}")


class BearerFromFile(AuthBase):
    """Adds a token that is read again whenever its file changes: mounted tokens are rotated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[tuple[int, int, int], str] | None = None

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token()}"
        return request

    def _token(self) -> str:
        try:
            stat = self._path.stat()
            version = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if self._known is None or self._known[0] != version:
                self._known = (version, self._path.read_text(encoding="utf-8").strip())
            return self._known[1]
        except OSError as error:
            raise QueryError(f"the bearer token file {self._path} cannot be read: {error.strerror}") from error


class _BoundedSession(requests.Session):
    """Bounds responses in bytes and in total time, sends parameters in the body, and retains warnings.

    requests' own timeout restarts with every received byte, and prometheus-api-client drops the warnings.
    """

    def __init__(self, address: PrometheusAddress) -> None:
        super().__init__()
        self.verify = False if address.insecure else str(address.ca_file) if address.ca_file else True
        self._max_bytes = address.max_answer_bytes
        self._seen = threading.local()

    @property
    def warnings(self) -> object:
        """`warnings` of this thread's last answer."""
        return getattr(self._seen, "warnings", None)

    @property
    def status(self) -> int:
        """HTTP status of this thread's last answer."""
        return getattr(self._seen, "status", 0)

    @property
    def refusal(self) -> str:
        """Error text of this thread's last answer."""
        return getattr(self._seen, "refusal", "")

    def request(self, method: str | bytes, url: str | bytes, *args: Any, **kwargs: Any) -> requests.Response:
        """Send with the parameters as a form, and read the answer within the bounds."""
        self._seen.warnings, self._seen.status, self._seen.refusal = None, 0, ""
        deadline = time.monotonic() + kwargs["timeout"]
        if method == "POST":
            kwargs["data"] = kwargs.pop("params", None)
        kwargs["stream"] = True
        response = super().request(method, url, *args, **kwargs)
        content = self._read(response, deadline)
        response._content = content  # what Response.content itself would have stored
        response.json = functools.partial(_json, content)  # type: ignore[method-assign]
        self._seen.status = response.status_code
        if not response.ok:
            self._seen.refusal = _why(content)
        if b'"warnings"' in content:
            self._seen.warnings = _warnings_of(content)
        return response

    def _read(self, response: requests.Response, deadline: float) -> bytes:
        content = bytearray()
        with response:
            for chunk in response.iter_content(chunk_size=256 * 1024):
                content += chunk
                if len(content) > self._max_bytes:
                    raise requests.ConnectionError(f"the answer exceeds {self._max_bytes} bytes")
                if time.monotonic() > deadline:
                    raise requests.Timeout("the answer took too long")
        return bytes(content)


T = TypeVar("T")


def _title(query: Query) -> str:
    """Name a query in a message; of a combined one the first part, and the number of the others."""
    first, *others = query.name.split("+")
    return f"{first} and {len(others)} more" if others else first


def _named(query: Query, parse: Callable[[object], T], result: object) -> T:
    try:
        return parse(result)
    except QueryError as error:
        raise QueryError(f"{_title(query)}: {error}") from error


def _json(content: bytes) -> Any:
    """Parse an answer at half the cost; what the fast parser rejects is left to the parser of `requests`."""
    try:
        return pydantic_core.from_json(content)
    except ValueError:
        try:
            return json.loads(content)
        except json.JSONDecodeError as error:
            raise requests.JSONDecodeError(error.msg, error.doc, error.pos) from None


def _warnings_of(content: bytes) -> object:
    try:
        payload: Mapping[str, object] = json.loads(content)
        return payload.get("warnings")
    except (ValueError, AttributeError, RecursionError):
        return None


def _why(content: bytes) -> str:
    """Prometheus' own error text; for an error page of a proxy, the beginning of the page."""
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return " ".join(content.decode(errors="replace").split())


def _refusal(status: int, error: str) -> str:
    if status in (401, 403, 407):  # 407: of a proxy before it
        return f"Prometheus rejected the credentials (HTTP {status}); check its token file and headers"
    kind = "cannot serve the query" if status >= 500 else "rejected the query"
    return f"Prometheus {kind} (HTTP {status}): {error[:200]}"

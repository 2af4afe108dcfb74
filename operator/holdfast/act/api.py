"""The port to the API server: one method, plain dicts, every failure a named error."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

Body = dict[str, Any]

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
PATCH = "application/json-patch+json"
JSON = "application/json"
# Characters that YAML forbids or treats as line breaks, and lone UTF-16 surrogates, which no text may contain.
_ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)}
_ESCAPED |= dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}")


class ApiError(Exception):
    """The API server refused: `status` is the HTTP code, the text its message, `causes` are machine-readable."""

    def __init__(self, status: int, message: str, causes: frozenset[str] = frozenset()) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.causes = causes

    @property
    def is_invalid(self) -> bool:
        """Whether the resulting object would be invalid for its kind."""
        return self.status == 422

    @property
    def namespace_ends(self) -> bool:
        """Whether the namespace is being deleted: nothing can be created there, and nothing needs to be."""
        return self.status == 403 and "NamespaceTerminating" in self.causes


class ApiUnreachable(Exception):
    """No answer in time, or no connection: nothing is known about whether a write took place."""


class NoCluster(Exception):
    """There is no cluster to connect to: no kubeconfig and no service account, or an unreadable one."""


class NotLeading(Exception):
    """A write was suppressed, because another operator may lead by the time it arrives."""


class ApiPort(Protocol):
    """Sends one request and returns the decoded object; raises ApiError or ApiUnreachable.

    The body is a list where the content type is `PATCH`.
    """

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Body | Sequence[Body] | None = None,
        content_type: str = JSON,
    ) -> Body: ...


class WhileLeading:
    """An ApiPort that checks leadership before every write: it may end between two writes of a decision."""

    def __init__(self, api: ApiPort, may_write: Callable[[], bool]) -> None:
        self._api = api
        self._may_write = may_write

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Body | Sequence[Body] | None = None,
        content_type: str = JSON,
    ) -> Body:
        if method != "GET" and not self._may_write():
            raise NotLeading(f"{method} {path}")
        return await self._api.request(method, path, query=query, body=body, content_type=content_type)


class KubernetesApi:
    """ApiPort over kubernetes.aio, dicts in and out: generated models cost time and reject fields they do not know."""

    def __init__(self, client: ApiClient, timeout_seconds: float = 10.0) -> None:
        self._client = client
        self._timeout_seconds = timeout_seconds
        self.outage = ""
        """Why the newest request had no answer; empty as soon as one has. A 500 is one: a webhook may be away."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Body | Sequence[Body] | None = None,
        content_type: str = JSON,
    ) -> Body:
        sent: Body | Sequence[Body] | str | None = body
        if content_type == APPLY and body is not None:
            sent, content_type = as_yaml(body), f"{APPLY}; charset=utf-8"  # then the client sends text unchanged
        _, url, headers, _, _ = await self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": JSON, "Content-Type": content_type},
            auth_settings=["BearerToken"],
        )
        try:
            response = await self._client.call_api(method, url, headers, sent, _request_timeout=self._timeout_seconds)
            text = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self.outage = f"{self.server} does not answer {method} {path}: {self._why(error)}"
            raise ApiUnreachable(self.outage) from error
        self.outage = f"{self.server} answers {method} {path} with {response.status}" if response.status >= 502 else ""
        return _decoded(response.status, text)

    @property
    def server(self) -> str:
        """The address of the API server."""
        return str(self._client.configuration.host)

    def _why(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout_seconds:g} s"
        number = getattr(error, "errno", None)
        # aiohttp gives the number of the operating system, and a name resolver a negative one of its own.
        said = os.strerror(number) if isinstance(number, int) and number > 0 else str(error)
        return said.strip() or type(error).__name__


def as_yaml(body: Body | Sequence[Body]) -> str:
    """JSON that is also valid YAML: YAML does not know JSON's surrogate pairs of escapes beyond U+FFFF."""
    return json.dumps(body, ensure_ascii=False).translate(_ESCAPED)


def _decoded(status: int, text: bytes) -> Body:
    try:
        payload = json.loads(text) if text else {}
    except ValueError:
        payload = {"message": text[:200].decode(errors="replace")}
    if not isinstance(payload, dict):
        payload = {}
    if status >= 400:
        causes = (payload.get("details") or {}).get("causes") or ()
        raise ApiError(
            status, str(payload.get("message", "no message")), frozenset(str(cause.get("reason")) for cause in causes)
        )
    return payload


def default_namespace(kubeconfig: Path | None = None, context: str | None = None) -> str:
    """Return the namespace that kubectl would use: that of the pod, or of the context; else `default`."""
    if _in_pod(kubeconfig, context):
        with contextlib.suppress(OSError):
            return _POD_NAMESPACE.read_text().strip() or "default"
        return "default"
    if _missing(kubeconfig):  # the client would log it
        return "default"
    with contextlib.suppress(Exception):  # `connect` says what is wrong with a kubeconfig
        contexts, current = config.list_kube_config_contexts(None if kubeconfig is None else str(kubeconfig))
        used = next((each for each in contexts if each["name"] == context), None) if context else current
        return str((used or {}).get("context", {}).get("namespace") or "default")
    return "default"


def _in_pod(kubeconfig: Path | None, context: str | None) -> bool:
    return kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ


def _missing(kubeconfig: Path | None) -> str:
    """The missing kubeconfig, empty if there is one: KUBECONFIG may list several files, and one is enough."""
    paths = str(kubeconfig or config.KUBE_CONFIG_DEFAULT_LOCATION)
    return "" if any(Path(path).expanduser().exists() for path in paths.split(os.pathsep) if path) else paths


@asynccontextmanager
async def connect(kubeconfig: Path | None = None, context: str | None = None) -> AsyncIterator[KubernetesApi]:
    """Connect with the pod's service account, or outside a cluster (or with arguments) with the kubeconfig.

    Raises NoCluster if neither exists or is valid.
    """
    configuration = Configuration()
    if not _in_pod(kubeconfig, context) and (missing := _missing(kubeconfig)):
        told = f"the kubeconfig {missing} does not exist; set KUBECONFIG or --kubeconfig"
        raise NoCluster(f"no cluster configuration: {told}")
    try:
        if not _in_pod(kubeconfig, context):
            path = None if kubeconfig is None else str(kubeconfig)
            await config.load_kube_config(config_file=path, context=context, client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
    except Exception as error:  # an invalid kubeconfig can raise almost any exception
        raise NoCluster(f"no cluster configuration: {error}; set KUBECONFIG or --kubeconfig") from error
    async with ApiClient(configuration) as client:
        client.user_agent = "holdfast"
        yield KubernetesApi(client)

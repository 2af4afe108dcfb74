"""A minimal client of the Kubernetes API: enough to start a cluster without starting a program per question."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_SECONDS = 30.0
MERGE_PATCH = "application/merge-patch+json"


class ApiError(Exception):
    """The API server refused; the message is its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ApiClient:
    """Speaks to the current context of a kubeconfig whose user has a client certificate or a token."""

    def __init__(self, kubeconfig: Path) -> None:
        document = yaml.safe_load(kubeconfig.read_text())
        context = _named(document["contexts"], document["current-context"])["context"]
        cluster = _named(document["clusters"], context["cluster"])["cluster"]
        user = _named(document["users"], context["user"])["user"]
        self._server = cluster["server"].rstrip("/")
        self._token = user.get("token")
        self._tls = ssl.create_default_context(cadata=_content(cluster, "certificate-authority").decode())
        if "client-certificate-data" in user or "client-certificate" in user:
            _load_pair(self._tls, _content(user, "client-certificate"), _content(user, "client-key"))

    def get(self, path: str, seconds: float = _SECONDS) -> Any:
        """The object or list at a path."""
        return json.loads(self._send("GET", path, None, "application/json", seconds))

    def is_ready(self) -> bool:
        """Whether the API server says it is ready."""
        try:
            return self._send("GET", "/readyz", None, "application/json", 2.0) == b"ok"
        except (ApiError, OSError):
            return False

    def patch(self, path: str, body: object, content_type: str = MERGE_PATCH) -> Any:
        """Patch an object and return it."""
        return json.loads(self._send("PATCH", path, body, content_type, _SECONDS))

    def create(self, path: str, body: object) -> Any:
        """Create an object in the collection at a path."""
        return json.loads(self._send("POST", path, body, "application/json", _SECONDS))

    def delete(self, path: str) -> None:
        """Delete an object; one that is already gone is fine."""
        try:
            self._send("DELETE", path, None, "application/json", _SECONDS)
        except ApiError as error:
            if error.status != 404:
                raise

    def watch(self, path: str, seconds: float) -> Iterator[dict[str, Any]]:
        """The objects of a collection, first as they are, then at each change, for at most so many seconds."""
        separator = "&" if "?" in path else "?"
        address = f"{path}{separator}watch=true&timeoutSeconds={max(1, round(seconds))}"
        request = self._request("GET", address, None, "application/json")
        with urllib.request.urlopen(request, context=self._tls, timeout=seconds + 5) as answer:
            for line in answer:
                yield json.loads(line)["object"]

    def _send(self, method: str, path: str, body: object, content_type: str, seconds: float) -> bytes:
        request = self._request(method, path, body, content_type)
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=seconds) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, _message(error.read())) from None

    def _request(self, method: str, path: str, body: object, content_type: str) -> urllib.request.Request:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return urllib.request.Request(self._server + path, data=data, headers=headers, method=method)


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _content(holder: dict[str, str], field: str) -> bytes:
    inline = holder.get(f"{field}-data")
    return base64.b64decode(inline) if inline else Path(holder[field]).read_bytes()


def _load_pair(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # The ssl module takes client certificates from files only.
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(certificate + b"\n" + key)
        pair.flush()
        tls.load_cert_chain(pair.name)


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]

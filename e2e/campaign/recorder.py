"""Notes what is judged later: sizes as a watch shows them, and what operators wrote by the audit log."""

from __future__ import annotations

import datetime
import json
import pathlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e import stack
from e2e.campaign.timeline import Size, Write
from e2e.cluster import nodes

_DEPLOYMENTS = "/apis/apps/v1/deployments?labelSelector=holdfast.dev/service"
_WATCH_SECONDS = 30.0
_USER = f"system:serviceaccount:{stack.NAMESPACE}:holdfast"
Json = dict[str, Any]


class Sizes:
    """The sizes of all Deployments of services, each with the time from which on it was seen; services by namespace."""

    def __init__(self) -> None:
        self._seen: list[Size] = []
        self._last: dict[str, int] = {}
        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block runs."""
        thread = threading.Thread(target=self._watch, name="sizes", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()

    def of(self, service: str, since: float) -> list[Size]:
        """The sizes of a service from a time on, and the one before."""
        sizes = [size for size in list(self._seen) if size.service == service]
        first = max((place for place, size in enumerate(sizes) if size.at <= since), default=0)
        return sizes[first:]

    def _watch(self) -> None:
        api = nodes.connect()
        while not self._over.is_set():
            try:
                for found in api.watch(_DEPLOYMENTS, _WATCH_SECONDS):
                    self._note(found)
            except (OSError, KeyError, ValueError):  # the API server is away, or says so in place of an object
                time.sleep(0.25)

    def _note(self, found: Json) -> None:
        service, replicas = found["metadata"]["namespace"], int(found["spec"]["replicas"])
        if self._last.get(service) != replicas:
            self._last[service] = replicas
            self._seen.append(Size(time.time(), service, replicas))


class Writes:
    """What operators have written since it was read last, from the audit log."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self._read_bytes = path, path.stat().st_size

    def new(self) -> list[Write]:
        """The writes that were answered since the last time."""
        with self._path.open("rb") as log:
            log.seek(self._read_bytes)
            text = log.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(complete)
        entries = (json.loads(line) for line in complete.splitlines() if _USER.encode() in line)
        return [write_of(entry) for entry in entries if is_carried_out(entry)]


def is_carried_out(entry: Json) -> bool:
    """Whether an entry of the audit log is a write of an operator that succeeded."""
    return entry["user"]["username"] == _USER and entry.get("responseStatus", {}).get("code", 500) < 300


def write_of(entry: Json) -> Write:
    """An entry of the audit log as a write."""
    target = entry["objectRef"]
    what = "/".join(target[part] for part in ("resource", "namespace", "name", "subresource") if part in target)
    is_lease = target["resource"] == "leases" and target.get("name") == "holdfast"
    return Write(stack.received_at(entry), _answered_at(entry), stack.writer(entry), what, is_lease)


def _answered_at(entry: Json) -> float:
    return datetime.datetime.fromisoformat(entry["stageTimestamp"]).timestamp()

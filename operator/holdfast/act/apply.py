"""Server-side apply of rendered manifests: only differences, never over a foreign object.

Written and watched objects are compared by the fields that the API server lists as ours (`rendered.live`). So another
writer's fields never cause a request. Neither does the watch event of our own write: it shows the state that the
response to that write already contained.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.act.api import APPLY, MERGE, ApiError, ApiPort, Body
from holdfast.act.resources import WORKLOADS, object_path
from holdfast.api import group_set
from holdfast.rendered.live import RENDERING, SCALING, Live
from holdfast.rendered.names import short_hash

WATCH_LAG_SECONDS = 10.0

Manifest = Mapping[str, Any]


class ForeignObject(Exception):
    """An object of this name exists and has another owner."""

    def __init__(self, manifest: Manifest) -> None:
        kind, meta = manifest["kind"], manifest["metadata"]
        self.message = (
            f"{kind} {meta['namespace']}/{meta['name']} exists and is not owned by this LLMService; "
            f"delete or rename it, or rename the LLMService"
        )
        super().__init__(self.message)


class Due(enum.Enum):
    """Why a manifest has to be written."""

    RENDERED = "rendered"  # never written, or its content changed
    DRIFTED = "drifted"  # another client changed or deleted the object


@dataclass(frozen=True, slots=True)
class _AppliedObject:
    manifest: str  # its digest
    state: str  # digest of the object in the API server's response
    at: float
    seen: bool = False  # whether the watch has shown it since


class Applier:
    """Applies the manifests of one service and remembers what it wrote: unchanged manifests cost no request."""

    def __init__(self, api: ApiPort) -> None:
        self._api = api
        self._written: dict[str, _AppliedObject] = {}

    def due(self, manifest: Manifest, shown: Live | None, now: float) -> Due | None:
        """Return why a manifest must be written now, None if it need not be.

        `shown` is the live object by the watch (`Live.absent` if it does not exist), None if its kind is not watched:
        then only a change of the manifest counts. The watch has some seconds to show the last write.
        """
        path = object_path(manifest)
        last = self._written.get(path)
        if last is None or last.manifest != _digest(manifest):
            return Due.RENDERED
        if shown is None:
            return None
        if shown.state == last.state:
            self._written[path] = replace(last, seen=True)
            return None
        return Due.DRIFTED if last.seen or abs(now - last.at) >= WATCH_LAG_SECONDS else None

    def is_settled(self, manifest: Manifest, shown: Live | None) -> bool:
        """Whether the watch shows the object as it was written."""
        last = self._written.get(object_path(manifest))
        return last is not None and (shown is None or shown.state == last.state)

    def recall(self, manifest: Manifest, shown: Live | None, noted: Container[str], now: float) -> None:
        """Take an object for written as the watch shows it, if an earlier process noted exactly that."""
        path = object_path(manifest)
        if shown is not None and path not in self._written and note(manifest, shown) in noted:
            self._written[path] = _AppliedObject(_digest(manifest), shown.state, now, seen=True)

    def forget(self, path: str) -> None:
        """Forget an object that we deleted: when it is needed again, its absence must not count as drift."""
        self._written.pop(path, None)

    async def apply(self, manifest: Manifest, shown: Live | None = None, now: float = 0.0) -> None:
        """Apply one manifest with the rendering manager.

        Raises ForeignObject if the name is taken, and passes on ApiError and ApiUnreachable. A missing workload is
        left to `create_workload`: created here it would get the default size.
        """
        path = object_path(manifest)
        uid = _checked(manifest, shown.owners, shown.uid) if shown and shown.uid else await self._look(path, manifest)
        try:
            answer = await self._render(path, manifest, uid)
        except ApiError as error:
            if error.status != 409:
                raise
            # Deleted, and perhaps recreated by another client, since it was read.
            answer = await self._render(path, manifest, await self._look(path, manifest))
        if answer is not None:
            self._remember(path, manifest, answer, now)

    async def ask_for_creation(self, manifest: Manifest, replicas: int) -> None:
        """Create a workload as a dry run; raises as `create_workload` would.

        A dry run passes admission as the write does (Kubernetes API concepts, "Dry-run").
        """
        path = object_path(manifest)
        if not await self._look(path, manifest):
            await self._apply(path, _sized(manifest, replicas), SCALING, dryRun="All")

    async def create_workload(self, manifest: Manifest, replicas: int, now: float = 0.0) -> None:
        """Create a workload at its wanted size, so that `replicas` belongs to the scaling manager alone.

        Three applies: the scaler creates the whole object (else it would be born with the default size 1), the
        renderer takes every other field, the scaler then lets go of all but `replicas`.
        """
        path = object_path(manifest)
        uid = await self._look(path, manifest)
        sized = _sized(manifest, replicas)
        created = await self._apply(path, _pinned(sized, uid), SCALING)
        uid = created.get("metadata", {}).get("uid", "")
        await self._apply(path, _pinned(manifest, uid), RENDERING)
        answer = await self._apply(path, {**_pinned(_identity(manifest), uid), "spec": {"replicas": replicas}}, SCALING)
        self._remember(path, manifest, answer, now)

    async def _render(self, path: str, manifest: Manifest, uid: str) -> Body | None:
        if manifest["kind"] not in WORKLOADS:
            return await self._apply(path, _pinned(manifest, uid), RENDERING)
        if not uid:
            return None
        answer = await self._apply(path, _pinned(manifest, uid), RENDERING)
        return await self._let_go(path, manifest, answer) if Live.of(manifest["kind"], answer).half_made else answer

    async def _let_go(self, path: str, manifest: Manifest, live: Body) -> Body:
        """Finish an interrupted creation with the last of its three applies, only if the size is still as read."""
        kept = _identity(manifest)
        kept["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        return await self._apply(path, {**kept, "spec": {"replicas": live["spec"]["replicas"]}}, SCALING)

    async def _apply(self, path: str, body: Body, manager: str, **more: str) -> Body:
        query = {"fieldManager": manager, "force": "true", **more}
        return await self._api.request("PATCH", path, query=query, body=body, content_type=APPLY)

    async def _look(self, path: str, manifest: Manifest) -> str:
        """Return the uid of our object, an empty string when there is none."""
        try:
            existing = await self._api.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                await self._check_service(manifest)
                return ""
            raise
        live = Live.of(manifest["kind"], existing)
        return _checked(manifest, live.owners, live.uid)

    async def _check_service(self, manifest: Manifest) -> None:
        """Raise ForeignObject where the Service of a LeaderWorkerSet to create is taken: its pods would have no names.

        Source: v0.9.0, controller_utils.go, CreateHeadlessServiceIfNotExists.
        """
        if manifest["kind"] != group_set.KIND:
            return
        service = {**_identity(manifest), "apiVersion": "v1", "kind": "Service"}
        try:
            found = await self._api.request("GET", object_path(service))
        except ApiError as error:
            if error.status == 404:
                return
            raise
        if all(owner.get("kind") != group_set.KIND for owner in found["metadata"].get("ownerReferences") or ()):
            raise ForeignObject(service)

    def _remember(self, path: str, manifest: Manifest, answer: Body, now: float) -> None:
        state = Live.of(manifest["kind"], answer).state
        self._written[path] = _AppliedObject(_digest(manifest), state, now)


def note(manifest: Manifest, shown: Live) -> str:
    """Return a digest of a manifest and of the object that the watch shows for it: ten hexadecimal digits."""
    return short_hash([object_path(manifest), _digest(manifest), shown.state])


def _sized(manifest: Manifest, replicas: int) -> Body:
    return {**manifest, "spec": {**manifest["spec"], "replicas": replicas}}


async def adopt(api: ApiPort, path: str, kind: str, owner: Manifest, born: str) -> None:
    """Adopt the orphan of an earlier service of the owner's name; nothing else of it changes.

    It is read once more and written with that resourceVersion; an object that is gone or has an owner is skipped.
    Raises ApiError (409 if another client was faster) and ApiUnreachable.
    """
    try:
        meta = (found := await api.request("GET", path))["metadata"]
    except ApiError as error:
        if error.status == 404:
            return
        raise
    orphan = Live.of(kind, found).orphan
    if orphan is None or not orphan.falls_to(owner["name"], born):
        return
    pinned = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    body: Body = {"metadata": {**pinned, "ownerReferences": [dict(owner)]}}
    await api.request("PATCH", path, query={"fieldManager": RENDERING}, body=body, content_type=MERGE)


async def delete(api: ApiPort, path: str, uid: str = "", *, after_its_pods: bool = False) -> bool:
    """Delete an object, with `uid` only exactly that one; return whether it was there. Raises ApiError.

    `after_its_pods`: a workload exists until the last of its pods is gone.
    """
    policy = "Foreground" if after_its_pods else "Background"
    body: Body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy}
    if uid:
        body["preconditions"] = {"uid": uid}
    try:
        await api.request("DELETE", path, body=body)
    except ApiError as error:
        if error.status != 404 and not (uid and error.status == 409):
            raise
        return False
    return True


def _checked(manifest: Manifest, owners: tuple[str, ...], uid: str) -> str:
    ours = {reference["uid"] for reference in manifest["metadata"].get("ownerReferences", ())}
    if not ours.intersection(owners):
        raise ForeignObject(manifest)
    return uid


def _identity(manifest: Manifest) -> Body:
    meta = {"name": manifest["metadata"]["name"], "namespace": manifest["metadata"]["namespace"]}
    return {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": meta}


def _pinned(manifest: Manifest, uid: str) -> Body:
    """The manifest with this uid: the API server answers 409 if the object is another one, or gone."""
    return {**manifest, "metadata": {**manifest["metadata"], **({"uid": uid} if uid else {})}}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

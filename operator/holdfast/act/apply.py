"""Server-side apply of rendered manifests: only what differs, never over somebody else's object."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from holdfast.act.api import APPLY, ApiError, ApiPort, Body
from holdfast.act.resources import object_path

RENDERING = "holdfast-rendering"
SCALING = "holdfast-scaling"

Manifest = Mapping[str, Any]


class ForeignObject(Exception):
    """An object of the wanted name exists and belongs to somebody else."""

    def __init__(self, manifest: Manifest) -> None:
        kind, meta = manifest["kind"], manifest["metadata"]
        self.message = (
            f"{kind} {meta['namespace']}/{meta['name']} exists and is not owned by this LLMService: "
            f"delete or rename it, or rename the LLMService"
        )
        super().__init__(self.message)


class Applier:
    """Applies manifests and remembers what it wrote, so that an unchanged manifest costs no request."""

    def __init__(self, api: ApiPort) -> None:
        self._api = api
        self._written: dict[str, str] = {}

    async def apply(self, manifest: Manifest, seen: str = "") -> bool:
        """Apply one manifest with the rendering manager; return whether a request was needed.

        `seen` is what the live object looks like, where that is watched: a change of it by others is put right.
        Raises ForeignObject when the name is taken, ApiError and ApiUnreachable as they come.
        """
        path, digest = object_path(manifest), _digest([manifest, seen])
        if self._written.get(path) == digest:
            return False
        if path not in self._written:
            await self._check_owner(path, manifest)
        await self._apply(path, dict(manifest), RENDERING)
        self._written[path] = digest
        return True

    async def create_deployment(self, manifest: Manifest, replicas: int) -> None:
        """Create a Deployment at its wanted size, so that `replicas` belongs to the scaling manager alone.

        Three applies: the scaler creates the whole object (else it would be born with the default size 1), the
        renderer takes every other field, the scaler then lets go of all but `replicas`.
        """
        path = object_path(manifest)
        await self._check_owner(path, manifest)
        sized: Body = {**manifest, "spec": {**manifest["spec"], "replicas": replicas}}
        await self._apply(path, sized, SCALING)
        await self._apply(path, dict(manifest), RENDERING)
        meta = {"name": manifest["metadata"]["name"], "namespace": manifest["metadata"]["namespace"]}
        identity = {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": meta}
        await self._apply(path, {**identity, "spec": {"replicas": replicas}}, SCALING)
        self._written[path] = _digest([manifest, ""])

    async def delete(self, path: str) -> None:
        """Delete an object; its absence is success."""
        self._written.pop(path, None)
        try:
            await self._api.request("DELETE", path, query={"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status != 404:
                raise

    def forget(self, path: str) -> None:
        """Apply again at the next opportunity: somebody changed or deleted the object."""
        self._written.pop(path, None)

    async def _apply(self, path: str, body: Body, manager: str) -> None:
        query = {"fieldManager": manager, "force": "true"}
        await self._api.request("PATCH", path, query=query, body=body, content_type=APPLY)

    async def _check_owner(self, path: str, manifest: Manifest) -> None:
        try:
            existing = await self._api.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return
            raise
        if not _owners(manifest) & _owners(existing):
            raise ForeignObject(manifest)


def _owners(manifest: Manifest) -> set[str]:
    return {reference["uid"] for reference in manifest["metadata"].get("ownerReferences", ())}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

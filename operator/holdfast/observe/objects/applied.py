"""What the manifest that somebody applied says, next to what the API server stored of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from holdfast.api.crd import Definition
from holdfast.api.crd_fields import unstored_fields

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_HELM = "helm"
"""Field manager of Helm 3, which applies manifests as plain updates."""

Object = Mapping[str, Any]


class _Manifest(NamedTuple):
    """One applied manifest: when (RFC 3339, empty if unknown), by whom, and whether it sets the pinned size."""

    time: str
    applier: str
    sets_pin: bool


def applier_without_pin(body: Object) -> str:
    """Return who last applied the object, if it is pinned and no applied manifest sets that size; else an empty string.

    The API server lists no owner of `spec.replicas` after `kubectl scale`, so that the next apply leaves it alone. An
    object that nobody applied, or that does not say who did, has no such manifest: `kubectl create`, a backup.
    """
    if (pinned := _mapping(body.get("spec")).get("replicas")) is None:
        return ""
    meta = _mapping(body.get("metadata"))
    manifests = [*_by_kubectl(meta, pinned), *_by_field_managers(meta)]
    if not manifests or any(each.sets_pin for each in manifests):
        return ""
    return max(manifests, key=lambda each: each.time).applier


def fields_not_stored(body: Object, of: Definition) -> tuple[str, ...]:
    """Return the paths of fields in the spec of the last client-side apply that the stored object lacks.

    Empty for an object without that annotation, such as one of a server-side apply: nothing is known of it.
    """
    manifest = _last_applied(_mapping(body.get("metadata")))
    return () if manifest is None else unstored_fields({"spec": manifest.get("spec")}, {"spec": body.get("spec")}, of)


def _by_kubectl(meta: Object, pinned: object) -> Iterator[_Manifest]:
    """The manifest of the last client-side apply; it may set another size than the pinned one."""
    if (manifest := _last_applied(meta)) is not None:
        yield _Manifest("", "kubectl apply", _mapping(manifest.get("spec")).get("replicas") == pinned)


def _last_applied(meta: Object) -> Object | None:
    """The manifest of the last client-side apply; None without a readable one."""
    try:
        manifest = json.loads(_mapping(meta.get("annotations")).get(LAST_APPLIED) or "null")
    except (TypeError, ValueError, RecursionError):
        return None
    return manifest if isinstance(manifest, Mapping) else None


def _by_field_managers(meta: Object) -> Iterator[_Manifest]:
    """The manifests of server-side appliers and of Helm: a manager whose value was changed owns the field no more."""
    for entry in map(_mapping, meta.get("managedFields") or ()):
        manager, fields = str(entry.get("manager") or ""), _mapping(_mapping(entry.get("fieldsV1")).get("f:spec"))
        applies = entry.get("operation") == "Apply" or manager == _HELM
        if applies and fields and not entry.get("subresource"):
            yield _Manifest(str(entry.get("time") or ""), manager, "f:replicas" in fields)


def _mapping(found: object) -> Object:
    return found if isinstance(found, Mapping) else {}

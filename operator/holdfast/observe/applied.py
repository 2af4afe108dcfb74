"""Whether the manifest that somebody applied sets the pinned size of an LLMService. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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


def _by_kubectl(meta: Object, pinned: object) -> Iterator[_Manifest]:
    """The manifest of the last client-side apply; it may set another size than the pinned one."""
    try:
        manifest = json.loads(_mapping(meta.get("annotations")).get(LAST_APPLIED) or "null")
    except (TypeError, ValueError, RecursionError):
        return
    if isinstance(manifest, Mapping):
        yield _Manifest("", "kubectl apply", _mapping(manifest.get("spec")).get("replicas") == pinned)


def _by_field_managers(meta: Object) -> Iterator[_Manifest]:
    """The manifests of server-side appliers and of Helm: a manager whose value was changed owns the field no more."""
    for entry in map(_mapping, meta.get("managedFields") or ()):
        manager, fields = str(entry.get("manager") or ""), _mapping(_mapping(entry.get("fieldsV1")).get("f:spec"))
        applies = entry.get("operation") == "Apply" or manager == _HELM
        if applies and fields and not entry.get("subresource"):
            yield _Manifest(str(entry.get("time") or ""), manager, "f:replicas" in fields)


def _mapping(found: object) -> Object:
    return found if isinstance(found, Mapping) else {}

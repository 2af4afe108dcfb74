"""Strategic merge of a pod template overlay: maps by key, lists by the key that Kubernetes merges them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# patchMergeKey of Kubernetes' pod types.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
# An item of these has exactly one source: one of the overlay replaces the whole item.
_REPLACED = frozenset({"volumes", "env"})
# Unlike in Kubernetes these add up: the accelerator's own must hold for the pod to be placed at all.
_APPENDED = frozenset({"tolerations"})


def strategic_merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `overlay` over it; null removes a field. Neither is changed."""
    merged = dict(base)
    for field, value in overlay.items():
        if value is None:
            merged.pop(field, None)
        elif isinstance(value, Mapping):
            old = merged.get(field)
            merged[field] = strategic_merge(old if isinstance(old, Mapping) else {}, value)
        elif isinstance(value, list | tuple):
            old = merged.get(field)
            merged[field] = _merged_list(field, old if isinstance(old, list | tuple) else [], value)
        else:
            merged[field] = value
    return merged


def _merged_list(field: str, base: Sequence[Any], overlay: Sequence[Any]) -> list[Any]:
    if field in _APPENDED:
        return [*base, *(item for item in overlay if item not in base)]
    key = _KEYS.get(field)
    if key is None or not all(_has_key(item, key) for item in (*base, *overlay)):
        return list(overlay)
    merged = {item[key]: item for item in base}
    for item in overlay:
        old = {} if field in _REPLACED else merged.get(item[key], {})
        merged[item[key]] = strategic_merge(old, item)
    return list(merged.values())


def _has_key(item: Any, key: str) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get(key), str | int)

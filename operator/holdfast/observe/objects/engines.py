"""Pods and ConfigMaps -> the limits that were sent to engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.rendered.names import ACCELERATOR_LABEL, LIMITS_ANNOTATION, SERVICE_LABEL, limits_name
from holdfast_engine.objectives.rules import Limits, LimitsError, parse_limits

Object = Mapping[str, Any]

_FIELD = f"metadata.annotations['{LIMITS_ANNOTATION}']"


@dataclass(frozen=True, slots=True)
class EnginePod:
    """A pod whose engine reads its limits from the annotation; its limits are None if the annotation is unusable."""

    pod: str
    uid: str
    accelerator: str
    told: Limits | None = None


def engine_from_pod(pod: Object) -> EnginePod | None:
    """Return the engine in a pod; None if it reads no limits or is terminating."""
    meta = pod["metadata"]
    if meta.get("deletionTimestamp") or not any(_reads(source) for source in _downward(pod)):
        return None
    text = (meta.get("annotations") or {}).get(LIMITS_ANNOTATION, "")
    labels = meta.get("labels") or {}
    return EnginePod(meta["name"], str(meta.get("uid", "")), labels.get(ACCELERATOR_LABEL, ""), limits_from(text))


def limits_from_config_map(body: Object) -> tuple[tuple[str, Limits], ...] | None:
    """Return the limits by accelerator from a service's ConfigMap; None for any other ConfigMap."""
    meta = body["metadata"]
    if meta["name"] != limits_name(meta["labels"][SERVICE_LABEL]):
        return None
    found = ((name, limits_from(text)) for name, text in sorted((body.get("data") or {}).items()))
    return tuple((name, limits) for name, limits in found if limits is not None)


def limits_from(text: object) -> Limits | None:
    """Parse limits; None for anything that an engine would ignore."""
    try:
        return parse_limits(str(text))
    except LimitsError:
        return None


def _downward(pod: Object) -> Iterator[Object]:
    for volume in pod.get("spec", {}).get("volumes") or ():
        yield volume.get("downwardAPI") or {}
        for source in (volume.get("projected") or {}).get("sources") or ():
            yield source.get("downwardAPI") or {}


def _reads(source: Object) -> bool:
    return any((item.get("fieldRef") or {}).get("fieldPath") == _FIELD for item in source.get("items") or ())

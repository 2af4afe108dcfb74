"""What a live object tells of our own rendering: enough to see that somebody else changed or deleted it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from holdfast.rendered.names import MANAGED_BY, MANAGER, SERVICE_LABEL, short_hash

RENDERING = "holdfast-rendering"
SCALING = "holdfast-scaling"

_SIZE_ONLY: Mapping[str, Any] = {"f:spec": {"f:replicas": {}}}


class Orphan(NamedTuple):
    """An object of ours without any owner: its LLMService was deleted with `--cascade=orphan`, or somebody took it out.

    `made_at` is the API server's time (RFC 3339); it distinguishes an heir from the service that lost the object.
    """

    service: str
    made_at: str

    def falls_to(self, service: str, born: str) -> bool:
        """Whether it is the estate of an earlier service of that name; `born` is when the present one was made."""
        return self.service == service and "" < self.made_at < born


@dataclass(frozen=True, slots=True)
class Live:
    """One object of a service as a watch or an answer shows it; small, for a service has half a dozen.

    `state` stands for the fields that the rendering manager owns by the API server's own account: a client that
    changes or removes one of them takes it off that list. So status and other people's fields are no change, and no
    value need be compared with the form in which the API server keeps it.
    """

    kind: str
    name: str
    uid: str = ""
    owners: tuple[str, ...] = ()
    state: str = ""
    half_made: bool = False
    """Whether the scaling manager still holds more of a Deployment than its size: its creation was cut short."""
    orphan: Orphan | None = None
    ending: bool = False
    """Deleted, and there until all that it owns has gone."""

    @classmethod
    def of(cls, kind: str, body: Mapping[str, Any]) -> Self:
        """Read an object; any part but its name may be missing."""
        meta = body.get("metadata") or {}
        uid = str(meta.get("uid", ""))
        entries = [entry for entry in meta.get("managedFields") or () if entry.get("operation") == "Apply"]
        half_made = _fields(entries, SCALING) not in ("", _text(_SIZE_ONLY))
        rendered = _fields(entries, RENDERING)
        return cls(
            kind=sys.intern(kind),
            name=str(meta.get("name", "")),
            uid=uid,
            owners=tuple(reference["uid"] for reference in meta.get("ownerReferences") or ()),
            state=short_hash([uid, rendered, half_made]),
            half_made=half_made,
            orphan=_orphan(meta) if rendered else None,
            ending=bool(meta.get("deletionTimestamp")),
        )

    @classmethod
    def absent(cls, kind: str, name: str) -> Self:
        """An object that is watched for and not there."""
        return cls(sys.intern(kind), name)


def is_as_rendered(meta: Mapping[str, Any], *path: str) -> bool:
    """Whether nobody has given a field another value since it was rendered, by the API server's own account.

    True as well where that says nothing of a rendering, as of an object restored from a backup.
    """
    for entry in meta.get("managedFields") or ():
        if (entry.get("manager"), entry.get("operation")) == (RENDERING, "Apply"):
            fields = entry.get("fieldsV1") or {}
            for name in path:
                if (fields := fields.get(f"f:{name}")) is None:
                    return False
    return True


def _orphan(meta: Mapping[str, Any]) -> Orphan | None:
    labels = meta.get("labels") or {}
    if meta.get("ownerReferences") or meta.get("deletionTimestamp") or labels.get(MANAGED_BY) != MANAGER:
        return None
    return Orphan(str(labels.get(SERVICE_LABEL, "")), str(meta.get("creationTimestamp") or ""))


def _fields(entries: list[Mapping[str, Any]], manager: str) -> str:
    # A string, for watch events arrive as read-only mapping views.
    return next((_text(entry.get("fieldsV1")) for entry in entries if entry.get("manager") == manager), "")


def _text(fields: Any) -> str:
    return json.dumps(fields, sort_keys=True, default=dict)

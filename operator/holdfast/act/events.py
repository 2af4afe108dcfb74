"""Events on the LLMService, or the LLMBenchmark: the same reason and message as in status, log and metrics."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from types import MappingProxyType

from holdfast.act.api import ApiError, ApiPort, Body
from holdfast.act.resources import collection_path
from holdfast.api.llmservice import GROUP, KIND, VERSION
from holdfast.domain.service import ServiceKey

DECISION_ANNOTATION = f"{GROUP}/decision"
RECORD_ANNOTATION = f"{GROUP}/decision-record"
_MESSAGE_LIMIT = 1024  # the API server refuses longer ones


async def post_event(api: ApiPort, body: Body) -> None:
    """Post one Event; the caller decides that it is news. An existing Event of this name is the same one."""
    try:
        await api.request("POST", collection_path("v1", "Event", body["metadata"]["namespace"]), body=body)
    except ApiError as error:
        if error.status != 409:
            raise


def event_body(
    key: ServiceKey,
    uid: str,
    *,
    reason: str,
    message: str,
    warning: bool,
    now: float,
    notes: Mapping[str, str] = MappingProxyType({}),
    kind: str = KIND,
    turn: str = "",
) -> Body:
    """Return the Event object; its name is unique per service, reason, message and `turn`, else time.

    `notes` become annotations: the whole decision and its inputs, for `holdfast explain --at`.
    """
    stamp = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.sha256(f"{uid}{reason}{message}{turn or now}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{key.name[:200]}.{digest}",
            "namespace": key.namespace,
            **({"annotations": kept} if (kept := {name: note for name, note in notes.items() if note}) else {}),
        },
        "involvedObject": {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": kind,
            "namespace": key.namespace,
            "name": key.name,
            "uid": uid,
        },
        "reason": reason,
        "message": message[:_MESSAGE_LIMIT],
        "type": "Warning" if warning else "Normal",
        "source": {"component": "holdfast"},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }

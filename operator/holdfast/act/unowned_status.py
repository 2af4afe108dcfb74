"""Foreign values in status fields and conditions that only the operator should write, such as from a restored backup.

An apply removes fields that its own manager omitted, but not if another manager wrote them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.act.api import Body
from holdfast.api.conditions import ConditionType
from holdfast.api.status import LLMServiceStatus

CONDITIONS = "conditions"
_OURS = frozenset(str(field.alias) for field in LLMServiceStatus.model_fields.values()) - {CONDITIONS}
_TYPES = frozenset(map(str, ConditionType))


def leftovers(observed: Mapping[str, Any], written: Mapping[str, Any]) -> tuple[Body, ...]:
    """Return the JSON Patch that removes foreign fields as a whole, with their ownership."""
    fields = (name for name in observed if name in _OURS and _has_more(observed[name], written.get(name)))
    removed = ({"op": "remove", "path": f"/status/{name}"} for name in fields)
    return (*removed, *_conditions(observed.get(CONDITIONS), written.get(CONDITIONS, ())))


def _conditions(observed: Any, written: Any) -> Iterator[Body]:
    """Foreign conditions of our types, the last first, because each removal shifts the later ones."""
    if not isinstance(observed, list):
        return
    kept = {condition["type"] for condition in written}
    for place, condition in reversed(list(enumerate(observed))):
        name = condition.get("type") if isinstance(condition, Mapping) else None
        if name in _TYPES - kept:
            yield {"op": "test", "path": f"/status/{CONDITIONS}/{place}/type", "value": name}
            yield {"op": "remove", "path": f"/status/{CONDITIONS}/{place}"}


def _has_more(observed: Any, written: Any) -> bool:
    """Whether a field or an item exists that we did not write."""
    if isinstance(observed, Mapping) and isinstance(written, Mapping):
        return any(name not in written or _has_more(value, written[name]) for name, value in observed.items())
    if isinstance(observed, list) and isinstance(written, list):
        return len(observed) > len(written)
    return written is None and observed is not None

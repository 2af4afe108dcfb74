"""Status fields that the CRD of the cluster does not have, because the operator was upgraded before the CRDs.

The API server refuses to apply a status with a field that it does not know, so the status goes without.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from holdfast.act.api import Body

_LOG = logging.getLogger(__name__)
_UNDECLARED = re.compile(r"\.(status(?:\.\w+|\[[^\]]*\])+): field not declared in schema")


def undeclared_fields(refusal: str) -> tuple[tuple[str, ...], ...]:
    """Return the paths of the fields that a refusal of the API server names; list items are left out of a path."""
    found = {tuple(re.sub(r"\[[^\]]*\]", "", path).split(".")) for path in _UNDECLARED.findall(refusal)}
    return tuple(sorted(found))


def without_fields(body: Body, fields: Sequence[tuple[str, ...]]) -> Body:
    """Return the object without these fields, and say once which ones they are."""
    for path in fields:
        _tell(".".join(path))
        body = _without(body, path)
    return body


def _without(part: Any, path: Sequence[str]) -> Any:
    if isinstance(part, list | tuple):
        return [_without(item, path) for item in part]
    if not isinstance(part, Mapping) or path[0] not in part:
        return part
    others = {name: value for name, value in part.items() if name != path[0]}
    return others if len(path) == 1 else {**others, path[0]: _without(part[path[0]], path[1:])}


@cache
def _tell(name: str) -> None:
    told = "the CRDs in the cluster are older than the operator, so %s is not written: apply the CRDs of this release"
    _LOG.warning(told, name)

"""Shares of a GPU that a pod asks for next to the GPU itself: of its memory or its cores, as HAMi has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

Object = Mapping[str, Any]

_SHARE = re.compile(
    r"mem(ory)?([-_.]|$)|cores?([-_.]|$)|percent|fraction|ratio|(gpu|cuda).*shar|millicores", re.IGNORECASE
)
_OF_HUNDRED = re.compile(r"cores?$|percent|ratio", re.IGNORECASE)


def gpu_shares(amounts: Object, gpu: str) -> dict[str, str]:
    """The resources among amounts that are a share of the GPU whose resource is `gpu`; 100 % of it is none."""
    named = {name: str(amount) for name, amount in amounts.items() if re.search("/|gpu", name) and name != gpu}
    return {name: amount for name, amount in named.items() if _is_share(name.rpartition("/")[2], amount)}


def annotated_shares(annotations: Object) -> dict[str, str]:
    """The annotations of a pod that ask for a share of a GPU, as those of KAI and Run:ai do."""
    named = {name: str(amount) for name, amount in annotations.items() if "gpu" in name.lower()}
    return {name: amount for name, amount in named.items() if _is_share(name.rpartition("/")[2], amount)}


def pod_shares(containers: Iterable[Object], annotations: Object, gpu: str) -> dict[str, str]:
    """All of these that a pod asks for."""
    found = annotated_shares(annotations)
    for container in containers:
        resources = container.get("resources") or {}
        found |= gpu_shares({**(resources.get("requests") or {}), **(resources.get("limits") or {})}, gpu)
    return found


def _is_share(name: str, amount: str) -> bool:
    whole = (amount == "100" and _OF_HUNDRED.search(name)) or (amount in ("1", "1.0") and "fraction" in name)
    return bool(_SHARE.search(name)) and amount != "0" and not whole

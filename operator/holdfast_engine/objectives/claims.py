"""Which class a request claims, on its way from the API server to the scheduler.

A claim travels in vLLM's `extra_args`, which a client fills as well (`vllm_xargs` of a body). What the API server saw
in a header therefore has a key that no client knows.
"""

from __future__ import annotations

import contextvars
import hashlib
from collections.abc import Iterable
from typing import Any

from holdfast_engine.objectives.rules import SERVICE_CLASS, Claim, Limits, RequestClass, is_class_name

HEADERS = (b"x-slo-class", b"x-gateway-inference-objective")
"""The first one that a request has counts; the second one is what gateways of the Inference Extension set."""
BODY_KEY = "slo_class"
"""The key of a claim in `vllm_xargs`."""

CLAIMED: contextvars.ContextVar[str] = contextvars.ContextVar("holdfast_claimed", default=SERVICE_CLASS)
"""What a header claims for the request that this task works for."""


def header_claim(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The class that the headers of a request name; none where they contradict each other or name nothing possible."""
    found = list(headers)
    for wanted in HEADERS:
        values = {value for name, value in found if name == wanted}
        if values:
            name = values.pop().decode("latin-1")
            return name if not values and is_class_name(name) else SERVICE_CLASS
    return SERVICE_CLASS


def header_key(secret: str) -> str:
    """The key of what a header claims, from a word that only the processes of this pod know; empty without one."""
    return f"{BODY_KEY}_{hashlib.blake2b(secret.encode(), digest_size=16).hexdigest()}" if secret else ""


def pass_on(params: Any, key: str) -> None:
    """Write what a header claims into what vLLM hands to the engine with a request."""
    claimed = CLAIMED.get()
    if claimed and key and params is not None:
        params.extra_args = {**(params.extra_args or {}), key: claimed}


def class_of(request: object, limits: Limits, key: str) -> RequestClass:
    """The class of a request in the engine: a declared one that it may claim, else that of its adapter, else the
    service's own."""
    classes = limits.by_name
    if len(classes) == 1:
        return classes[SERVICE_CLASS]
    return _claimed(request, limits, key) or _of_adapter(request, limits) or classes[SERVICE_CLASS]


def _claimed(request: object, limits: Limits, key: str) -> RequestClass | None:
    if limits.claim is Claim.NONE:
        return None
    found = getattr(getattr(request, "sampling_params", None), "extra_args", None)
    claims = found if isinstance(found, dict) else {}
    name = claims.get(key) if key else None
    if name is None and limits.claim is Claim.BODY:
        name = claims.get(BODY_KEY)
    known = limits.by_name.get(name) if isinstance(name, str) else None
    return None if known is None or known.adapter or known.name == SERVICE_CLASS else known


def _of_adapter(request: object, limits: Limits) -> RequestClass | None:
    """vLLM finds the adapter by the name of the model that the request asks for."""
    name = getattr(getattr(request, "lora_request", None), "lora_name", None)
    known = limits.by_name.get(name) if isinstance(name, str) else None
    return known if known is not None and known.adapter else None

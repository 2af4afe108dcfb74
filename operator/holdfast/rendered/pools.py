"""The pools of a service with `prefill`: replicas decode, and a second pool computes prompts for them.

The prefill pool is rendered as a service of its own, `NAME.prefill`: no LLMService has a dot in its name. So nothing
that selects the replicas of the service selects its pods.
"""

from __future__ import annotations

import json

from holdfast.api.llmservice import Accelerator, LLMService, PoolAccelerator
from holdfast.domain.service import PREFILL, ServiceKey
from holdfast.rendered.names import deployment_name

SIDE_CHANNEL_PORT = 5600
"""Where an engine tells others how they read its KV cache; vLLM's default."""
KV_TRANSFER = json.dumps(
    {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"},
    separators=(",", ":"),
)
"""Of all engines of such a service. Both: replicas also serve whole requests, while no prefill engine is ready."""


def prefill_name(service: str) -> str:
    """What the prefill pool of a service is called."""
    return ServiceKey("", service, PREFILL).label


def prefill_pool(service: LLMService) -> LLMService | None:
    """The prefill pool as a service; a field that `prefill` does not set is the service's. None without a pool."""
    spec = service.spec
    if (own := spec.prefill) is None:
        return None
    engine = {name: given for name in ("args", "env") if (given := getattr(own, name)) is not None}
    update = {
        "accelerators": (*(_whole(each) for each in own.accelerators), *spec.accelerators)[:1],
        "batching": own.batching or spec.batching,
        "engine": spec.engine.model_copy(update=engine),
        "replicas": own.replicas,
        "router": None,
    }
    meta = service.metadata.model_copy(update={"name": prefill_name(service.metadata.name)})
    return service.model_copy(update={"metadata": meta, "spec": spec.model_copy(update=update)})


def _whole(declared: PoolAccelerator) -> Accelerator:
    return Accelerator.model_construct(declared.model_fields_set, **dict(declared))


def prefill_workload(pool: LLMService) -> str:
    """The Deployment of a prefill pool."""
    return deployment_name(pool.metadata.name, pool.spec.accelerators[0].name)


def role_of(service: LLMService) -> str:
    """What the engines of a service, or of its prefill pool, do: `Whole`, `Decode` or `Prefill`."""
    if service.spec.prefill is None:
        return "Whole"
    return "Prefill" if "." in service.metadata.name else "Decode"

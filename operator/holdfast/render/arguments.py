"""The arguments of `vllm serve`, one per list item: they reach the engine without a shell."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.api.engine_flags import flag_name
from holdfast.api.llmservice import Accelerator, LLMServiceSpec
from holdfast.rendered import names
from holdfast.rendered.buckets import custom_histogram_buckets
from holdfast.rendered.context import Objectives
from holdfast.rendered.declared import ADMISSION_FLAG, identity
from holdfast.rendered.model import locate_adapter, locate_model
from holdfast.rendered.names import PORT, literal

MIDDLEWARE = "holdfast_middleware.ReadyAndBalance"
TLS_FOLDER = "/etc/holdfast/tls"
ADAPTERS_FLAG = "--lora-modules"
MASTER_PORT = 29501
"""Where the leader of a group waits for its followers; vLLM's default."""


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """Everything after `vllm`, and what is added to it where the launcher cannot load the plugin after all."""

    arguments: tuple[str, ...]
    without_plugin: tuple[str, ...] = ()
    with_plugin: bool = False


def engine_flags(
    spec: LLMServiceSpec,
    accelerator: Accelerator,
    objectives: Objectives,
    admission_tokens: int | None,
    *,
    with_plugin: bool,
) -> EngineFlags:
    """The flags of an engine; where the user's own arguments set the same flag, theirs is the only one.

    The plugin bounds the queue by what is in it: a constant from the prior would only get in its way.
    """
    own = [*spec.engine.args, *accelerator.args]
    taken = {flag_name(argument) for argument in own if argument.startswith("-")}
    admission = [] if admission_tokens is None else [f"{ADMISSION_FLAG}={admission_tokens}"]
    guard = [f"{names.SCHEDULER_FLAG}={names.SCHEDULER}"] if with_plugin else admission
    rendered = [*identity(spec, accelerator), *_membership(accelerator), *guard, *_operation(spec, objectives)]
    kept = [flag for flag in rendered if flag_name(flag) not in taken]
    model = literal(locate_model(spec.model.uri).argument)
    return EngineFlags(
        arguments=("serve", model, *kept, *_adapters(spec), *_middleware(spec), *own),
        without_plugin=tuple(flag for flag in admission if with_plugin and flag_name(flag) not in taken),
        with_plugin=with_plugin,
    )


def _middleware(spec: LLMServiceSpec) -> Iterator[str]:
    """What answers in the Python front end; the Rust one knows no such flag."""
    if not spec.engine.has_rust_front_end:
        yield f"--middleware={MIDDLEWARE}"


def _adapters(spec: LLMServiceSpec) -> Iterator[str]:
    """The adapters themselves. One flag takes them all: of several such flags the last one counts."""
    if spec.model.lora is not None:
        yield ADAPTERS_FLAG
        for each in spec.model.lora.adapters:
            named = {"name": each.name, "path": locate_adapter(each.uri).argument}
            yield literal(json.dumps(named, separators=(",", ":")))


def _membership(accelerator: Accelerator) -> Iterator[str]:
    """Which part of a group a pod is; LeaderWorkerSet sets both variables in all of its pods."""
    if accelerator.nodes > 1:
        yield "--node-rank=$(LWS_WORKER_INDEX)"
        yield "--master-addr=$(LWS_LEADER_ADDRESS)"
        yield f"--master-port={MASTER_PORT}"
        yield "--distributed-executor-backend=mp"


def _operation(spec: LLMServiceSpec, objectives: Objectives) -> Iterator[str]:
    """How it is served, observed and stopped."""
    yield f"--port={PORT}"
    yield f"--shutdown-timeout={math.ceil(spec.engine.shutdown_timeout_seconds)}"
    yield f"--custom-histogram-buckets={custom_histogram_buckets(objectives)}"
    if spec.engine.tls_secret_ref is not None:
        yield f"--ssl-certfile={TLS_FOLDER}/tls.crt"
        yield f"--ssl-keyfile={TLS_FOLDER}/tls.key"
        yield "--enable-ssl-refresh"

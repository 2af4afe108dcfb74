"""The arguments of `vllm serve`, one per list item: they reach the engine without a shell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.api.engine_flags import flag_name
from holdfast.api.llmservice import Accelerator, LLMServiceSpec
from holdfast.render import plugin
from holdfast.render.buckets import custom_histogram_buckets
from holdfast.render.context import Objectives
from holdfast.render.model import locate_model
from holdfast.render.names import PORT, literal

MIDDLEWARE = "holdfast_middleware.ReadyAndBalance"
TLS_FOLDER = "/etc/holdfast/tls"
ADMISSION_FLAG = "--max-num-queued-tokens"


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
    guard = [f"{plugin.SCHEDULER_FLAG}={plugin.SCHEDULER}"] if with_plugin else admission
    rendered = [*_identity(spec, accelerator), *guard, *_operation(spec, objectives)]
    kept = [flag for flag in rendered if flag_name(flag) not in taken]
    model = literal(locate_model(spec.model.uri).argument)
    return EngineFlags(
        arguments=("serve", model, *kept, *_middleware(spec), *own),
        without_plugin=tuple(flag for flag in admission if with_plugin and flag_name(flag) not in taken),
        with_plugin=with_plugin,
    )


def _middleware(spec: LLMServiceSpec) -> Iterator[str]:
    """What answers in the Python front end; the Rust one knows no such flag."""
    if not spec.engine.has_rust_front_end:
        yield f"--middleware={MIDDLEWARE}"


def capacity_arguments(spec: LLMServiceSpec, accelerator: Accelerator) -> list[str]:
    """The arguments that decide what a replica can carry: with the model and image, its revision."""
    return [locate_model(spec.model.uri).argument, *_identity(spec, accelerator), *spec.engine.args, *accelerator.args]


def _identity(spec: LLMServiceSpec, accelerator: Accelerator) -> list[str]:
    """What is served, and with which limits."""
    model, batching, sharing = spec.model, spec.batching, accelerator.sharing
    values = {
        "served-model-name": model.served_model_name,
        "revision": model.revision,
        "max-model-len": model.max_model_len,
        "dtype": model.dtype,
        "quantization": model.quantization,
        "tensor-parallel-size": _if_several(sharing.tensor),
        "pipeline-parallel-size": _if_several(sharing.pipeline),
        "data-parallel-size": _if_several(sharing.data),
        "max-num-seqs": batching.max_num_seqs,
        "max-num-batched-tokens": batching.max_num_batched_tokens,
    }
    return [f"--{flag}={literal(str(value))}" for flag, value in values.items() if value is not None]


def _if_several(number: int) -> int | None:
    return number if number > 1 else None


def _operation(spec: LLMServiceSpec, objectives: Objectives) -> Iterator[str]:
    """How it is served, observed and stopped."""
    yield f"--port={PORT}"
    yield f"--shutdown-timeout={math.ceil(spec.engine.shutdown_timeout_seconds)}"
    yield f"--custom-histogram-buckets={custom_histogram_buckets(objectives)}"
    if spec.engine.tls_secret_ref is not None:
        yield f"--ssl-certfile={TLS_FOLDER}/tls.crt"
        yield f"--ssl-keyfile={TLS_FOLDER}/tls.key"
        yield "--enable-ssl-refresh"

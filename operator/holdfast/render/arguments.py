"""The arguments of `vllm serve`, one per list item: they reach the engine without a shell."""

from __future__ import annotations

import math
from collections.abc import Iterator

from holdfast.api.engine_flags import flag_name
from holdfast.api.llmservice import Accelerator, LLMServiceSpec
from holdfast.render.buckets import custom_histogram_buckets
from holdfast.render.context import Objectives
from holdfast.render.model import locate_model
from holdfast.render.names import PORT

MIDDLEWARE = "holdfast_middleware.ReadyAndBalance"
TLS_FOLDER = "/etc/holdfast/tls"
ADMISSION_FLAG = "--max-num-queued-tokens"


def engine_arguments(
    spec: LLMServiceSpec, accelerator: Accelerator, objectives: Objectives, admission_tokens: int | None
) -> list[str]:
    """Everything after `vllm`; where the user's own arguments set the same flag, theirs is the only one."""
    own = [*spec.engine.args, *accelerator.args]
    taken = {flag_name(argument) for argument in own if argument.startswith("-")}
    rendered = [*_identity(spec, accelerator), *_operation(spec, objectives, admission_tokens)]
    kept = [flag for flag in rendered if flag_name(flag) not in taken]
    return ["serve", _literal(locate_model(spec.model.uri).argument), *kept, f"--middleware={MIDDLEWARE}", *own]


def capacity_arguments(spec: LLMServiceSpec, accelerator: Accelerator) -> list[str]:
    """The arguments that decide what a replica can carry: with the model and image, its revision."""
    return [locate_model(spec.model.uri).argument, *_identity(spec, accelerator), *spec.engine.args, *accelerator.args]


def _identity(spec: LLMServiceSpec, accelerator: Accelerator) -> list[str]:
    """What is served, and with which limits."""
    model, batching = spec.model, spec.batching
    values = {
        "served-model-name": model.served_model_name,
        "revision": model.revision,
        "max-model-len": model.max_model_len,
        "dtype": model.dtype,
        "quantization": model.quantization,
        "tensor-parallel-size": accelerator.count if accelerator.count > 1 else None,
        "max-num-seqs": batching.max_num_seqs,
        "max-num-batched-tokens": batching.max_num_batched_tokens,
    }
    return [f"--{flag}={_literal(str(value))}" for flag, value in values.items() if value is not None]


def _operation(spec: LLMServiceSpec, objectives: Objectives, admission_tokens: int | None) -> Iterator[str]:
    """How it is served, observed, protected and stopped."""
    yield f"--port={PORT}"
    yield f"--shutdown-timeout={math.ceil(spec.engine.shutdown_timeout_seconds)}"
    if admission_tokens is not None:
        yield f"{ADMISSION_FLAG}={admission_tokens}"
    yield f"--custom-histogram-buckets={custom_histogram_buckets(objectives)}"
    if spec.engine.tls_secret_ref is not None:
        yield f"--ssl-certfile={TLS_FOLDER}/tls.crt"
        yield f"--ssl-keyfile={TLS_FOLDER}/tls.key"
        yield "--enable-ssl-refresh"


def _literal(value: str) -> str:
    """Keep the kubelet from expanding $(NAME), and from taking $$ for $, in a value that is meant as written."""
    return value.replace("$", "$$")

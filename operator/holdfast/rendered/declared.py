"""What a spec itself says of its engines: image, arguments and front end, and the digests that change with them."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.api.engine_flags import flag_value
from holdfast.api.llmbenchmark import LLMBenchmark
from holdfast.api.llmservice import Accelerator, Batching, LLMService, LLMServiceSpec, Model
from holdfast.rendered import names
from holdfast.rendered.model import locate_model
from holdfast.rendered.names import POD_PORT, POD_PORT_NAME, PORT, PORT_NAME, RUST, literal
from holdfast.rendered.pools import KV_TRANSFER, role_of

ADMISSION_FLAG = "--max-num-queued-tokens"


def engine_image(spec: LLMServiceSpec, accelerator: Accelerator) -> str:
    """The image for this accelerator."""
    return accelerator.image or spec.engine.image


def own_front_end(spec: LLMServiceSpec, accelerator: Accelerator) -> str | None:
    """What serves requests in processes of its own, so that the pod's first one answers probes and scrapes.

    None where the first process serves them itself: there its metrics are. vLLM starts as many API servers as engines.
    """
    if spec.engine.has_rust_front_end:
        return RUST
    servers = flag_value([*spec.engine.args, *accelerator.args], "--api-server-count", "-asc")
    return "python" if (servers or str(accelerator.sharing.data)) != "1" else None


def pod_port(spec: LLMServiceSpec, accelerator: Accelerator) -> tuple[str, int]:
    """Name and number of the port on which a pod answers probes and scrapes."""
    return (POD_PORT_NAME, POD_PORT) if own_front_end(spec, accelerator) else (PORT_NAME, PORT)


def capacity_arguments(spec: LLMServiceSpec, accelerator: Accelerator) -> list[str]:
    """The arguments that decide what a replica can carry: with the model and image, its revision."""
    return [locate_model(spec.model.uri).argument, *identity(spec, accelerator), *spec.engine.args, *accelerator.args]


def identity(spec: LLMServiceSpec, accelerator: Accelerator) -> list[str]:
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
        "nnodes": _if_several(accelerator.nodes),
        "max-num-seqs": batching.max_num_seqs,
        "max-num-batched-tokens": batching.max_num_batched_tokens,
        "kv-transfer-config": KV_TRANSFER if spec.prefill else None,
    }
    flags = [f"--{flag}={literal(str(value))}" for flag, value in values.items() if value is not None]
    return [*flags, *_adapter_slots(model)]


def _adapter_slots(model: Model) -> Iterator[str]:
    """The room for adapters, which takes memory of the GPU and time of each step."""
    if (lora := model.lora) is None:
        return
    yield "--enable-lora"
    yield f"--max-loras={lora.loaded}"
    yield f"--max-lora-rank={lora.max_rank}"
    if lora.loaded < len(lora.adapters):
        # Without it vLLM forgets adapters that the GPU has no room for, and reads their files again between two steps.
        yield f"--max-cpu-loras={len(lora.adapters)}"


def _if_several(number: int) -> int | None:
    return number if number > 1 else None


def revision(service: LLMService, accelerator: Accelerator) -> str:
    """Changes with model, image, front end and arguments only: what a replica carries is estimated per revision."""
    image = engine_image(service.spec, accelerator)
    rust = ["rust"] if service.spec.engine.has_rust_front_end else []
    return names.short_hash([image, *capacity_arguments(service.spec, accelerator), *rust])


def inputs(service: LLMService, accelerator: Accelerator) -> str:
    """Changes with what the user owns of a pod: only then may running pods be replaced.

    Defaults are left out, so that a field that a later version adds changes nothing; the image is named, because
    its default moves from version to version.
    """
    spec = service.spec
    # Who chooses the limits within what an engine was started with, and objectives, change while it serves.
    owned = spec.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        include={"model", "engine", "batching", "template"},
        exclude={"batching": {"mode"}, "model": {"lora": {"adapters": {"__all__": {"slo"}}}}},
    )
    candidate = accelerator.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, exclude={"cost_per_hour", "hardware", "max", "spot"}
    )
    queue, role = names.queue_labels(service), [role_of(service)] if spec.prefill else []
    return names.short_hash([owned, candidate, engine_image(spec, accelerator), *([queue] if queue else []), *role])


def engine_inputs(service: LLMService, accelerator: Accelerator) -> str:
    """Changes with what makes an engine but for its limits: where two are alike, so is what a benchmark found of them.

    Bounds, schedules, budget, priority and objectives leave it as it is; limits are stored with a result.
    """
    spec = service.spec.model_copy(update={"batching": Batching()})
    return inputs(service.model_copy(update={"spec": spec}), accelerator)


def run_of(benchmark: LLMBenchmark) -> str:
    """The digest of what is to be run: the same never runs twice in a row.

    Defaults are left out: a field that a later version adds must not load every service again.
    """
    said = benchmark.spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    return names.short_hash(said)

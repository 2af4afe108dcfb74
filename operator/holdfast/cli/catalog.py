"""`holdfast catalog`: models and accelerators whose capacity is estimated from data, and what a name is taken for."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.cli.terminal import printable
from holdfast.enginemodel.catalog import ACCELERATORS, GIB, MODELS, find_accelerator, find_model
from holdfast.enginemodel.shapes import AcceleratorShape, ModelShape
from holdfast.enginemodel.steptable import step_tables
from holdfast.enginemodel.suggestions import like_accelerator, like_model

MODEL_COLUMNS = ("MODEL", "PARAMETERS", "ACTIVE", "WEIGHTS", "GB", "KV-BYTES/TOKEN", "STEP-TABLES")
ACCELERATOR_COLUMNS = ("ACCELERATOR", "MEMORY-GIB", "GB/S", "TFLOPS")

_NOTE = """Fine-tuned and quantized versions of these models are known by their names. MIG profiles are fractions of
these accelerators. For another accelerator, or a shared GPU, set accelerators[].hardware in the LLMService."""


def run(arguments: argparse.Namespace) -> int:
    """Print the catalog, or what the names are taken for."""
    named = [each for each in (arguments.model, arguments.accelerator, arguments.product) if each is not None]
    if arguments.name is not None and named:
        print("holdfast catalog: give NAME, or --model, --accelerator and --product", file=sys.stderr)
        return 2
    if arguments.name is not None:
        _sort_name(arguments)
    elif not named:
        print(json.dumps(listed(), indent=2) if arguments.json else "\n".join(_tables()))
        return 0
    found = looked_up(arguments)
    print(json.dumps(found, indent=2) if arguments.json else "\n".join(_answers(arguments, found)))
    return int(None in found.values())


def _sort_name(arguments: argparse.Namespace) -> None:
    """Take NAME for an accelerator or a model, whichever is known; for both where neither is."""
    is_accelerator = find_accelerator(arguments.name, {}, arguments.resource) is not None
    is_model = find_model(arguments.name, arguments.quantization, arguments.kv_cache_dtype) is not None
    is_path = "/" in arguments.name
    arguments.accelerator = arguments.name if is_accelerator or not (is_model or is_path) else None
    arguments.model = arguments.name if is_model or is_path or not is_accelerator else None


def listed() -> dict[str, list[dict[str, Any]]]:
    """Return every row of the catalog."""
    return {
        "models": [_model(shape) for _, shape in MODELS],
        "accelerators": [_accelerator(shape) for _, shape in ACCELERATORS],
    }


def looked_up(arguments: argparse.Namespace) -> dict[str, dict[str, Any] | None]:
    """Return the rows that the given names lead to; None for a name that is unknown."""
    found: dict[str, dict[str, Any] | None] = {}
    if arguments.model is not None:
        model = find_model(arguments.model, arguments.quantization, arguments.kv_cache_dtype)
        found["model"] = None if model is None else _model(model)
    if arguments.accelerator is not None or arguments.product is not None:
        labels = {} if arguments.product is None else {"nvidia.com/gpu.product": arguments.product}
        accelerator = find_accelerator(arguments.accelerator or "", labels, arguments.resource)
        found["accelerator"] = None if accelerator is None else _accelerator(accelerator)
    return found


def _model(shape: ModelShape) -> dict[str, Any]:
    tables = sorted((system, gpus) for table, system, gpus in step_tables() if table == shape.table)
    return {
        "name": shape.name,
        "parameters": shape.parameters,
        "activeParameters": shape.active_parameters,
        "weights": shape.weights,
        "weightBytes": shape.parameters * shape.weight_bytes,
        "kvBytesPerToken": shape.kv_bytes_per_token,
        "stepTables": [{"accelerator": system, "gpus": gpus} for system, gpus in tables],
    }


def _accelerator(shape: AcceleratorShape) -> dict[str, Any]:
    return {
        "name": shape.system,
        "memoryGiB": round(shape.memory_bytes / GIB, 1),
        "bandwidthGBs": round(shape.bandwidth / 1e9, 1),
        "teraflops": round(shape.peak_flops / 1e12, 1),
    }


def _tables() -> Iterator[str]:
    rows = listed()
    yield from _aligned([MODEL_COLUMNS, *(_model_row(each) for each in rows["models"])])
    yield ""
    yield from _aligned([ACCELERATOR_COLUMNS, *(_accelerator_row(each) for each in rows["accelerators"])])
    yield f"\n{_NOTE}"


def _model_row(model: dict[str, Any]) -> tuple[str, ...]:
    billions = (_billions(model[key]) for key in ("parameters", "activeParameters"))
    size = f"{model['weightBytes'] / 1e9:.0f}"
    systems = ",".join(dict.fromkeys(each["accelerator"] for each in model["stepTables"])) or "-"
    return model["name"], *billions, model["weights"], size, f"{model['kvBytesPerToken']:.0f}", systems


def _billions(count: float) -> str:
    return f"{count / 1e9:.0f}B" if count >= 1e11 else f"{count / 1e9:.3g}B"


def _accelerator_row(accelerator: dict[str, Any]) -> tuple[str, ...]:
    figures = (f"{accelerator[key]:g}" for key in ("memoryGiB", "bandwidthGBs", "teraflops"))
    return accelerator["name"], *figures


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _answers(arguments: argparse.Namespace, found: dict[str, dict[str, Any] | None]) -> Iterator[str]:
    """One line per name: what is true, why, and what to do."""
    if "model" in found:
        yield f"model {printable(arguments.model)}: {_model_line(found['model'], arguments.model)}"
    if "accelerator" in found:
        name = printable(arguments.product or arguments.accelerator)
        yield f"accelerator {name}: {_accelerator_line(found['accelerator'], name)}"


def _sentence(question: str) -> str:
    return question[:1].upper() + question[1:]


def _model_line(model: dict[str, Any] | None, name: str) -> str:
    if model is None:
        return (
            "unknown, because its family and size, or the bits of its weights, are not in the catalog. "
            f"{_sentence(like_model(name))}The first estimate of its capacity is a guess; run an LLMBenchmark to "
            "replace it."
        )
    row, parameters, _, weights, size, kv, systems = _model_row(model)
    tables = "no step table" if systems == "-" else f"step tables for {systems}"
    return f"{row}, {parameters} parameters, {weights} weights of {size} GB, {kv} bytes of KV cache per token, {tables}"


def _accelerator_line(accelerator: dict[str, Any] | None, name: str) -> str:
    if accelerator is None:
        return (
            "unknown, because it is not in the catalog, or it is a shared GPU. "
            f"{_sentence(like_accelerator(name))}The first estimate of its capacity is a guess; set "
            "accelerators[].hardware to replace it."
        )
    row, memory, bandwidth, teraflops = _accelerator_row(accelerator)
    return f"{row}, {memory} GiB, {bandwidth} GB/s, {teraflops} TFLOPS"

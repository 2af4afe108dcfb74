"""What the name of a model says: family and size, billions of parameters, and the format of the weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from holdfast.enginemodel.modelrows import MODELS
from holdfast.enginemodel.shapes import ModelShape

_ANY_NAME = re.compile(
    r"|snapshots|main|latest|current|models?|weights|merged|final|hf|checkpoint-[0-9]+|v?[0-9]+(\.[0-9]+)*|[0-9a-f]{40}"
)
"""Folders that say nothing about the model in them, such as the revision in a cache of Hugging Face."""

_OTHER_SHAPE = re.compile(
    r"(?<![a-z0-9])(mini|tiny|nano|micro|lite|flash|air|vl|vision|llava|omni|audio|multimodal|ocr|embed(ding)?s?"
    r"|rerank(er)?|guard|draft|eagle[0-9]?|medusa|speculator|mtp|pruned|minitron|width|depth|random|dummy|lora|adapter"
    r"|qlora|moe|next|linear|upscaled|expanded|reap|[0-9]+-?layers?)(?![a-z])"
)
"""Words for a model of another shape than the family and size that its name states."""

_BILLIONS = re.compile(r"(?:^|[^0-9a-z.])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?=[^a-z0-9]|$)")
_ACTIVE_BILLIONS = re.compile(r"[^0-9a-z]a(\d+(?:\.\d+)?)b(?:[^a-z0-9]|$)")
_MOST_BILLIONS = 100_000.0  # far above any model: a longer number in a name is no size
_SAME_SIZE = 0.1
"""Names round: 8B has 8.03 billion parameters, 24B has 23.6."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Format of the weights; `bits` per quantized weight with its scales, None where the name does not say how many."""

    name: str
    bits: float | None
    with_embeddings: bool = False


UNQUANTIZED = Quantization("bf16", 16.0)
AS_PUBLISHED = Quantization("as published", None)
"""A method such as compressed-tensors: it reads what the checkpoint has, which only the name of the model can tell."""

_SOMEHOW = Quantization("quantized", None)
_AS_COMPUTED = {"float32": Quantization("float32", 32.0, with_embeddings=True)}
"""Weights that are not quantized, by the format that the engine computes in; bf16 for all others."""
_ANY_BITS = ("gptq", "bitsandbytes")
"""Methods that leave the number of bits to the checkpoint."""

_FORMATS: tuple[tuple[str, Quantization], ...] = (
    # The first that matches wins: bits of the weights before bits of activations (w4a8-fp8), numbers before methods
    # (gptq-int8). Scales of 16 bits for groups of 128 weights, with zero points, add a quarter of a bit.
    (r"nvfp4|fp4|w4a4|petit-nvfp4", Quantization("nvfp4", 4.5)),
    (r"mxfp4", Quantization("mxfp4", 4.25)),
    (r"w4a(8|16|fp8)|u?int4|4-?bits?|nf4", Quantization("int4", 4.25)),
    (r"u?int3|3-?bits?|w3a16", Quantization("int3", 3.25)),
    (r"u?int2|2-?bits?|w2a16", Quantization("int2", 2.25)),
    (r"mxfp8|fp8|float8|modelopt", Quantization("fp8", 8.0)),
    (r"w8a8|w8a16|u?int8|8-?bits?", Quantization("int8", 8.0)),
    (r"awq|gptq|bnb|bitsandbytes", Quantization("int4", 4.25)),
    (
        r"gguf|exl[23]|quark|torchao|auto-?round|hqq|aqlm|compressed-tensors|quantized|quant",
        _SOMEHOW,
    ),
    (r"bf16|bfloat16|fp16|float16", UNQUANTIZED),
)
_GGUF = re.compile(r"(?<![a-z0-9])i?q([2-8])(?=-|$)")
_GGUF_MORE_BITS = 0.6
"""Q4_K_M has 4.8 bits per weight, Q6_K 6.6, Q8_0 8.5: scales, and some tensors with more bits."""


def model_name(uri: str) -> str:
    """The part of a Hugging Face id, path, pvc:// or oci:// uri that names the model, in lower case; "" without one."""
    scheme, _, path = uri.lower().rpartition("://")
    parts = path.split("@")[0].split("/")[1 if scheme == "pvc" else 0 :]
    named = [part for part in parts if not _ANY_NAME.fullmatch(part)]
    last = named[-1].rsplit("--", 1)[-1] if named else ""
    return re.sub(r"[_:\s]+", "-", last.removesuffix(".gguf"))


@lru_cache(maxsize=4096)
def known_row(name: str) -> ModelShape | None:
    """The row of exactly that family and size, without a look at quantization; None if there is none."""
    for pattern, shape in MODELS:
        found = _whole_words(pattern).search(name)
        if found and _is_same_shape(f"{name[: found.start()]}-{name[found.end() :]}", shape):
            return shape
    return None


def stated_billions(name: str) -> tuple[float, float] | None:
    """Billions of parameters that a name states, all and active (`8B`, `8x7B`, `30B-A3B`); None without any."""
    sizes = _sizes(name)
    if not sizes or not 0.0 < sizes[0] <= _MOST_BILLIONS:
        return None
    active = _ACTIVE_BILLIONS.search(name)
    is_part = active is not None and 0.0 < float(active[1]) <= sizes[0]
    return sizes[0], float(active[1]) if active and is_part else sizes[0]


def quantization_of(
    name: str, method: str | None = None, reported: str | None = None, dtype: str | None = None
) -> Quantization | None:
    """What the engine reports about the weights, else the name, else vLLM's --quantization; None if none says anything.

    The name tells how many bits the weights have where the method that is reported leaves it open.
    """
    if reported == "none":
        return _AS_COMPUTED.get(dtype or "", UNQUANTIZED)
    run = _method(reported)
    if run not in (None, AS_PUBLISHED) and not str(reported).startswith(_ANY_BITS):
        return run
    return _named(name, reported or method)


def _named(name: str, method: str | None) -> Quantization | None:
    said, asked = _format(name), _method(method)
    says_bits = said is not None and said.bits is not None and said is not UNQUANTIZED
    if asked is None or says_bits or (asked is AS_PUBLISHED and said is _SOMEHOW):
        return said
    return asked


def _method(method: str | None) -> Quantization | None:
    """The format that vLLM's --quantization names; an unknown method means that the weights run as published."""
    if not method:
        return None
    said = _format(re.sub(r"[_\s]+", "-", method.lower()))
    return AS_PUBLISHED if said is None or said.bits is None else said


@lru_cache(maxsize=4096)
def _format(text: str) -> Quantization | None:
    gguf = _GGUF.search(text)
    if gguf:
        return Quantization(f"q{gguf[1]}", float(gguf[1]) + _GGUF_MORE_BITS, with_embeddings=True)
    return next((format_ for pattern, format_ in _FORMATS if _whole_words(pattern).search(text)), None)


def _is_same_shape(rest: str, shape: ModelShape) -> bool:
    """Whether what a name says besides family and size leaves the shape as it is."""
    known = (shape.parameters / 1e9, shape.active_parameters / 1e9)
    return not _OTHER_SHAPE.search(rest) and all(
        any(abs(size - billions) <= _SAME_SIZE * billions for billions in known) for size in _sizes(rest)
    )


def _sizes(text: str) -> list[float]:
    return [float(each) * float(experts or 1) for experts, each in _BILLIONS.findall(text)]


@lru_cache(maxsize=512)
def _whole_words(pattern: str) -> re.Pattern[str]:
    """The pattern between characters that are no part of a word or number."""
    pattern = pattern.replace(r"\.", "[.-]")
    return re.compile(rf"(?<![a-z0-9])(?<![0-9]\.)(?:{pattern})(?![a-z0-9]|\.[0-9])")

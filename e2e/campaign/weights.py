"""Weights for the tiny model: those that vLLM makes up itself are others for each division of a layer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

Shape = tuple[int, ...]
_SHARPER = 3.0


def write_weights(folder: Path, seed: int) -> None:
    """Write model.safetensors next to the config.json of a Llama: normal, and sharp where tokens look at each other.

    Otherwise each token would follow from the last one alone, and an answer say little of its prompt.
    """
    random = np.random.default_rng(seed)
    shapes = dict(_shapes(json.loads((folder / "config.json").read_text())))
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            drawn = random.standard_normal(shape) * _scale(name, shape) if len(shape) > 1 else np.ones(shape)
            file.write(drawn.astype("<f4").tobytes())


def _scale(name: str, shape: Shape) -> float:
    """The standard deviation: sums of a row are of one size, those of attention larger."""
    return (_SHARPER if "self_attn" in name else 1.0) / math.sqrt(shape[-1])


def _shapes(config: dict[str, int]) -> Iterator[tuple[str, Shape]]:
    hidden, inner, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", (words, hidden)
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for name, rows in {"q": hidden, "k": keys, "v": keys, "o": hidden}.items():
            yield f"{layer}.self_attn.{name}_proj.weight", (rows, hidden)
        yield f"{layer}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.up_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (words, hidden)

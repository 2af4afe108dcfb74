"""LoRA adapters of the tiny model, written by hand: a folder with a file of weights in the form of safetensors."""

from __future__ import annotations

import array
import json
import random
from collections.abc import Iterator
from pathlib import Path

RANK = 8
_LAYERS, _HIDDEN, _KV = 8, 128, 64
"""Of `e2e.vllm.model`; 2 heads of keys and values with 32 numbers each."""
# The weights that vLLM makes up are tiny: only large factors change which tokens are the likeliest.
_SCALE = 30.0


def write_adapter(folder: Path, seed: int) -> Path:
    """Write an adapter whose answers differ from those of the model, and of other seeds."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["o_proj", "v_proj"]}
    more = {"task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny", "bias": "none", "lora_dropout": 0.0}
    (folder / "adapter_config.json").write_text(json.dumps({**config, **more}))
    (folder / "adapter_model.safetensors").write_bytes(_tensors(random.Random(seed)))
    return folder


def _tensors(draw: random.Random) -> bytes:
    """Length of the header, the header as JSON, numbers (https://huggingface.co/docs/safetensors)."""
    header, numbers = {}, bytearray()
    for name, shape in _shapes():
        values = array.array("f", (draw.gauss(0.0, _SCALE) for _ in range(shape[0] * shape[1]))).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(numbers), len(numbers) + len(values)]}
        numbers += values
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + numbers


def _shapes() -> Iterator[tuple[str, list[int]]]:
    for layer in range(_LAYERS):
        for module, outputs in (("o_proj", _HIDDEN), ("v_proj", _KV)):
            place = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            yield f"{place}.lora_A.weight", [RANK, _HIDDEN]
            yield f"{place}.lora_B.weight", [outputs, RANK]

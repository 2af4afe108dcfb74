"""A model folder without weights: a Llama of eight narrow layers and a tokenizer of a thousand words.

vLLM makes up the weights (`--load-format=dummy`); its work per step is that of a real, very small model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 1024
CONTEXT_TOKENS = 1024
_SPECIAL = ("<s>", "</s>", "<unk>")

# head_dim is hidden_size / num_attention_heads: vLLM's CPU kernels want a multiple of 32.
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT_TOKENS,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": CONTEXT_TOKENS,
    "bos_token": _SPECIAL[0],
    "eos_token": _SPECIAL[1],
    "unk_token": _SPECIAL[2],
}


def write_model(folder: Path) -> None:
    """Write the files that vLLM reads from a model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"config.json": _CONFIG, "tokenizer_config.json": _TOKENIZER_CONFIG, "tokenizer.json": _tokenizer()}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))


def _tokenizer() -> dict[str, Any]:
    """One token per word: text made from any tokens becomes the same tokens again, so that lengths are exact."""
    words = [*_SPECIAL, *(f"w{number}" for number in range(len(_SPECIAL), VOCABULARY))]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": word, **special} for number, word in enumerate(_SPECIAL)],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": _SPECIAL[2],
        },
    }

"""What a step of a model moves and computes, derived from the fields of its config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

USUAL_CONTEXT = 4096.0
"""Tokens of a sequence for which the cache of sliding windows is counted."""

Fields = Mapping[str, Any]

_TWO_MATRICES = frozenset(
    {"bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "mpt", "nemotron", "opt", "phi", "starcoder2"}
)
"""Model types whose feed-forward layers have no gate: two matrices instead of three."""
_NO_CACHE = ("linear", "mamba", "conv", "recurrent")
_WINDOWED = ("sliding", "chunked")
_SCALE_BITS = 0.25
"""Scales and zero points of groups of 128 weights, in bits per weight."""
_PAIR = re.compile(r"([a-z_]+)=([0-9]{1,18}(?:\.[0-9]{1,6})?)")
_MOST = {"layers": 10_000, "hidden": 1_000_000, "heads": 100_000, "kv_heads": 100_000, "head_dim": 100_000}
_MOST_PARAMETERS = 10**15


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """A model as its configuration describes it.

    `active_parameters` are the ones a token is multiplied with. `kv_latent` is the number of elements that MLA caches
    per token and layer, 0 for other models; `kv_layers` how many layers' worth of cache a token takes. `weight_bits`
    are those of a quantized weight with its scales, 0 where the configuration states no number.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    parameters: int
    active_parameters: int
    embedding_parameters: int
    kv_latent: int
    kv_layers: float
    weight_bits: float = 0.0

    def __str__(self) -> str:
        return " ".join(f"{name}={number:.16g}" for name, number in asdict(self).items())

    @classmethod
    def read(cls, text: str) -> ModelFigures | None:
        """The figures that a text states; None if it is another text, or they make no sense."""
        found = _pairs(text) or {}
        if found.keys() != {each.name for each in fields(cls)}:
            return None
        exact = {each.name: float(found[each.name]) for each in fields(cls)}
        numbers: list[Any] = [int(exact[each.name]) if each.type == "int" else exact[each.name] for each in fields(cls)]
        figures = cls(*numbers)
        return figures if figures._makes_sense() else None

    def _makes_sense(self) -> bool:
        sizes = all(0 < getattr(self, name) <= most for name, most in _MOST.items())
        counts = 0 <= self.embedding_parameters < self.parameters <= _MOST_PARAMETERS
        active = 0 < self.active_parameters <= self.parameters
        cache = 0.0 < self.kv_layers <= self.layers and self.kv_latent <= _MOST["hidden"]
        return sizes and counts and active and cache and (self.weight_bits == 0 or 1.0 <= self.weight_bits <= 32.0)


def _pairs(text: str) -> dict[str, str] | None:
    matches = [_PAIR.fullmatch(word) for word in text.split(" ")]
    return {match[1]: match[2] for match in matches if match} if all(matches) else None


def model_figures(config: Fields) -> ModelFigures:
    """Derive the figures from the fields of a config.json; models with images nest the fields of the text part.

    Biases, norms and encoders of images are left out: at most some percent. Raises KeyError if a field is missing.
    """
    config = {**config, **(config.get("text_config") or {})}
    layers, hidden, heads = config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    attention, head_dim = _latent_attention(config) or _attention(config, kv_heads)
    embeddings = config["vocab_size"] * hidden
    copies = 1 if config.get("tie_word_embeddings", str(config.get("model_type")).startswith("gemma")) else 2
    forward, idle = _feed_forward(config)
    parameters = int(copies * embeddings + layers * attention + forward)
    # Of a mixture, authors count what a token is multiplied with: it is looked up in the input embeddings.
    inactive = idle + (copies - 1) * embeddings if idle else 0
    latent = (config.get("kv_lora_rank") or 0) and config["kv_lora_rank"] + config["qk_rope_head_dim"]
    active, kv_layers = int(parameters - inactive), max(1.0, round(_kv_layers(config), 3))
    sizes = (parameters, active, copies * embeddings, latent, kv_layers, _weight_bits(config))
    return ModelFigures(layers, hidden, heads, kv_heads, round(head_dim), *sizes)


def _attention(config: Fields, kv_heads: int) -> tuple[int, float]:
    """Parameters per layer, and the size of a head."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    return 2 * hidden * size * (heads + kv_heads), size


def _latent_attention(config: Fields) -> tuple[int, float] | None:
    """The same of MLA (DeepSeek), with the mean size of keys and values; None for other models."""
    latent = config.get("kv_lora_rank")
    if not latent:
        return None
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config.get("q_lora_rank")
    plain, rotary, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    queries = (hidden + heads * (plain + rotary)) * rank if rank else hidden * heads * (plain + rotary)
    keys = hidden * (latent + rotary) + latent * heads * (plain + value)
    return queries + keys + heads * value * hidden, (plain + rotary + value) / 2


def _feed_forward(config: Fields) -> tuple[int, int]:
    """Parameters of all feed-forward layers, and those of experts that a token does not use."""
    matrices = 2 if config.get("model_type") in _TWO_MATRICES else 3
    per_width = matrices * config["hidden_size"]
    dense = _first(config, "intermediate_size_mlp", "intermediate_size") or 4 * config["hidden_size"]
    experts = _first(config, "n_routed_experts", "num_local_experts", "num_experts")
    if not experts:
        return config["num_hidden_layers"] * per_width * dense, 0
    used = _first(config, "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk")
    width = _first(config, "moe_intermediate_size", "intermediate_size")
    sparse = _sparse_layers(config)
    each = per_width * (experts * width + _shared_width(config, width)) + config["hidden_size"] * experts
    of_dense = (config["num_hidden_layers"] - sparse) * per_width * dense
    return sparse * each + of_dense, sparse * per_width * width * (experts - used)


def _shared_width(config: Fields, width: int) -> int:
    """Width of the experts that every token uses."""
    if str(config.get("model_type")).startswith("llama4"):
        return width
    stated = config.get("shared_expert_intermediate_size")
    return stated or width * _first(config, "n_shared_experts", "num_shared_experts")


def _sparse_layers(config: Fields) -> int:
    """Layers with experts."""
    layers = config["num_hidden_layers"]
    if isinstance(kinds := config.get("mlp_layer_types"), list | tuple):
        return sum(kind == "sparse" for kind in kinds)
    if isinstance(listed := config.get("moe_layers"), list | tuple):
        return len(listed)
    every = _first(config, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
    dense = set(config.get("mlp_only_layers") or ()) | set(range(_first(config, "first_k_dense_replace")))
    return sum((layer + 1) % every == 0 and layer not in dense for layer in range(layers))


def _kv_layers(config: Fields) -> float:
    """Layers that cache all tokens; one with a sliding window counts for its share of a usual context."""
    layers, window = config["num_hidden_layers"], _first(config, "sliding_window", "attention_chunk_size")
    share = min(1.0, window / USUAL_CONTEXT) if window and config.get("use_sliding_window") is not False else 1.0
    if full := (config.get("linear_attn_config") or {}).get("full_attn_layers"):
        return float(len(full))
    kinds = config.get("layer_types")
    if kinds is None:
        every = _first(config, "sliding_window_pattern")
        kinds = ["full" if every and (layer + 1) % every == 0 else "sliding" for layer in range(layers)]
    return sum(0.0 if kind.startswith(_NO_CACHE) else share if kind.startswith(_WINDOWED) else 1.0 for kind in kinds)


def _weight_bits(config: Fields) -> float:
    said = config.get("quantization_config") or {}
    groups = [group.get("weights") or {} for group in (said.get("config_groups") or {}).values()]
    of_groups = max((_first(group, "num_bits") for group in groups), default=0)
    bits = _first(said, "bits", "w_bit") or of_groups or (4 if said.get("load_in_4bit") else 0)
    return float(bits + _SCALE_BITS if 0 < bits < 8 else bits)


def _first(config: Fields, *names: str) -> int:
    """The first of these numbers that the configuration states; 0 without any."""
    return next((found for name in names if isinstance(found := config.get(name), int) and found), 0)

"""What the plugin reads off vLLM's configuration, whatever version that is of."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast_engine.stats.engine_info import INFO_LABELS, engine_info


class Dtype:
    """As torch writes its own."""

    def __str__(self) -> str:
        return "torch.bfloat16"


def mode(decodes: str, mixed: str) -> Any:
    named = {"decode_mode": decodes, "mixed_mode": mixed}
    return SimpleNamespace(**{kind: lambda name=name: SimpleNamespace(name=name) for kind, name in named.items()})


TEXT = {"hidden_size": 5120, "intermediate_size": 17_920, "num_hidden_layers": 40, "vocab_size": 100_352}
TEXT |= {"num_attention_heads": 40, "num_key_value_heads": 10, "tie_word_embeddings": False}
PHI_4 = {"hf_text_config": SimpleNamespace(to_dict=lambda: TEXT), "hf_config": SimpleNamespace()}
SHAPE = (
    "layers=40 hidden=5120 heads=40 kv_heads=10 head_dim=128 parameters=14659092480 active_parameters=14659092480 "
    "embedding_parameters=1027604480 kv_latent=0 kv_layers=40 weight_bits=0"
)


def config(**changes: Any) -> Any:
    """vLLM's VllmConfig, as far as it is read."""
    parts: dict[str, Any] = {
        "model_config": SimpleNamespace(max_model_len=32_768, dtype=Dtype(), quantization=None, **PHI_4),
        "parallel_config": SimpleNamespace(tensor_parallel_size=4, pipeline_parallel_size=2, _api_process_count=1),
        "compilation_config": SimpleNamespace(cudagraph_mode=mode("FULL", "PIECEWISE"), max_cudagraph_capture_size=512),
        "speculative_config": None,
    }
    return SimpleNamespace(**parts | changes)


WHOLE = {
    "max_model_len": "32768",
    "dtype": "bfloat16",
    "quantization": "none",
    "tensor_parallel": "4",
    "pipeline_parallel": "2",
    "graph_edge": "512",
    "speculative_tokens": "0",
    "model_shape": SHAPE,
    "front_end": "Python",
}


def test_the_facts_are_those_of_the_configuration() -> None:
    assert engine_info(config()) == WHOLE
    bits = {"hf_config": SimpleNamespace(quantization_config={"quant_method": "gptq", "bits": 8})}
    quantized = SimpleNamespace(max_model_len=4096, dtype="float16", quantization="gptq", **PHI_4 | bits)
    drafting = SimpleNamespace(num_speculative_tokens=3)
    assert engine_info(config(model_config=quantized, speculative_config=drafting)) == WHOLE | {
        "max_model_len": "4096",
        "dtype": "float16",
        "quantization": "gptq",
        "speculative_tokens": "3",
        "model_shape": SHAPE.replace("weight_bits=0", "weight_bits=8"),
    }


def test_the_front_end_is_python_in_so_many_processes_or_rust(monkeypatch: pytest.MonkeyPatch) -> None:
    several = SimpleNamespace(tensor_parallel_size=4, pipeline_parallel_size=2, _api_process_count=3)
    assert engine_info(config(parallel_config=several))["front_end"] == "Python, 3 processes"
    for value, said in (("1", "Rust"), ("0", "Python"), ("", "Python")):
        monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", value)
        assert engine_info(config())["front_end"] == said


@pytest.mark.parametrize(
    ("graphs", "edge", "said"),
    [(mode("NONE", "NONE"), 512, "0"), (mode("FULL", "NONE"), None, ""), (None, 256, "256"), (7, 256, "")],
)
def test_without_graphs_the_edge_is_zero_and_unknown_where_vllm_does_not_say(graphs: Any, edge: Any, said: str) -> None:
    compilation = SimpleNamespace(cudagraph_mode=graphs, max_cudagraph_capture_size=edge)
    assert engine_info(config(compilation_config=compilation)) == WHOLE | {"graph_edge": said}


@pytest.mark.parametrize("broken", [None, object, lambda: 5])
def test_a_version_without_these_fields_says_nothing_and_fails_nowhere(broken: Callable[[], Any] | None) -> None:
    part = broken and broken()
    names = ("model_config", "parallel_config", "compilation_config")
    unknown = dict.fromkeys(INFO_LABELS, "")
    assert engine_info(part) == unknown
    found = engine_info(config(**dict.fromkeys(names, part)))
    assert found == unknown | {"speculative_tokens": "0"}


def test_a_fact_whose_reading_fails_is_logged_and_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        max_model_len = 4096
        quantization = "fp8"
        hf_text_config, hf_config = PHI_4["hf_text_config"], PHI_4["hf_config"]

        @property
        def dtype(self) -> str:
            raise RuntimeError("not yet")

    assert engine_info(config(model_config=Broken())) == WHOLE | {
        "max_model_len": "4096",
        "quantization": "fp8",
        "dtype": "",
    }
    assert [each.message for each in caplog.records] == ["holdfast: no dtype in engine_info: not yet"]

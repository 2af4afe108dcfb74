"""Environment variables of vLLM that would take away what Holdfast relies on."""

from collections.abc import Mapping
from typing import Any

from holdfast.api.rules import Rule

RUST_FRONTEND = "VLLM_USE_RUST_FRONTEND"
_DATA_PARALLEL = "VLLM_DP_"


def _python_server(variable: Mapping[str, Any]) -> bool:
    return variable.get("name") != RUST_FRONTEND or variable.get("value") == "0"


def _one_pod(variable: Mapping[str, Any]) -> bool:
    return not str(variable.get("name")).startswith(_DATA_PARALLEL)


def environment_rules(subject: str = "self") -> tuple[Rule, ...]:
    """The rules of one variable, which CEL calls `subject`. The launcher checks variables that come from elsewhere."""
    return (
        Rule(
            f"{subject}.name != '{RUST_FRONTEND}' || (has({subject}.value) && {subject}.value == '0')",
            f"{RUST_FRONTEND} replaces vLLM's Python server without a word to the operator:"
            " remove it, and set engine.frontEnd: Rust",
            _python_server,
        ),
        Rule(
            f"!{subject}.name.startsWith('{_DATA_PARALLEL}')",
            f"{_DATA_PARALLEL}* divides an engine among pods, and a replica is one pod: remove it,"
            " and set accelerators[].parallelism.data",
            _one_pod,
        ),
    )

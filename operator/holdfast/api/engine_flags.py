"""vLLM flags that the operator renders itself, and the field that sets each."""

from typing import Annotated

from pydantic import Field, StringConstraints

from holdfast.api.rules import Checked, Rule

OWNED_FLAGS = {
    "--model": "model.uri",
    "--served-model-name": "model.servedName",
    "--tensor-parallel-size": "accelerators[].count",
    "-tp": "accelerators[].count",
    "--max-num-seqs": "batching.maxNumSeqs",
    "--max-num-batched-tokens": "batching.maxNumBatchedTokens",
    "--shutdown-timeout": "engine.shutdownTimeout",
    "--api-key": "engine.apiKeySecretRef",
    "--port": "nothing: it is always 8000",
    "--custom-histogram-buckets": "nothing: it follows slo",
}


def flag_name(argument: str) -> str:
    """The flag of one argument: `--max_num_seqs=8` is `--max-num-seqs`; vLLM takes both spellings."""
    return argument.split("=")[0].replace("_", "-")


_FLAGS = ", ".join(f"'{flag}'" for flag in OWNED_FLAGS)
_ELSEWHERE = "; ".join(f"{flag}: {field}" for flag, field in OWNED_FLAGS.items())
_NO_OWNED_FLAG = Rule(
    f"self.all(a, !(a.split('=')[0].replace('_', '-') in [{_FLAGS}]))",
    f"args must not repeat a flag that a field sets; use that field instead ({_ELSEWHERE})",
    lambda arguments: not any(flag_name(argument) in OWNED_FLAGS for argument in arguments),
)

EngineArguments = Annotated[
    tuple[Annotated[str, StringConstraints(max_length=1024)], ...], Field(max_length=64), Checked(_NO_OWNED_FLAG)
]

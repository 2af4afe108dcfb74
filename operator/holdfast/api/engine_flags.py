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
    "--ssl-certfile": "engine.tlsSecretRef",
    "--ssl-keyfile": "engine.tlsSecretRef",
    "--port": "nothing: it is always 8000",
    "--custom-histogram-buckets": "nothing: it follows slo",
}
# One field for all accelerators: the arguments of one of them may say otherwise for it.
MODEL_FLAGS = {
    "--revision": "model.revision",
    "--max-model-len": "model.maxModelLen",
    "--dtype": "model.dtype",
    "--quantization": "model.quantization",
    "-q": "model.quantization",
}


def flag_name(argument: str) -> str:
    """The flag of one argument: `--max_num_seqs=8` is `--max-num-seqs`; vLLM takes both spellings."""
    return argument.split("=")[0].replace("_", "-")


def _none_of(owned: dict[str, str]) -> Rule:
    """The rule that arguments repeat none of these flags."""
    flags = ", ".join(f"'{flag}'" for flag in owned)
    elsewhere = "; ".join(f"{flag}: {field}" for flag, field in owned.items())
    return Rule(
        f"self.all(a, !(a.split('=')[0].replace('_', '-') in [{flags}]))",
        f"args must not repeat a flag that a field sets; use that field instead ({elsewhere})",
        lambda arguments: not any(flag_name(argument) in owned for argument in arguments),
    )


_Arguments = Annotated[tuple[Annotated[str, StringConstraints(max_length=1024)], ...], Field(max_length=64)]
EngineArguments = Annotated[_Arguments, Checked(_none_of(OWNED_FLAGS | MODEL_FLAGS))]
AcceleratorArguments = Annotated[_Arguments, Checked(_none_of(OWNED_FLAGS))]

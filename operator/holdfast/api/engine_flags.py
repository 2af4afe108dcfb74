"""vLLM flags that the operator renders itself, and the field that sets each."""

from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import Annotated

from pydantic import Field, StringConstraints

from holdfast.api.rules import Checked, Rule

_TENSOR = "accelerators[].count or accelerators[].parallelism.tensor"
_PIPELINE, _DATA = "accelerators[].parallelism.pipeline", "accelerators[].parallelism.data"
OWNED_FLAGS = {
    "--model": "model.uri",
    "--served-model-name": "model.servedName",
    "--tensor-parallel-size": _TENSOR,
    "-tp": _TENSOR,
    "--pipeline-parallel-size": _PIPELINE,
    "-pp": _PIPELINE,
    "--data-parallel-size": _DATA,
    "-dp": _DATA,
    "--max-num-seqs": "batching.maxNumSeqs",
    "--max-num-batched-tokens": "batching.maxNumBatchedTokens",
    "--shutdown-timeout": "engine.shutdownTimeout",
    "--api-key": "engine.apiKeySecretRef",
    "--ssl-certfile": "engine.tlsSecretRef",
    "--ssl-keyfile": "engine.tlsSecretRef",
    "--port": "nothing: it is always 8000",
    "--custom-histogram-buckets": "nothing: it follows slo",
    "--disable-log-stats": "nothing: Holdfast reads the metrics that it turns off",
    "--headless": "nothing: engines serve requests",
    "--grpc": "nothing: engines serve HTTP",
    "--uds": "nothing: engines serve on port 8000",
}
# One field for all accelerators: the arguments of one of them may say otherwise for it.
MODEL_FLAGS = {
    "--revision": "model.revision",
    "--max-model-len": "model.maxModelLen",
    "--dtype": "model.dtype",
    "--quantization": "model.quantization",
    "-q": "model.quantization",
}
SEVERAL_PODS = (
    "--nnodes",
    "-n",
    "--node-rank",
    "-r",
    "--data-parallel-size-local",
    "-dpl",
    "--data-parallel-rank",
    "-dpn",
    "--data-parallel-start-rank",
    "-dpr",
    "--data-parallel-hybrid-lb",
    "-dph",
    "--data-parallel-external-lb",
    "-dpe",
    "--data-parallel-multi-port-external-lb",
    "-dpm",
)
"""Flags of vLLM that make an engine one part of several, each with a server or a node of its own."""
HALVES = ("kv_producer", "kv_consumer", "ec_producer", "ec_consumer")
"""Roles in --kv-transfer-config and --ec-transfer-config that leave a part of each request to another engine."""
_KINDS_OF_MODEL = ("--runner", "--convert", "--task")
NO_TEXT = ("pooling", "draft", "embed", "embedding", "classify", "score", "reward", "transcription")
"""Their values with which vLLM generates no text. Older releases have --task."""
GENERATES = "--runner=generate"
"""What an argument says of a model that generates text against what its name says."""


def flag_name(argument: str) -> str:
    """The flag of one argument: `--max_num_seqs=8` is `--max-num-seqs`; vLLM takes both spellings."""
    return argument.split("=")[0].replace("_", "-")


def half_of(arguments: Iterable[str]) -> str | None:
    """The role that makes an engine one half of a pair, however the arguments spell it; None for a whole engine."""
    return next((role for argument in arguments for role in HALVES if role in argument), None)


def _owned(owned: dict[str, str]) -> Rule:
    elsewhere = "; ".join(f"{flag}: {field}" for flag, field in owned.items())
    return _none_of(owned, f"args must not repeat a flag that a field sets; use that field instead ({elsewhere})")


def _none_of(flags: Collection[str], message: str) -> Rule:
    """The rule that arguments have none of these flags, nor in short: vLLM takes any beginning that is one flag's."""
    short = "".join(f" || n.startsWith('{flag}')" for flag in flags if len(flag) == 2)
    return Rule(
        f"self.all(a, [{_CEL_NAME}].all(n, !({_cel_is([flag for flag in flags if len(flag) > 2])}{short})))",
        message,
        lambda arguments: not any(is_flag(flag_name(each), flag) for each in arguments for flag in flags),
    )


_CEL_NAME = "a.split('=')[0].replace('_', '-')"


def _cel_is(words: Iterable[str]) -> str:
    """CEL for `is_flag` of a name n and any of these words."""
    listed = ", ".join(f"'{word}'" for word in words)
    return f"[{listed}].exists(f, f == n || (n.size() > 1 && n != '--' && f.startsWith(n)))"


_ONE_POD = _none_of(
    SEVERAL_PODS,
    "args must not divide an engine among several pods, which accelerators[].nodes does: remove"
    f" {', '.join(SEVERAL_PODS)}",
)
_WHOLE_ENGINE = Rule(
    # Without a list in the loop: the API server estimates its cost beyond what it allows.
    "!self.exists(a, " + " || ".join(f"a.contains('{role}')" for role in HALVES) + ")",
    "args must not make an engine one half of an engine, because neither half sees ttft and tpot of a request:"
    f" remove {', '.join(HALVES)} (kv_both is a whole engine)",
    lambda arguments: half_of(arguments) is None,
)
_GENERATE_TEXT = Rule(
    f"!self.exists(a, [{_CEL_NAME}].exists(n, {_cel_is(_KINDS_OF_MODEL)}))"
    f" || !self.exists(a, {list(NO_TEXT)}.exists(v, a == v || a.endsWith('=' + v)))",
    "args must not make an engine that generates no text, because ttft and tpot say nothing of embeddings, scores or"
    f" transcripts: remove {', '.join(_KINDS_OF_MODEL)}, and serve other models without Holdfast",
    lambda arguments: (
        not any(is_flag(flag_name(each), flag) for each in arguments for flag in _KINDS_OF_MODEL)
        or not any(each.rpartition("=")[2] in NO_TEXT for each in arguments)
    ),
)


def is_flag(name: str, flag: str) -> bool:
    """Whether argparse takes a name for a flag: a letter may have its value right behind it, words may be cut short."""
    if len(flag) == 2:
        return name.startswith(flag)
    return name == flag or (len(name) > 1 and name != "--" and flag.startswith(name))


def flag_value(arguments: Sequence[str], *flags: str) -> str | None:
    """What arguments give for the first of these flags or its other spellings; the last one counts, as in argparse."""
    found = None
    for argument, following in zip_longest(arguments, arguments[1:]):
        flag = next((flag for flag in flags if is_flag(flag_name(argument), flag)), None)
        if flag is not None:
            found = _value_in(argument, flag) or following
    return found


def _value_in(argument: str, flag: str) -> str:
    """The value within an argument, `-q=awq` or `-qawq`; empty where the next one is the value."""
    name, _, value = argument.partition("=")
    return value or (name[2:] if len(flag) == 2 else "")


_Arguments = Annotated[tuple[Annotated[str, StringConstraints(max_length=1024)], ...], Field(max_length=64)]
EngineArguments = Annotated[
    _Arguments, Checked(_owned(OWNED_FLAGS | MODEL_FLAGS), _ONE_POD, _WHOLE_ENGINE, _GENERATE_TEXT)
]
AcceleratorArguments = Annotated[_Arguments, Checked(_owned(OWNED_FLAGS), _ONE_POD, _WHOLE_ENGINE, _GENERATE_TEXT)]

"""vLLM flags that the operator renders itself, and the field that sets each."""

from collections.abc import Sequence
from itertools import zip_longest
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
    "--disable-log-stats": "nothing: Holdfast reads the metrics that it turns off",
    "--headless": "nothing: engines serve requests",
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


def flag_name(argument: str) -> str:
    """The flag of one argument: `--max_num_seqs=8` is `--max-num-seqs`; vLLM takes both spellings."""
    return argument.split("=")[0].replace("_", "-")


def _none_of(owned: dict[str, str]) -> Rule:
    """The rule that arguments repeat none of these flags, nor in short: vLLM takes any beginning that is one flag's."""
    elsewhere = "; ".join(f"{flag}: {field}" for flag, field in owned.items())
    words, letters = ([flag for flag in owned if (len(flag) > 2) is is_word] for is_word in (True, False))
    flags = ", ".join(f"'{flag}'" for flag in words)
    means = f"[{flags}].exists(f, f == n || (n.size() > 1 && n != '--' && f.startsWith(n)))"
    short = "".join(f" || n.startsWith('{letter}')" for letter in letters)
    return Rule(
        f"self.all(a, [a.split('=')[0].replace('_', '-')].all(n, !({means}{short})))",
        f"args must not repeat a flag that a field sets; use that field instead ({elsewhere})",
        lambda arguments: not any(is_flag(flag_name(each), flag) for each in arguments for flag in owned),
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
EngineArguments = Annotated[_Arguments, Checked(_none_of(OWNED_FLAGS | MODEL_FLAGS))]
AcceleratorArguments = Annotated[_Arguments, Checked(_none_of(OWNED_FLAGS))]

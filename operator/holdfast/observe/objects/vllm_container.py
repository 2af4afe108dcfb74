"""How somebody else's pod template starts vLLM: which container does, with which arguments, model and GPUs.

Pure. What cannot be read is None or left as it stands: capacity then starts from a more careful guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from holdfast.api.engine_flags import flag_name, flag_value, is_flag
from holdfast.observe.objects.mapping import extended_resources
from holdfast.observe.objects.shell_words import COMMAND_ENDS, script_words
from holdfast.rendered.gpu_shares import gpu_shares, pod_shares
from holdfast.rendered.names import CONTAINER, PORT

Object = Mapping[str, Any]

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_API_SERVER = "vllm.entrypoints."
_CLI = re.compile(r"vllm\.entrypoints\.cli\.main|(.*/)?vllm(/entrypoints/cli/main\.py)?")
_IMAGE = re.compile(r"(?:^|[-_.])vllm(?:$|[-_.])")
_OTHER_PROGRAM = re.compile(r"router|proxy|exporter|bench|gateway|controller|operator")
_ENDS = re.compile(r"[;&|<>()]+")  # what ends a command in a shell
_KUBERNETES_VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)")
_GPU_RESOURCE = re.compile(r"gpu|mig-|gaudi|neuron|tpu|npu|accelerator|xpu|i915|xe$")
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30}  # as vLLM has them
_MOST = 1e9
_SWITCH = re.compile(r"--?(no|enable|disable|enforce|trust|async|allow|return|skip|use|calculate|headless)\b")
"""Flags that take no value."""
_SEVERAL_VALUES = ("--served-model-name", "--lora-modules", "--middleware")


@dataclass(frozen=True, slots=True)
class VllmContainer:
    """One container that runs `vllm serve`: the arguments behind it, and what they and its limits say.

    `gpus` is the number of `resource` in its limits, 0 where it asks for none, as with DRA. Of `tensor`, `pipeline`
    and `data`, each is at least 1. `engines` is how many engines its script starts next to each other,
    `shares` is what it asks for of each GPU.
    """

    name: str
    image: str
    arguments: tuple[str, ...]
    model: str | None
    resource: str | None
    gpus: int
    engines: int = 1
    shares: tuple[tuple[str, str], ...] = ()

    def value(self, *flags: str) -> str | None:
        """What the arguments give for the first of these flags, None where none is there or it cannot be read."""
        return _readable(flag_value(self.arguments, *flags))

    def number(self, *flags: str) -> int | None:
        """A whole number of at least 1 that a flag gives, also as `8k` or `8K`; None for anything else."""
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kKmMgG]?)", self.value(*flags) or "")
        number = float(found[1]) * _UNITS.get(found[2], 1.0) if found else 0.0
        return int(number) if 1.0 <= number <= _MOST else None

    @property
    def sharing(self) -> tuple[int, int, int]:
        """GPUs that compute each layer together, pipeline stages, and engines next to each other."""
        tensor = self.number("--tensor-parallel-size", "-tp")
        pipeline = self.number("--pipeline-parallel-size", "-pp")
        data = self.number("--data-parallel-size", "-dp")
        return tensor or 1, pipeline or 1, data or 1


def vllm_containers(template: Object) -> tuple[VllmContainer, ...]:
    """Return the containers of a pod template that run vLLM, in its order; init containers do not count."""
    containers = (template.get("spec") or {}).get("containers") or ()
    found = ((container, _starts(container)) for container in containers)
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return tuple(_read(container, starts, annotations) for container, starts in found if starts)


def engine_url(pod: Object) -> str:
    """Return where the API server in a pod listens; empty while it has no address, or where that is its node's."""
    ip, spec = str((pod.get("status") or {}).get("podIP") or ""), pod.get("spec") or {}
    if not ip or spec.get("hostNetwork"):
        return ""
    started = [engine.arguments for engine in vllm_containers(pod)]
    started += [each.get("args") or () for each in spec.get("containers") or () if each.get("name") == CONTAINER]
    arguments = started[0] if started else ()
    port = flag_value(arguments, "--port") or ""
    scheme = "http" if flag_value(arguments, "--ssl-certfile") is None else "https"
    return f"{scheme}://{f'[{ip}]' if ':' in ip else ip}:{port if port.isdecimal() else PORT}"


def _read(container: Object, starts: Sequence[_Start], annotations: Object) -> VllmContainer:
    resource, gpus = _gpus(container)
    next_to_each_other = sum(2 if start.repeats else 1 for start in starts if start.in_background)
    return VllmContainer(
        name=str(container.get("name", "")),
        image=str(container.get("image", "")),
        arguments=tuple(starts[0].arguments),
        model=_model(starts[0].arguments),
        resource=resource,
        gpus=gpus,
        shares=tuple(sorted(pod_shares([container], annotations, resource or "").items())),
        engines=max(1, next_to_each_other + (not all(start.in_background for start in starts))),
    )


@dataclass(frozen=True, slots=True)
class _Start:
    """One start of `vllm serve` in the words of a container; `repeats` within a loop of its script."""

    arguments: tuple[str, ...]
    in_background: bool = False
    repeats: bool = False


def _model(arguments: Sequence[str]) -> str | None:
    """The model by its flag or as the first argument; where neither is there, the name that clients use."""
    given = next(_positional(arguments), None) or flag_value(arguments, "--model")
    return _readable(given or flag_value(arguments, "--served-model-name"))


def _positional(arguments: Sequence[str]) -> Iterator[str]:
    """Arguments that are no flags, nor values of flags."""
    takes_values = 0
    for argument in arguments:
        if argument.startswith("-"):
            name = flag_name(argument)
            several = any(is_flag(name, flag) for flag in _SEVERAL_VALUES)
            takes_values = 0 if "=" in argument or _SWITCH.match(name) else len(arguments) if several else 1
        elif takes_values:
            takes_values -= 1
        else:
            yield argument


def _readable(word: str | None) -> str | None:
    """None for a word with a piece of shell in it."""
    return None if word is None or re.search(r"[$`]", word) else word


def _gpus(container: Object) -> tuple[str | None, int]:
    """The resource of its GPUs and their number; network cards and the like are no GPUs."""
    resources = container.get("resources") or {}
    amounts = extended_resources({**(resources.get("requests") or {}), **(resources.get("limits") or {})})
    found = {name: amount for name, amount in sorted(amounts.items()) if amount and _GPU_RESOURCE.search(name)}
    whole = {name: amount for name, amount in found.items() if not gpu_shares({name: amount}, gpu="")}
    return next(iter((whole or found).items()), (None, 0))


def _starts(container: Object) -> list[_Start]:
    """Where a container starts `vllm serve`, in the order of its words; empty where it runs something else."""
    words = _words(container)
    found = [_start(words, at) for at in map(partial(_arguments_at, words), range(len(words))) if at is not None]
    if found:
        return found
    if container.get("command") or not _is_vllm(str(container.get("image", ""))):
        return []
    return [_Start(tuple(words[1:] if words[:1] == ["serve"] else words))]


def _arguments_at(words: Sequence[str], at: int) -> int | None:
    """Where the arguments begin of an engine that this word starts; None where it starts none."""
    word = words[at]
    if _CLI.fullmatch(word):
        return at + 2 if words[at + 1 : at + 2] == ["serve"] else None
    if word.startswith(_API_SERVER) or (word.endswith("/api_server.py") and "vllm" in word):
        return at + 1
    return None


def _start(words: Sequence[str], at: int) -> _Start:
    end = next((end for end in range(at, len(words)) if COMMAND_ENDS.fullmatch(words[end])), len(words))
    in_background = words[end : end + 1] == ["&"]
    is_loop = words[:at].count("do") > words[:at].count("done")
    return _Start(tuple(_until_end(words[at:end])), in_background, is_loop)


def _until_end(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if _ENDS.fullmatch(word):
            return
        yield word


def _is_vllm(image: str) -> bool:
    """Whether the last part of an image's name says that vLLM is what it starts."""
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0].lower()
    return bool(_IMAGE.search(name)) and not _OTHER_PROGRAM.search(name)


def _words(container: Object) -> list[str]:
    """Command and arguments word by word, also those of a script that a shell is given."""
    variables = _variables(container)
    known = {name: value for name, value in variables.items() if value is not None}
    given = [
        _expanded(str(word), known) for word in (*(container.get("command") or ()), *(container.get("args") or ()))
    ]
    shell = next((at for at, word in enumerate(given) if PurePosixPath(word).name in _SHELLS), len(given))
    at = next((at for at in range(shell, len(given) - 1) if re.fullmatch("-[a-z]*c", given[at])), None)
    if at is None:
        return given
    if any(each.get("configMapRef") for each in container.get("envFrom") or ()):  # may set any variable
        variables = {**dict.fromkeys(re.findall(r"\$\{?(\w+)", given[at + 1])), **variables}
    return list(script_words(given[at + 1], variables))


def _variables(container: Object) -> dict[str, str | None]:
    """The variables of a container; None where the value lies elsewhere."""
    return {
        str(each["name"]): None if each.get("valueFrom") else str(each.get("value") or "")
        for each in container.get("env") or ()
        if each.get("name")
    }


def _expanded(word: str, known: Mapping[str, str]) -> str:
    """A word as the kubelet passes it on; variables that come from elsewhere stay as they stand."""
    return _KUBERNETES_VARIABLE.sub(lambda found: "$" if found[0] == "$$" else known.get(found[1], found[0]), word)

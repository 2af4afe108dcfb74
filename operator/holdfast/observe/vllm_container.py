"""How somebody else's pod template starts vLLM: which container does, with which arguments, model and GPUs.

Pure. What cannot be read is None or left as it stands: capacity then starts from a more careful guess.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from holdfast.api.engine_flags import flag_value
from holdfast.observe.mapping import extended_resources

Object = Mapping[str, Any]

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_API_SERVER = "vllm.entrypoints."
_IMAGE = re.compile(r"(?:^|[-_.])vllm(?:$|[-_.])")
_OTHER_PROGRAM = re.compile(r"router|proxy|exporter|bench|gateway|controller|operator")
_ENDS = re.compile(r"[;&|<>()]+")  # what ends a command in a shell
_KUBERNETES_VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)")
_SHELL_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_GPU_RESOURCE = re.compile(r"gpu|mig-|gaudi|neuron|tpu|npu|accelerator|xpu|i915|xe$")
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30}  # as vLLM has them
_MOST = 1e9


@dataclass(frozen=True, slots=True)
class VllmContainer:
    """One container that runs `vllm serve`: the arguments behind it, and what they and its limits say.

    `gpus` is the number of `resource` in its limits, 0 where it asks for none, as with DRA. Of `tensor`, `pipeline`
    and `data`, each is at least 1.
    """

    name: str
    image: str
    arguments: tuple[str, ...]
    model: str | None
    resource: str | None
    gpus: int

    def value(self, *flags: str) -> str | None:
        """What the arguments give for the first of these flags, None where none is there."""
        return flag_value(self.arguments, *flags)

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
    found = ((container, _arguments(container)) for container in containers)
    return tuple(_read(container, arguments) for container, arguments in found if arguments is not None)


def _read(container: Object, arguments: Sequence[str]) -> VllmContainer:
    resource, gpus = _gpus(container)
    return VllmContainer(
        name=str(container.get("name", "")),
        image=str(container.get("image", "")),
        arguments=tuple(arguments),
        model=_model(arguments),
        resource=resource,
        gpus=gpus,
    )


def _model(arguments: Sequence[str]) -> str | None:
    """The model by its flag or as the first argument; where neither is there, the name that clients use."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0]
    return flag_value(arguments, "--model") or flag_value(arguments, "--served-model-name")


def _gpus(container: Object) -> tuple[str | None, int]:
    """The resource of its GPUs and their number; network cards and the like are no GPUs."""
    resources = container.get("resources") or {}
    amounts = extended_resources({**(resources.get("requests") or {}), **(resources.get("limits") or {})})
    found = {name: amount for name, amount in sorted(amounts.items()) if amount and _GPU_RESOURCE.search(name)}
    return next(iter(found.items()), (None, 0))


def _arguments(container: Object) -> list[str] | None:
    """The arguments of `vllm serve` in a container; None where it runs something else."""
    words = _words(container)
    for at, word in enumerate(words):
        if PurePosixPath(word).name == "vllm" and words[at + 1 : at + 2] == ["serve"]:
            return list(_until_end(words[at + 2 :]))
        if word.startswith(_API_SERVER) or (word.endswith("/api_server.py") and "vllm" in word):
            return list(_until_end(words[at + 1 :]))
    if container.get("command") or not _is_vllm(str(container.get("image", ""))):
        return None
    return words[1:] if words[:1] == ["serve"] else words


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
    known = {
        str(each["name"]): str(each["value"])
        for each in container.get("env") or ()
        if each.get("name") and each.get("value") is not None
    }
    given = [
        _expanded(str(word), known) for word in (*(container.get("command") or ()), *(container.get("args") or ()))
    ]
    if not given or PurePosixPath(given[0]).name not in _SHELLS:
        return given
    at = next((at for at, word in enumerate(given) if re.fullmatch("-[a-z]*c", word)), None)
    return given if at is None or at + 1 == len(given) else _of_script(given[at + 1], known)


def _expanded(word: str, known: Mapping[str, str]) -> str:
    """A word as the kubelet passes it on; variables that come from elsewhere stay as they stand."""
    return _KUBERNETES_VARIABLE.sub(lambda found: "$" if found[0] == "$$" else known.get(found[1], found[0]), word)


def _of_script(script: str, known: Mapping[str, str]) -> list[str]:
    """The words of a shell script, with what ends a command as a word of its own."""
    text = script.replace("\\\r\n", " ").replace("\\\n", " ")
    text = _SHELL_VARIABLE.sub(lambda found: known.get(found[1] or found[2], found[0]), text)
    lines = (_of_line(line) for line in text.splitlines())
    return [word for words in lines for word in (*words, ";")]


def _of_line(line: str) -> list[str]:
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    try:
        return list(reader)
    except ValueError:  # a quotation that goes on in the next line
        return line.split()

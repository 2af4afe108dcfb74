"""Which options of a benchmark go together, and whether their files are there: told before anything is sent."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from holdfast.tools.bench import loads, trials
from holdfast.tools.bench.load_generator import Api, PromptKind
from holdfast.twin.inputs import BadInput

LOADS = ("rate", "steps", "trace", "concurrency", "latency", "throughput")
GENERATED = tuple(name for name in LOADS if name != "trace")

_GOES_WITH = {
    "cv": (1.0, ("rate", "steps")),
    "ramp": (False, ("steps",)),
    "speed": (1.0, ("trace",)),
    "trace_start": (0.0, ("trace",)),
    "prompt_tokens": (None, GENERATED),
    "output_tokens": (None, GENERATED),
    "length_cv": (0.0, GENERATED),
    "lengths": (None, GENERATED),
    "duration": (None, ("rate", "steps", "trace", "concurrency")),
}
"""What options are by default, and the loads that heed them: with another load they are refused, not passed over."""


def check(arguments: argparse.Namespace) -> None:
    """Options that exclude or need each other; BadInput names the remedy."""
    kind = _kind(arguments)
    check_folders(arguments, "json", "plot", "records", "summary")
    if kind == "source":
        _check_goes_with(arguments, "from")
        return
    if arguments.url is None:
        raise BadInput("--url is missing: give the address of the endpoint")
    _check_goes_with(arguments, "sweep" if arguments.sweep else kind)
    _check_cuts(arguments, kind)
    if arguments.requests is not None and arguments.duration is not None:
        raise BadInput("--requests and --duration: give one of them")
    check_lengths(arguments)
    if arguments.api is Api.CHAT and arguments.prompts is PromptKind.IDS:
        raise BadInput("--prompts ids cannot be combined with --api chat: give --api completions")


def check_lengths(arguments: argparse.Namespace) -> None:
    """BadInput where lengths are to be read and to be drawn."""
    if arguments.lengths is not None and (arguments.prompt_tokens or arguments.output_tokens or arguments.length_cv):
        raise BadInput("--lengths: omit --prompt-tokens, --output-tokens and --length-cv")


def check_files(arguments: argparse.Namespace, *names: str) -> None:
    """BadInput where one of these options names no file that can be read."""
    for name in names:
        path = getattr(arguments, name)
        if path is not None and (not os.access(path, os.R_OK) or path.is_dir()):
            raise BadInput(f"--{name} {path}: the file does not exist or cannot be read: check the path")


def _check_goes_with(arguments: argparse.Namespace, given: str) -> None:
    kind = "rate" if given == "sweep" else given
    for name, (default, kinds) in _GOES_WITH.items():
        if getattr(arguments, name) != default and kind not in kinds:
            flag, needed = name.replace("_", "-"), ", ".join(f"--{each}" for each in kinds)
            raise BadInput(f"--{flag} cannot be combined with --{given}: omit it, it is used with {needed}")


def _check_cuts(arguments: argparse.Namespace, kind: str) -> None:
    """Before an hour of load of which nothing would be counted."""
    cut = (arguments.warm_up or 0.0) + (arguments.cool_down or 0.0)
    seconds = arguments.duration or (trials.SECONDS if arguments.sweep else loads.DURATION_SECONDS)
    if kind in ("rate", "steps", "concurrency") and arguments.requests is None and cut >= seconds:
        raise BadInput(f"--warm-up and --cool-down exclude all of {seconds:g} s: lower them or raise --duration")


def check_folders(arguments: argparse.Namespace, *names: str) -> None:
    """BadInput where no file of one of these options could be written: told before anything is measured."""
    for name in names:
        given = getattr(arguments, name)
        for path in given if isinstance(given, list) else [given]:
            if path in (None, "-"):
                continue
            if Path(path).is_dir():
                raise BadInput(f"--{name} {path}: is a folder: give a file")
            if not Path(path).absolute().parent.is_dir():
                raise BadInput(f"--{name} {path}: the folder does not exist: create it first")


def _kind(arguments: argparse.Namespace) -> str:
    """Which of the loads is asked for."""
    chosen = [name for name in (*LOADS, "source") if getattr(arguments, name)]
    if arguments.sweep:
        _check_sweep(arguments, chosen)
        return "rate"
    if len(chosen) != 1:
        every = ", ".join(f"--{name}" for name in LOADS)
        told = " and ".join("--from" if name == "source" else f"--{name}" for name in chosen)
        raise BadInput(f"{told or 'no load'}: give one of {every}, --sweep, --from")
    return chosen[0]


def _check_sweep(arguments: argparse.Namespace, chosen: list[str]) -> None:
    if chosen not in ([], ["rate"]):
        raise BadInput("--sweep sets the rates itself: give only --rate as the first rate, or no load")
    if arguments.threshold:
        raise BadInput(
            "--threshold cannot be combined with --sweep, which looks for a rate: give --slo and --objective"
        )
    for name in ("requests", "records"):
        if getattr(arguments, name) is not None:
            raise BadInput(f"--{name} cannot be combined with --sweep")
    if arguments.generator != "holdfast":
        raise BadInput("--sweep ends trials early, which --generator vllm cannot do: omit it")

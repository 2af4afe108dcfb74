"""Which options of a benchmark go together, and whether their files exist: checked before anything is sent."""

from __future__ import annotations

import argparse

from holdfast.tools.bench.load.load_generator import Api, PromptKind
from holdfast.tools.bench.runs import loads, options, trials
from holdfast.tools.reports.files import check_folders
from holdfast.twin.scenarios.inputs import BadInput

LOADS = ("rate", "steps", "trace", "concurrency", "latency", "throughput", "compare_batching")
LEAST_BATCH = LEAST_OVERLAID = 2
MOST_PREFIX_TOKENS = 10_000_000
"""Of all sessions: they are kept while requests are sent."""
_MEASURED = ("records", "summary", "threshold", "warm_up", "cool_down", "cost_per_hour")
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
    _check_classes(arguments)
    if kind == "source":
        _check_goes_with(arguments, "from")
        return
    if arguments.url is None:
        raise BadInput("--url is missing: give the address of the endpoint")
    _check_goes_with(arguments, "sweep" if arguments.sweep else kind)
    _check_cuts(arguments, kind)
    if kind == "compare_batching":
        _check_comparison(arguments)
    if arguments.requests is not None and arguments.duration is not None:
        raise BadInput("--requests and --duration: give one of them")
    check_lengths(arguments)
    if arguments.api is Api.CHAT and arguments.prompts is PromptKind.IDS:
        raise BadInput("--prompts ids cannot be combined with --api chat: give --api completions")
    if arguments.sessions:
        _check_sessions(arguments)


def _check_sessions(arguments: argparse.Namespace) -> None:
    """BadInput where the generator knows none, or all prompts of one would be the same: nothing but the prefix."""
    if arguments.generator != "holdfast":
        raise BadInput("--sessions cannot be combined with --generator vllm, which makes its own prompts: omit one")
    prefix = arguments.prefix_tokens or options.PREFIX_TOKENS
    if arguments.sessions * prefix > MOST_PREFIX_TOKENS:
        raise BadInput(f"--sessions x --prefix-tokens: at most {MOST_PREFIX_TOKENS:,} tokens in all: lower one of them")
    prompt = None if arguments.lengths or arguments.length_cv or arguments.trace else loads.means(arguments)[0]
    if prompt is not None and prompt <= prefix:
        raise BadInput(
            f"--prefix-tokens {prefix}: prompts have {prompt} tokens, so a session's would all be the same:"
            " raise --prompt-tokens above it"
        )


def check_overlay(arguments: argparse.Namespace) -> None:
    """BadInput where something is to be sent or measured, too, or where fewer than two endpoints are given."""
    sending = [name for name in (*LOADS, "sweep", "source", "url", "classes", *_MEASURED) if getattr(arguments, name)]
    if sending:
        raise BadInput(
            f"{_flag(sending[0])} cannot be combined with --overlay, which shows what was measured before: omit it"
        )
    if len(arguments.overlay) < LEAST_OVERLAID:
        raise BadInput("--overlay: give two files or more, such as --overlay l40s.json h100.json:2")
    check_folders(arguments, "json", "plot")


def check_lengths(arguments: argparse.Namespace) -> None:
    """BadInput where lengths are to be read and to be drawn."""
    if arguments.lengths is not None and (arguments.prompt_tokens or arguments.output_tokens or arguments.length_cv):
        raise BadInput("--lengths: omit --prompt-tokens, --output-tokens and --length-cv")


def _check_goes_with(arguments: argparse.Namespace, given: str) -> None:
    kind = "rate" if given == "sweep" else given
    for name, (default, kinds) in _GOES_WITH.items():
        if getattr(arguments, name) != default and kind not in kinds:
            needed = ", ".join(map(_flag, kinds))
            raise BadInput(f"{_flag(name)} cannot be combined with {_flag(given)}: omit it, it is used with {needed}")


def _flag(name: str) -> str:
    return {"source": "--from", "classes": "--class"}.get(name, f"--{name.replace('_', '-')}")


def _check_classes(arguments: argparse.Namespace) -> None:
    """BadInput where a class is given twice, or more requests than there are."""
    names, total = [each.name for each in arguments.classes], sum(each.share for each in arguments.classes)
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise BadInput(f"--class {twice}: given twice: omit one")
    if total > 1.0 + 1e-9:
        raise BadInput(f"--class: the shares sum to {100 * total:g} %: lower them to 100 % or less")
    if names and arguments.generator != "holdfast":
        raise BadInput("--class cannot be combined with --generator vllm, which claims no class: omit one")


def _check_cuts(arguments: argparse.Namespace, kind: str) -> None:
    """Reject cuts that would exclude the whole run, before it starts."""
    cut = (arguments.warm_up or 0.0) + (arguments.cool_down or 0.0)
    seconds = arguments.duration or (trials.SECONDS if arguments.sweep else loads.DURATION_SECONDS)
    if kind in ("rate", "steps", "concurrency") and arguments.requests is None and cut >= seconds:
        raise BadInput(f"--warm-up and --cool-down exclude all of {seconds:g} s: lower them or raise --duration")


def _check_comparison(arguments: argparse.Namespace) -> None:
    """BadInput where an option asks of four runs what only one can give."""
    for name in (*_MEASURED, "plot", "classes"):
        if getattr(arguments, name):
            raise BadInput(f"{_flag(name)} cannot be combined with --compare-batching, which makes four runs: omit it")
    if arguments.generator != "holdfast":
        raise BadInput("--generator vllm sends no batches: omit it")
    if arguments.compare_batching < LEAST_BATCH:
        raise BadInput(
            f"--compare-batching {arguments.compare_batching}: a batch of one waits for nobody: give 2 or more"
        )


def _kind(arguments: argparse.Namespace) -> str:
    """Which of the loads is asked for."""
    chosen = [name for name in (*LOADS, "source") if getattr(arguments, name)]
    if arguments.sweep:
        _check_sweep(arguments, chosen)
        return "rate"
    if len(chosen) != 1:
        every = ", ".join(map(_flag, LOADS))
        told = " and ".join(map(_flag, chosen))
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

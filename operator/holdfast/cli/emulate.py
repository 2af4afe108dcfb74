"""`holdfast emulate`: an emulated vLLM engine; takes vLLM's own flags."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from holdfast.cli.parsers.emulate import flag_parser, seconds_option
from holdfast.emulator.metrics import BadBuckets
from holdfast.emulator.options import DRAIN_FILE, BadOptions, EmulatorOptions
from holdfast.emulator.server import serve
from holdfast.enginemodel.catalog import find_accelerator
from holdfast.enginemodel.prior import MEMORY_UTILIZATION
from holdfast.enginemodel.suggestions import like_accelerator
from holdfast_engine.objectives.limits import DEFAULT_LIMITS, LIMITS_VARIABLE, SCHEDULER_CLASS
from holdfast_engine.stats.stats_fields import FOLDER_VARIABLE


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; 2 for bad flags."""
    try:
        options, ignored = parse_options(arguments.engine_arguments, os.environ)
        if ignored:
            print(f"holdfast emulate: flags without effect: {' '.join(ignored)}", file=sys.stderr)
        if "--headless" in ignored:
            _follow()
        asyncio.run(serve(options, _announce))
    except (BadOptions, BadBuckets) as problem:
        print(f"holdfast emulate: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"holdfast emulate: cannot serve: {problem}; choose another --host or --port", file=sys.stderr)
        return 1
    return 0


def _follow() -> NoReturn:
    """Be a follower in a group of pods: its leader serves, and what both of them compute is emulated there."""
    while True:
        signal.pause()


def parse_options(given: Sequence[str], environment: Mapping[str, str]) -> tuple[EmulatorOptions, list[str]]:
    """The options, and the flags without effect; BadOptions names the flag at fault."""
    arguments = [_dashed(argument) for argument in given]
    if arguments[:1] == ["serve"]:
        arguments = arguments[1:]
    parsed = _parsed(environment, arguments)
    model = parsed.model or parsed.model_flag
    if not model:
        raise BadOptions("--model is missing; give a model, such as --model Qwen/Qwen3-8B")
    _check_accelerator(parsed, arguments)
    keys = parsed.api_key or ([environment["VLLM_API_KEY"]] if environment.get("VLLM_API_KEY") else [])
    options = EmulatorOptions(
        model=model,
        accelerator=parsed.accelerator,
        tensor_parallel_size=parsed.tensor_parallel_size,
        pipeline_parallel_size=parsed.pipeline_parallel_size,
        data_parallel_size=parsed.data_parallel_size,
        quantization=parsed.quantization,
        served_names=tuple(parsed.served_model_name or ()),
        adapters=tuple(parsed.lora_modules),
        host=parsed.host,
        port=parsed.port,
        api_keys=tuple(keys),
        max_model_len=parsed.max_model_len,
        max_num_seqs=parsed.max_num_seqs,
        max_num_batched_tokens=parsed.max_num_batched_tokens,
        max_num_active_seqs=parsed.max_num_active_seqs,
        max_num_queued_tokens=parsed.max_num_queued_tokens,
        max_num_queued_reqs=parsed.max_num_queued_reqs,
        long_prefill_token_threshold=parsed.long_prefill_token_threshold,
        kv_tokens=parsed.kv_tokens,
        memory_utilization=parsed.gpu_memory_utilization or MEMORY_UTILIZATION,
        custom_buckets=parsed.custom_histogram_buckets,
        mfu_metrics=parsed.enable_mfu_metrics,
        shutdown_timeout_seconds=parsed.shutdown_timeout,
        cold_start_seconds=parsed.cold_start,
        async_scheduling=parsed.async_scheduling,
        enforce_eager=parsed.enforce_eager,
        max_cudagraph_capture_size=parsed.max_cudagraph_capture_size,
        host_factor=parsed.host_factor,
        front_end_factor=parsed.front_end_factor,
        speed=parsed.speed,
        connection_close_share=parsed.connection_close_share,
        drain_file=environment.get("HOLDFAST_DRAIN_FILE", DRAIN_FILE),
        keep_alive_seconds=_keep_alive_seconds(environment),
        replica=environment.get("HOSTNAME", ""),
        engine_limits=_engine_limits(parsed, environment),
        engine_folder=environment.get(FOLDER_VARIABLE, ""),
    )
    return options, parsed.without_effect


def _parsed(environment: Mapping[str, str], arguments: Sequence[str]) -> argparse.Namespace:
    try:
        return flag_parser(environment).parse_args(arguments)
    except argparse.ArgumentError as problem:
        raise BadOptions(str(problem)) from None


def _check_accelerator(parsed: argparse.Namespace, arguments: Sequence[str]) -> None:
    """A name that somebody typed; the environment has that of a service, which may be any."""
    name = parsed.accelerator
    typed = any(each.partition("=")[0] == "--accelerator" for each in arguments)
    if typed and not parsed.unknown and find_accelerator(name) is None:
        remedy = "holdfast catalog lists the known ones; --unknown emulates a guess"
        raise BadOptions(f"--accelerator {name} is unknown; {like_accelerator(name)}{remedy}")


def _engine_limits(parsed: argparse.Namespace, environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The files of the fast loop, None without it: the scheduler class turns it on as in vLLM."""
    if parsed.scheduler_cls not in (None, SCHEDULER_CLASS):
        raise BadOptions(f"--scheduler-cls {parsed.scheduler_cls}: only {SCHEDULER_CLASS} can be emulated")
    if parsed.scheduler_cls is None and parsed.engine_limits is None:
        return None
    named = parsed.engine_limits or environment.get(LIMITS_VARIABLE) or DEFAULT_LIMITS
    return tuple(named.split(os.pathsep))


def _keep_alive_seconds(environment: Mapping[str, str]) -> float:
    try:
        return seconds_option(environment.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "75"))
    except argparse.ArgumentTypeError as problem:
        raise BadOptions(f"VLLM_HTTP_TIMEOUT_KEEP_ALIVE: {problem}") from None


def _dashed(argument: str) -> str:
    """For argparse what vLLM takes besides: --max_num_seqs, -O3, and --hf-overrides.key for one key of JSON."""
    if level := re.fullmatch(r"-O=?(.*)", argument):
        return "--optimization-level" + (level[1] and f"={level[1]}")
    flag, equals, value = argument.partition("=")
    if not re.match("--?[a-zA-Z]", flag):
        return argument
    name = flag.partition(".")[0]
    return (name.replace("_", "-") if name.startswith("--") else name) + equals + value


def _announce(port: int) -> None:
    print(f"holdfast emulate: serving on port {port}", flush=True)

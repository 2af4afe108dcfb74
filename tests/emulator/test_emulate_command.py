"""`holdfast emulate`: flags, the environment, and the process's life."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
import yaml

from holdfast.cli.emulate import parse_options, run
from holdfast.cli.parsers.emulate import VLLM_FLAGS, add_parser, flag_parser
from holdfast.emulator.options import BadOptions, EmulatorOptions, set_up
from holdfast.enginemodel.host import SYNCHRONOUS, USUAL_FRONT_END, GraphMode, Host, usual_host

GOLDEN = Path(__file__).parents[1] / "golden"


def options(*arguments: str, **environment: str) -> EmulatorOptions:
    return parse_options(arguments, environment)[0]


def test_the_form_of_vllm_serve_is_taken() -> None:
    given = options("serve", "Qwen/Qwen3-8B", "--max-num-seqs=64", "--max-num-batched-tokens", "2k", "-tp", "2")
    assert (given.model, given.max_num_seqs, given.max_num_batched_tokens) == ("Qwen/Qwen3-8B", 64, 2000)
    assert given.tensor_parallel_size == 2


def test_underscores_are_dashes_as_in_vllm() -> None:
    assert options("--model=m", "--max_num_seqs=7", "--served_model_name", "a_b").served_names == ("a_b",)


@pytest.mark.parametrize(
    ("flags", "counts"), [((), False), (("--enable-mfu-metrics",), True), (("--no-enable-mfu-metrics",), False)]
)
def test_work_is_counted_on_demand_as_in_vllm(flags: tuple[str, ...], counts: bool) -> None:
    given, ignored = parse_options(["--model=m", *flags], {})
    assert given.mfu_metrics == counts
    assert not ignored


def test_a_smaller_share_of_memory_leaves_less_kv_cache_and_is_reported() -> None:
    model = ("--model=Qwen/Qwen2.5-3B-Instruct", "--accelerator=rtx-5090")
    whole, third = (set_up(options(*model, *flags)) for flags in ((), ("--gpu-memory-utilization=0.3",)))
    assert 40_000 < third.limits.kv_tokens < 100_000 < whole.limits.kv_tokens
    assert 'gpu_memory_utilization="0.3"' in third.metrics(0.0).render().decode()
    with pytest.raises(BadOptions, match="raise --tensor-parallel-size or --gpu-memory-utilization"):
        set_up(options(*model, "--gpu-memory-utilization=0.1"))


@pytest.mark.parametrize("share", ["0", "-0.3", "1.1", "nan", "inf", "a third", ""])
def test_no_share_of_memory_is_refused_with_the_remedy(share: str) -> None:
    with pytest.raises(BadOptions, match=r"--gpu-memory-utilization.*give a share above 0 and up to 1, e.g. 0.3"):
        options("--model=m", f"--gpu-memory-utilization={share}")


def test_the_host_follows_from_vllms_flags_and_the_emulators_own() -> None:
    def host(*flags: str) -> Host:
        return set_up(options("--model=Qwen/Qwen3-8B", *flags)).timer().host

    assert host() == usual_host(36)
    assert host("--no-async-scheduling").depth == SYNCHRONOUS
    assert host("--enforce-eager").graphs.mode is GraphMode.NONE
    assert host("--max-cudagraph-capture-size=64").graphs.edge == 64
    assert host("--max-num-seqs=100").graphs.edge == 200
    assert host("--host-factor=0").launch_seconds == (0.0, 0.0, 0.0)
    assert host("--front-end-factor=2").front_end == USUAL_FRONT_END.slower(2.0)


def test_stages_and_engines_of_data_share_steps_and_have_room_for_more() -> None:
    alone = set_up(options("--model=Qwen/Qwen3-8B"))
    several = set_up(options("--model=Qwen/Qwen3-8B", "-dp=2"))
    assert several.limits.max_num_seqs == 2 * alone.limits.max_num_seqs
    assert several.limits.max_num_batched_tokens == 2 * alone.limits.max_num_batched_tokens
    assert several.limits.kv_tokens == 2 * alone.limits.kv_tokens
    assert several.timer().gpu.step_seconds((), 64, 512.0) == alone.timer().gpu.step_seconds((), 32, 512.0)
    stages = set_up(options("--model=Qwen/Qwen3-8B", "--pipeline-parallel-size", "2"))
    assert stages.limits.max_num_seqs == alone.limits.max_num_seqs
    assert stages.limits.kv_tokens > 2 * alone.limits.kv_tokens


def test_flags_of_vllm_without_effect_are_named_with_their_values() -> None:
    words = ["--load_format=dummy", "serve", "m", "--seed", "-7", "--enable-prefix-caching", "--port=1"]
    given, ignored = parse_options(["serve", *words[2:], words[0], "--allowed-media-domains", "a", "b"], {})
    assert ignored == ["--seed -7", "--enable-prefix-caching", "--load-format dummy", "--allowed-media-domains a b"]
    assert (given.model, given.port) == ("m", 1)


def test_vllms_ways_to_write_a_flag_are_taken() -> None:
    given, ignored = parse_options(["serve", "m", "-tp=2", "--max-num-seq=7", "-O", "3", "-cc.mode=3"], {})
    assert (given.tensor_parallel_size, given.max_num_seqs) == (2, 7)
    assert ignored == ["--optimization-level 3", "-cc 3"]
    words = ["-O3", "-O=2", "--kv_transfer_config.kv_role", "kv_both", "--seed=-0.5", "--seed", "-0.5"]
    told = ["3", "2", "kv_both", "-0.5", "-0.5"]
    assert [flag.split()[1] for flag in parse_options(["serve", "m", *words], {})[1]] == told


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--odd"], "unrecognized arguments: --odd"),
        (["--odd=1", "--seed=1", "--max_num_seq5", "8"], "unrecognized arguments: --odd=1 --max-num-seq5 8"),
        (["second"], "unrecognized arguments: second"),
        (["--max-num"], "ambiguous option: --max-num could match"),
        (["--load-format"], "--load-format: expected one argument"),
    ],
)
def test_what_vllm_does_not_know_is_refused_in_its_words(words: list[str], complaint: str) -> None:
    with pytest.raises(BadOptions, match=f"^{re.escape(complaint)}"):
        parse_options(["serve", "m", *words], {})


def test_every_flag_that_the_operator_renders_is_taken() -> None:
    taken = 0
    for manifests in sorted(GOLDEN.glob("manifests-*.yaml")):
        for found in yaml.safe_load_all(manifests.read_text()):
            containers = found["spec"]["template"]["spec"]["containers"] if found["kind"] == "Deployment" else []
            for engine in (each for each in containers if each["name"] == "vllm"):
                taken += parse_options(engine["args"], {})[0].port == 8000
    assert taken > 3


def test_every_flag_of_vllm_is_known() -> None:
    known = flag_parser({})._option_string_actions
    spellings = [name for names, _ in json.loads(VLLM_FLAGS.read_text()) for name in names]
    assert len(spellings) > 200
    assert not [name for name in spellings if name not in known]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("20000", 20_000), ("20k", 20_000), ("2.5k", 2_500), ("32K", 32_768), ("1M", 2**20), ("1m", 10**6)],
)
def test_tokens_are_written_as_in_vllm(text: str, tokens: int) -> None:
    assert options("--model=m", f"--max-num-queued-tokens={text}").max_num_queued_tokens == tokens


def test_the_environment_sets_the_emulators_own_flags() -> None:
    given = options(
        "--model=m", HOLDFAST_EMULATE_ACCELERATOR="l40s", HOLDFAST_EMULATE_COLD_START="30", VLLM_API_KEY="key"
    )
    assert (given.accelerator, given.cold_start_seconds, given.api_keys) == ("l40s", 30.0, ("key",))
    assert options("--model=m", "--accelerator=h200", HOLDFAST_EMULATE_ACCELERATOR="l40s").accelerator == "h200"


def test_adapters_are_taken_in_both_of_vllms_forms() -> None:
    forms = ["sql=/adapters/sql", '{"name":"chat-de","path":"org/chat-de@0"}']
    assert options("--model=m", "--enable-lora", "--max-loras=2", "--lora-modules", *forms).adapters == (
        "sql",
        "chat-de",
    )


def test_what_the_operator_sets_in_its_pods_is_taken() -> None:
    given = options(
        "--model=m",
        HOLDFAST_ACCELERATOR="l40s",
        HOLDFAST_CONNECTION_CLOSE_SHARE="0.1",
        HOLDFAST_DRAIN_FILE="/run/draining",
    )
    assert (given.accelerator, given.connection_close_share, given.drain_file) == ("l40s", 0.1, "/run/draining")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--model is missing"),
        (["--model=m", "--port=x"], "--port: 'x': give a port"),
        (["--model=m", "--port=70000"], "--port"),
        (["--model=m", "--max-num-seqs=0"], "--max-num-seqs: '0': give a whole number of at least 1"),
        (["--model=m", "--max-num-batched-tokens=-5"], "--max-num-batched-tokens"),
        (["--model=m", "--max-model-len=1.5K"], "--max-model-len: '1.5K'"),
        (["--model=m", "--speed=0"], "--speed: '0'"),
        (["--model=m", "--speed=nan"], "--speed: 'nan'"),
        (["--model=m", "--shutdown-timeout=inf"], "--shutdown-timeout"),
        (["--model=m", "--cold-start=-1"], "--cold-start"),
        (["--model=m", "--connection-close-share=2"], "--connection-close-share"),
        (["--model=m", "--custom-histogram-buckets={"], "--custom-histogram-buckets"),
        (["--model=m", '--custom-histogram-buckets={"a": [1]}'], "unknown family 'a'"),
        (["--model=m", "--custom-histogram-buckets=[]"], "--custom-histogram-buckets"),
        (["--model=m", "--lora-modules", "sql"], "--lora-modules: 'sql': give NAME=PATH or JSON"),
        (["--model=m", "--lora-modules", '{"name": "sql"}'], "--lora-modules"),
        (["--model=m", "--lora-modules", "[]"], "--lora-modules"),
    ],
)
def test_a_bad_flag_is_one_line_that_names_it(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argparse.Namespace(engine_arguments=arguments)) == 2
    printed = capsys.readouterr().err
    assert complaint in printed
    assert printed.count("\n") == 1


def test_a_bad_keep_alive_is_named_by_its_variable() -> None:
    with pytest.raises(BadOptions, match="VLLM_HTTP_TIMEOUT_KEEP_ALIVE: 'long'"):
        options("--model=m", VLLM_HTTP_TIMEOUT_KEEP_ALIVE="long")


def test_a_bad_value_in_the_environment_is_named_by_its_flag() -> None:
    with pytest.raises(BadOptions, match="--cold-start: 'soon'"):
        options("--model=m", HOLDFAST_EMULATE_COLD_START="soon")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (EmulatorOptions("Qwen/Qwen3-8B", max_num_seqs=64, max_num_batched_tokens=32), "lower --max-num-seqs too"),
        (EmulatorOptions("Qwen/Qwen3-8B", max_num_seqs=4, max_num_active_seqs=5), "--max-num-active-seqs 5"),
        (EmulatorOptions("meta-llama/Llama-3.1-70B"), "raise --tensor-parallel-size"),
        (EmulatorOptions("Qwen/Qwen3-8B", max_model_len=4096, kv_tokens=1000), "lower it to at most 992"),
    ],
)
def test_what_vllm_would_not_start_with_is_refused(changes: EmulatorOptions, complaint: str) -> None:
    with pytest.raises(BadOptions, match=re.escape(complaint)):
        set_up(changes)


def test_defaults_are_vllms_for_the_accelerator() -> None:
    large, small = set_up(EmulatorOptions("Qwen/Qwen3-8B")), set_up(EmulatorOptions("Qwen/Qwen3-8B", "l40s"))
    assert (large.limits.max_num_seqs, large.limits.max_num_batched_tokens) == (1024, 8192)
    assert (small.limits.max_num_seqs, small.limits.max_num_batched_tokens) == (256, 2048)


def test_help_names_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    with pytest.raises(SystemExit) as exit_info:
        parser.parse_args(["emulate", "--help"])
    assert exit_info.value.code == 0
    assert "holdfast emulate --model Qwen/Qwen3-8B" in capsys.readouterr().out


async def start(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast.cli.main", "emulate", "serve", "Qwen/Qwen3-8B", "--port=0", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )


async def test_a_process_drains_on_sigterm_and_ends_with_zero() -> None:
    process = await start("--shutdown-timeout=30", "--host=127.0.0.1")
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
    port = int(line.split()[-1])
    body = {"prompt": "a", "max_tokens": 40, "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as response,
    ):
        process.send_signal(signal.SIGTERM)
        text = await response.text()
    assert text.count("data: {") == 40
    assert text.endswith("data: [DONE]\n\n")
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_a_follower_of_a_group_serves_nobody_and_ends_on_sigterm() -> None:
    process = await start("--nnodes=2", "--node-rank=1", "--master-addr=leader", "--headless")
    assert process.stderr is not None
    assert "--headless" in (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
    process.send_signal(signal.SIGTERM)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (out, process.returncode) == (b"", -signal.SIGTERM)


async def test_a_process_stops_at_once_during_its_cold_start() -> None:
    process = await start(HOLDFAST_EMULATE_COLD_START="3600")
    # The handler is in place once the interpreter has imported everything; until then SIGTERM ends it as well.
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 60) in (0, -signal.SIGTERM)

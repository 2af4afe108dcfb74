"""vLLM's `bench serve` behind the port: its command line, its records, and its figures by our formulas."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.cli.main import main
from holdfast.tools.bench.figures.results import measure
from holdfast.tools.bench.generators.vllm import VllmGenerator, arguments, records_of
from holdfast.tools.bench.load.load_generator import (
    Api,
    ArrivalRate,
    CannotGenerate,
    Endpoint,
    LatencyBounds,
    Load,
    Planned,
)
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord
from holdfast.tools.bench.pages import report
from holdfast.twin.scenarios.inputs import BadInput
from tests.emulator.emulator_builders import engine

RATE = ArrivalRate(5.0, 2.0, 100, 20)


def detailed(count: int = 200) -> dict[str, Any]:
    """What `--save-detailed` writes, in vLLM's own arithmetic: gaps beside a latency that is their sum."""
    draw = np.random.default_rng(1)
    ttfts, itls = draw.gamma(2.0, 0.1, count), [draw.gamma(2.0, 0.01, 19).tolist() for _ in range(count)]
    starts = 1000.0 + np.cumsum(draw.exponential(0.2, count))
    return {
        "start_times": starts.tolist(),
        "ttfts": ttfts.tolist(),
        "itls": itls,
        "latencies": [ttft + sum(gaps) for ttft, gaps in zip(ttfts, itls, strict=True)],
        "input_lens": [100] * count,
        "output_lens": [20] * count,
        "errors": [""] * count,
    }


def summary_by_vllm(result: dict[str, Any]) -> dict[str, float]:
    """The lines of vLLM 0.32's `calculate_metrics` that make its summary, for answers that all succeeded."""
    ttfts, latencies, lengths = result["ttfts"], result["latencies"], result["output_lens"]
    tpots = [(e2e - ttft) / (n - 1) for e2e, ttft, n in zip(latencies, ttfts, lengths, strict=True)]
    itls = [gap for gaps in result["itls"] for gap in gaps]
    told: dict[str, float] = {}
    for name, values in {"ttft": ttfts, "tpot": tpots, "itl": itls, "e2e": latencies}.items():
        told |= {f"{name} mean": float(np.mean(values))}
        told |= {f"{name} p{share}": float(np.percentile(values, share)) for share in (50, 99)}
    ends = [start + e2e for start, e2e in zip(result["start_times"], latencies, strict=True)]
    return told | {"output": sum(lengths) / (max(ends) - min(result["start_times"]))}


def test_our_figures_of_vllms_records_are_vllms() -> None:
    result = detailed()
    found = measure(records_of(result), LatencyBounds(), 0.0, 0.0)
    ours = {"output": found.output_tokens_per_second}
    for name in ("ttft", "tpot", "itl", "e2e"):
        spread = getattr(found, name)
        ours |= {f"{name} mean": spread.mean, f"{name} p50": spread.p50, f"{name} p99": spread.p99}
    assert ours == pytest.approx(summary_by_vllm(result), rel=1e-9)


def test_the_report_says_that_nobody_knows_whether_vllms_client_kept_up() -> None:
    found = measure(records_of(detailed(3)), LatencyBounds(), 0.0, 0.0)
    assert any("does not tell whether it kept up" in line for line in report.told(found, 0.99))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        ("Service Unavailable", RequestOutcome.OVERLOADED),
        ("Too Many Requests", RequestOutcome.RATE_LIMITED),
        ("Internal Server Error", RequestOutcome.HTTP_ERROR),
        ("...aiohttp.ClientConnectorError: Cannot connect to host x", RequestOutcome.UNREACHABLE),
        ("Never received a valid chunk to calculate TTFT.", RequestOutcome.EMPTY),
    ],
)
def test_requests_that_failed_are_kept_with_what_can_be_told(error: str, outcome: RequestOutcome) -> None:
    result = detailed(3)
    result["errors"][1], result["latencies"][1], result["ttfts"][1], result["itls"][1] = error, 0.0, 0.0, []
    found = records_of(result)
    assert [record.outcome for record in found] == [RequestOutcome.FINISHED, outcome, RequestOutcome.FINISHED]
    assert measure(found, LatencyBounds(), 0.0, 0.0).requests == 3


@pytest.mark.parametrize("broken", [{}, {"ttfts": [1.0]}, {"ttfts": None}, {"start_times": ["x"] * 200}])
def test_a_result_without_records_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(CannotGenerate, match="without detailed records"):
        records_of({**detailed(), **broken} if broken else {})


def test_the_command_line_of_an_open_and_of_a_closed_loop(tmp_path: Path) -> None:
    endpoint = Endpoint("http://x:8000/v1", "chat", Api.CHAT, api_key="secret")
    opened = arguments(["vllm"], "Qwen/Qwen3-8B", endpoint, Load([], 50, rate=RATE), RATE, tmp_path)
    assert {"--base-url=http://x:8000", "--endpoint=/v1/chat/completions", "--backend=openai-chat"} <= set(opened)
    assert {"--request-rate=5", "--burstiness=0.25", "--num-prompts=50", "--ignore-eos"} <= set(opened)
    assert not any("secret" in argument for argument in opened)
    closed = arguments(["vllm"], "m", endpoint, Load([], 50, concurrency=8, rate=RATE), RATE, tmp_path)
    assert {"--request-rate=inf", "--max-concurrency=8"} <= set(closed)


def fake_vllm(folder: Path, script: str) -> str:
    """A program that does what vLLM's command would, as far as the port can tell."""
    path = folder / "vllm"
    path.write_text("#!/usr/bin/env python3\nimport json, os, sys\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def run(command: str, load: Load) -> list[RequestRecord]:
    generator = VllmGenerator("m", (command,))
    return list((await generator.run(Endpoint("http://x", "m"), load, lambda record: None)).records)


LOAD = Load([Planned(0.0, 100, 20)] * 3, 3, rate=RATE)


async def test_its_result_becomes_records(tmp_path: Path) -> None:
    script = f"""folder = next(a for a in sys.argv if a.startswith("--result-dir=")).split("=")[1]
json.dump({json.dumps(detailed(3))}, open(os.path.join(folder, "result.json"), "w"))
"""
    found = await run(fake_vllm(tmp_path, script), LOAD)
    assert [len(record.token_at) for record in found] == [20, 20, 20]


async def test_the_command_sends_with_it_and_tells_who_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = f"""folder = next(a for a in sys.argv if a.startswith("--result-dir=")).split("=")[1]
json.dump(sys.argv[1:], open({str(tmp_path / "given.json")!r}, "w"))
json.dump({json.dumps(detailed(3))}, open(os.path.join(folder, "result.json"), "w"))
"""
    fake_vllm(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    load = ("--rate", "5", "--requests", "3", "--prompt-tokens", "100", "--output-tokens", "20")
    sent = ("--generator", "vllm", "--tokenizer", "some/tokenizer", "--slo", "e2e=60s", "--warm-up", "0s")
    async with engine() as client:
        asked = ["bench", "--url", client.base, *load, *sent, "--cool-down", "0s", "--json"]
        assert await asyncio.to_thread(main, asked) == 0
        generated = await client.value("vllm:generation_tokens_total")
    told = json.loads(capsys.readouterr().out)
    assert (told["generator"], told["client"], told["results"]["requests"]) == ("vllm bench serve", None, 3)
    assert told["results"]["verdicts"] == {"good": 3}
    given = json.loads((tmp_path / "given.json").read_text())
    assert {"--model=some/tokenizer", "--request-rate=5", "--num-prompts=3", "--random-input-len=100"} <= set(given)
    assert generated == 0.0, "the own client sends nothing beside it"


async def test_its_failure_is_told_by_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(CannotGenerate, match="ended with 3: no such model"):
        await run(fake_vllm(tmp_path, "print('x\\nno such model', file=sys.stderr); sys.exit(3)"), LOAD)


async def test_what_it_cannot_make_and_its_absence_are_told_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="leave --generator out"):
        await run("python3", Load([], 3))
    with pytest.raises(CannotGenerate, match="is not installed"):
        await run(str(tmp_path / "nowhere"), LOAD)

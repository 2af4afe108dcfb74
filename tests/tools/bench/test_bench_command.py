"""`holdfast bench` as people call it: options, exit codes, and a run against an emulated engine on a real socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import build_parser, main
from holdfast.tools.bench.load import records
from holdfast.tools.bench.load.records import RequestOutcome
from tests.emulator.emulator_builders import MODEL, engine
from tests.fakes import RawServer
from tests.tools.bench.bench_builders import PNG, record, steady

# The machine of a test is shared: how late its client is says nothing of the code.
CALM = ("--max-client-lag", "60s")
BASE = ("bench", "--url", "http://127.0.0.1:9", "--model", "m")


async def bench(*arguments: str) -> int:
    """The command, in a thread of its own with its own event loop."""
    return await asyncio.to_thread(main, ["bench", *arguments])


@pytest.mark.slow
async def test_a_run_against_an_engine_gives_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with engine() as client:
        code = await bench(
            *("--url", client.base, "--rate", "40", "--requests", "60", "--prompt-tokens", "50", *CALM),
            *("--output-tokens", "12", "--slo", "ttft=30s,tpot=30s", "--cost-per-hour", "2.5"),
            *("--json", str(tmp_path / "out.json"), "--records", str(tmp_path / "raw.jsonl")),
            *("--plot", str(tmp_path / "page.html"), "--plot", str(tmp_path / "page.png")),
            *("--kv-model", MODEL, "--warm-up", "0s", "--cool-down", "0s"),
        )
        generated = await client.value("vllm:generation_tokens_total")
        prompts = await client.value("vllm:prompt_tokens_total")
    assert code == 0
    assert (generated, prompts) == (720.0, 3000.0), "the engine counts what was asked of it"
    told = json.loads((tmp_path / "out.json").read_text())
    results = told["results"]
    assert (results["requests"], results["verdicts"], told["attained"]) == (60, {"good": 60}, True)
    assert (results["output_tokens"], results["prompt_tokens"], results["without_usage"]) == (12, 50, 0)
    assert (results["itl"]["count"], results["tpot"]["count"]) == (60 * 11, 60)
    assert 0 < results["ttft"]["p50"] < results["e2e"]["p50"]
    assert results["tokens_per_dollar"] == pytest.approx(results["output_tokens_per_second"] * 3600 / 2.5)
    assert results["kv_cache_bytes_per_token"] == 2 * 36 * 8 * 128 * 2
    shown = capsys.readouterr().out
    assert "60 of 60 requests good, 100.00 % (objective 99 %)" in shown
    assert "TTFT, ms" in shown
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert (tmp_path / "page.png").read_bytes().startswith(PNG)
    whole = ("--warm-up", "0s", "--cool-down", "0s", *CALM)
    assert await bench("--from", str(tmp_path / "raw.jsonl"), "--slo", "ttft=0.001ms", "--json", *whole) == 1
    again = json.loads(capsys.readouterr().out)["results"]
    assert again["ttft"] == results["ttft"]
    assert again["verdicts"] == {"late_ttft": 60}


@pytest.mark.parametrize(
    ("load", "requests"),
    [
        (("--steps", "0s=20,500ms=60", "--ramp", "--duration", "1s"), None),
        (("--rate", "50", "--cv", "2", "--requests", "20", "--length-cv", "0.5"), 20),
        (("--concurrency", "4", "--requests", "20"), 20),
        (("--concurrency", "4", "--duration", "1s"), None),
        (("--latency", "4", "--requests", "8"), 8),
        (("--throughput", "--requests", "24", "--api", "chat"), 24),
    ],
)
async def test_every_kind_of_load_is_sent(
    load: tuple[str, ...], requests: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    async with engine() as client:
        lengths = ("--prompt-tokens", "20", "--output-tokens", "4")
        assert await bench("--url", client.base, *load, *lengths, *CALM, "--json") == 0
    told = json.loads(capsys.readouterr().out)["results"]
    assert told["requests"] == requests or requests is None
    assert told["verdicts"] == {"good": told["requests"]}


async def test_a_trace_is_sent_with_its_own_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_seconds,prompt_tokens,output_tokens\n5,20,3\n6,30,5\n7,10,4\n")
    async with engine() as client:
        given = ("--url", client.base, "--trace", str(trace), "--speed", "20", *CALM, "--json")
        assert await bench(*given) == 0
    told = json.loads(capsys.readouterr().out)["results"]
    assert (told["requests"], told["output_tokens"], told["prompt_tokens"]) == (3, 4.0, 20.0)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            "azure",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.6805900,20,3\n2023-11-16 18:15:47.6805900,30,5\n",
        ),
        (
            "mooncake",
            '{"timestamp": 500, "input_length": 20, "output_length": 3, "hash_ids": [1]}\n'
            '{"timestamp": 1500, "input_length": 30, "output_length": 5, "hash_ids": [1, 2]}\n',
        ),
    ],
)
async def test_traces_as_others_publish_them_are_sent(
    kind: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, raw = tmp_path / "trace", tmp_path / "raw.jsonl"
    trace.write_text(text)
    async with engine() as client:
        given = ("--url", client.base, "--trace", str(trace), "--format", kind, "--speed", "10", "--records", str(raw))
        assert await bench(*given, *CALM, "--json") == 0
        counted = [await client.value(f"vllm:{name}_tokens_total") for name in ("prompt", "generation")]
    told = json.loads(capsys.readouterr().out)["results"]
    first, second = records.read(raw)
    assert (told["requests"], told["verdicts"]) == (2, {"good": 2})
    assert counted == [50.0, 8.0]
    assert [each.output_tokens for each in (first, second)] == [3, 5]
    assert second.scheduled_at - first.scheduled_at == pytest.approx(0.1)


async def test_an_engine_that_is_full_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    # One at a time: however slowly the thirty come, they come faster than it takes them.
    async with engine(max_num_queued_reqs=2, max_num_seqs=1) as client:
        code = await bench("--url", client.base, "--throughput", "--requests", "30", "--slo", "ttft=60s", *CALM)
    assert code == 1
    shown = capsys.readouterr().out
    assert "refused with 503" in shown
    assert "x 503" in shown


async def test_a_client_that_is_too_slow_refuses_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with engine() as client:
        given = ("--url", client.base, "--rate", "50", "--requests", "20", "--max-client-lag", "0ms")
        assert await bench(*given, "--json", str(tmp_path / "out.json")) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "result rejected, the client was too slow" in shown.err
    assert json.loads((tmp_path / "out.json").read_text())["results"] is None


@pytest.mark.parametrize("late", [0.02, 1e9])
def test_records_of_a_client_that_was_too_slow_are_refused_again(
    late: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "raw.jsonl"
    records.write(
        raw, [record(at=10.0 + number, index=number, scheduled_at=10.0 + number - late) for number in range(9)]
    )
    assert main(["bench", "--from", str(raw)]) == 1
    assert "result rejected, the client was too slow: requests left" in capsys.readouterr().err
    assert main(["bench", "--from", str(raw), "--max-client-lag", "2000000000s"]) == 0
    assert "records tell how late requests left, not how late" in capsys.readouterr().out


async def test_what_an_endpoint_says_moves_no_cursor_and_makes_no_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, nasty = tmp_path / "raw.jsonl", "\x1b[2J\x1b]0;x\x07calm\r100 of 100 requests good\u202e\x9b"
    records.write(raw, [record((), RequestOutcome.HTTP_ERROR, error=nasty)])
    assert await bench("--from", str(raw)) == 1
    models = json.dumps({"data": [{"id": nasty}, {"id": "\n"}]}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(models)
    async with RawServer([head + models]) as server:
        assert await bench("--url", server.url, "--rate", "1") == 1
    shown = capsys.readouterr()
    assert (shown.out.count("calm"), shown.err.count("calm")) == (1, 1)
    assert len(shown.err.splitlines()) == 1
    assert (shown.out + shown.err).replace("\n", "").isprintable()


def test_cuts_that_leave_no_request_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "raw.jsonl"
    records.write(raw, steady(9))
    assert main(["bench", "--from", str(raw), "--warm-up", "5s"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (
        "",
        "holdfast bench: --warm-up and --cool-down exclude all 9 requests; lower them\n",
    )


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -5.0])
def test_records_without_a_sane_moment_are_counted_and_refuse_nothing(
    odd: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "raw.jsonl"
    records.write(raw, [record(), record(index=1, sent_at=odd)])
    assert main(["bench", "--from", str(raw), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["refused"] is None


async def test_an_engine_with_a_key_is_asked_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text("secret\n")
    async with engine(api_keys=("secret",)) as client:
        given = ("--url", client.base, "--concurrency", "1", "--requests", "1", "--output-tokens", "2", *CALM)
        assert await bench(*given) == 1
        assert await bench(*given, "--api-key-file", str(tmp_path / "key")) == 0
        monkeypatch.setenv("HOLDFAST_API_KEY", "secret")
        assert await bench(*given) == 0
    shown = capsys.readouterr()
    assert "give its key with --api-key-file" in shown.err
    assert "secret" not in shown.out + shown.err


async def test_a_model_that_is_not_served_and_an_endpoint_that_is_not_there_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with engine() as client:
        assert await bench("--url", client.base, "--rate", "1", "--model", "other") == 1
    async with RawServer([b""]) as server:
        url = server.url
    assert await bench("--url", url, "--rate", "1") == 1
    told = capsys.readouterr().err.splitlines()
    assert f"does not serve 'other' but {MODEL}" in told[0]
    assert "cannot reach" in told[1]
    assert "check --url" in told[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "no load: give one of"),
        (("--rate", "1", "--concurrency", "2"), "--rate and --concurrency: give one of"),
        (("--rate", "nan"), "argument --rate: 'nan': give a positive number"),
        (("--rate", "-1"), "argument --rate"),
        (("--rate", "1e8"), "lower --rate"),
        (("--concurrency", "0"), "argument --concurrency: '0': give a whole number"),
        (("--steps", "5s=1"), "argument --steps"),
        (("--steps", "0s=1,0s=2"), "argument --steps"),
        (("--steps", "0s=inf"), "argument --steps"),
        (("--steps", "0s"), "argument --steps"),
        (("--steps", "0s=0"), "argument --steps"),
        (("--rate", "1", "--slo", "ttft=5"), "argument --slo"),
        (("--rate", "1", "--slo", "ttft=5s,ttft=6s"), "argument --slo"),
        (("--rate", "1", "--slo", "itl=5s"), "argument --slo"),
        (("--rate", "1", "--objective", "101%"), "argument --objective"),
        (("--rate", "1", "--objective", "0.9"), "argument --objective"),
        (("--rate", "1", "--duration", "5"), "argument --duration"),
        (("--rate", "1", "--duration", "5s", "--requests", "5"), "give one of them"),
        (("--from", "x.jsonl", "--cv", "2"), "--cv cannot be combined with --from"),
        (("--rate", "1", "--json", "/"), "--json /: is a folder: give a file"),
        (("--rate", "1", "--duration", "1h", "--warm-up", "1h"), "exclude all of 3600 s: lower them or raise"),
        (("--throughput", "--duration", "5s"), "--duration cannot be combined with --throughput"),
        (("--rate", "1", "--ramp"), "--ramp cannot be combined with --rate: omit it, it is used with --steps"),
        (("--rate", "1", "--speed", "2"), "--speed cannot be combined with --rate"),
        (("--sweep", "--trace-start", "5s"), "--trace-start cannot be combined with --sweep"),
        (("--concurrency", "2", "--cv", "2"), "--cv cannot be combined with --concurrency"),
        (("--trace", "x.csv", "--prompt-tokens", "5"), "--prompt-tokens cannot be combined with --trace"),
        (("--trace", "x.csv", "--length-cv", "1"), "--length-cv cannot be combined with --trace"),
        (("--trace", "missing.csv"), "--trace missing.csv: the file does not exist"),
        (("--trace", "."), "--trace .: the file does not exist"),
        (("--rate", "1", "--lengths", "missing.csv"), "--lengths missing.csv: the file does not exist"),
        (("--rate", "1", "--duration", "0s"), "argument --duration: '0s': give a duration above 0"),
        (("--rate", "1", "--duration", f"{'9' * 400}s"), "give a duration above 0"),
        (("--rate", "1", "--timeout", "0s"), "argument --timeout: '0s': give a duration above 0"),
        (("--sweep", "--warm-up", "20s", "--cool-down", "10s"), "exclude all of 30 s: lower them or raise"),
        (("--rate", "1", "--api-key-file", "missing"), "--api-key-file missing: cannot be read"),
        (("--rate", "1", "--ca-file", "missing"), "--ca-file missing: cannot be read"),
        (("--rate", "1", "--json", "no/such/x.json"), "--json no/such/x.json: the folder does not exist"),
        (("--rate", "1", "--plot", "x.pdf"), "argument --plot"),
        (("--rate", "1", "--plot", "x.html", "--plot", "no/x.png"), "--plot no/x.png: the folder does not exist"),
        (("--rate", "1", "--kv-model", "nobody/knows"), "argument --kv-model"),
        (("--rate", "1", "--api", "chat", "--prompts", "ids"), "give --api completions"),
        (("--rate", "1", "--prefix-tokens", "9"), "give --sessions too"),
        (("--rate", "1", "--sessions", "2", "--prefix-tokens", "512"), "prompts have 512 tokens"),
        (("--latency", "--sessions", "2"), "prompts have 32 tokens"),
        (("--rate", "1", "--sessions", "100000", "--prefix-tokens", "1000"), "at most 10,000,000 tokens in all"),
        (("--rate", "1", "--sessions", "2", "--generator", "vllm"), "--sessions cannot be combined"),
        (("--rate", "1", "--class", "a=60%", "--class", "b=60%"), "the shares sum to 120 %: lower them"),
        (("--rate", "1", "--class", "a=10%", "--class", "a=20%"), "--class a: given twice"),
        (("--rate", "1", "--class", "Up=10%"), "a DNS label"),
        (("--rate", "1", "--class", "=10%"), "a DNS label"),
        (("--rate", "1", "--class", "a"), "not a percentage"),
        (("--rate", "1", "--class", "a=nan%"), "not a percentage"),
        (("--rate", "1", "--class", "a=0%"), "give a share above 0%"),
        (("--rate", "1", "--class", "a=10%:ttft=0s"), "each above 0"),
        (("--rate", "1", "--class", "a=10%", "--generator", "vllm"), "--class cannot be combined"),
        (("--compare-batching", "2", "--class", "a=10%"), "--class cannot be combined with --compare-batching"),
        (("--rate", "1", "--prompt-tokens", "0"), "argument --prompt-tokens"),
        (("--rate", "0.001", "--duration", "1ms"), "no request arrives"),
    ],
)
def test_bad_usage_is_told_in_one_line(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _code([*BASE, *arguments]) == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://x", "http://", "http://a:b@x", "http://x:0", "http://[", "http://x y"]
)
def test_an_address_that_is_none_is_refused_without_repeating_a_password(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _code(["bench", "--url", url, "--rate", "1"]) == 2
    assert "a:b" not in capsys.readouterr().err


def test_the_key_of_the_environment_must_fit_a_header(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "se\ncret")
    assert main([*BASE, "--rate", "1"]) == 2
    assert "cret" not in capsys.readouterr().err.replace("characters", "")


def test_help_has_an_example() -> None:
    parser: Any = build_parser(["bench"])
    assert "holdfast bench --url" in parser._subparsers._group_actions[0].choices["bench"].format_help()


def _code(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(str(ended.code))

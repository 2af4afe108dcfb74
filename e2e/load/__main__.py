"""Play a trace against an OpenAI-compatible engine and print how it held."""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import sys
from collections.abc import Sequence

from e2e.load import records, trace, verdict
from e2e.load.client import ClientSettings, LoadClient


def main(argv: Sequence[str] | None = None) -> int:
    """Run the client; the exit status is 1 when a request was lost."""
    options = _options(argv)
    try:
        arrivals = schedule(options)
    except (trace.TraceError, OSError) as error:
        print(f"--trace: {error}", file=sys.stderr)
        return 2
    seen: list[records.Record] = []
    try:
        asyncio.run(play(options, arrivals, seen))
    except KeyboardInterrupt:
        print("stopped; summary of what was sent so far", file=sys.stderr)
    result = summary(seen, options)
    print(describe(result, seen))
    return 1 if result.lost else 0


def schedule(options: argparse.Namespace) -> list[trace.Arrival]:
    """Return the arrivals that the options ask for."""
    recorded = trace.read(options.trace)
    if options.rate:
        end = options.step_end if options.step_end is not None else options.seconds
        start = options.step_start if options.step_start is not None else 0.0
        step = trace.LoadStep(options.rate, options.step_factor, start, end, options.seconds)
        recorded = trace.stepped(recorded, step, options.seed)
    else:
        recorded = trace.window(recorded, 0.0, options.seconds)
    return trace.clip_lengths(recorded, options.max_prompt_tokens, options.max_output_tokens)


async def play(options: argparse.Namespace, arrivals: list[trace.Arrival], seen: list[records.Record]) -> None:
    """Play the arrivals, leaving every record in `seen` and in the output file."""
    settings = ClientSettings(options.url, options.model, options.connections, options.prompt_style, options.timeout)
    with records.RecordWriter(options.out) as writer:

        def keep(record: records.Record) -> None:
            writer.write(record)
            seen.append(record)

        async with LoadClient(settings, keep) as client:
            await client.run(arrivals)


def summary(seen: Sequence[records.Record], options: argparse.Namespace) -> verdict.Verdict:
    """Judge the run as one span."""
    objectives = verdict.Objectives(options.ttft, options.tpot, options.objective)
    times = [record.scheduled_at for record in seen] or [0.0]
    return verdict.judge(seen, objectives, verdict.Span(min(times), max(times) + 1e-3))


def describe(result: verdict.Verdict, seen: Sequence[records.Record]) -> str:
    """Return the summary that people read."""
    lines = [
        f"{result.arrivals} arrivals, {result.good} good ({share(result.attainment)} of {share(result.share)} wanted), "
        f"{result.rejected} rejected by 503, {len(result.lost)} lost, {result.retried} retried on a closed connection",
        _percentiles("TTFT", "s", [verdict.ttft_seconds(r) for r in seen if r.status == "ok"], 1.0),
        _percentiles("TPOT", "ms", [verdict.tpot_seconds(r) for r in seen if r.status == "ok"], 1e3),
    ]
    lines += [f"lost: request {record.index}: {record.error}" for record in result.lost[:10]]
    if result.client_overloaded:
        late = result.lateness_p99_seconds
        lines.append(f"the client itself sent late (p99 {late:.2f} s): do not trust these figures")
    return "\n".join(lines)


def share(value: float | None) -> str:
    """Return a share as people write it, or say that there is none."""
    return "no arrivals" if value is None else f"{value:.2%}"


def _percentiles(name: str, unit: str, values: list[float], factor: float) -> str:
    parts = (f"p{100 * q:.0f} {verdict.percentile(values, q) * factor:.3g} {unit}" for q in (0.5, 0.95, 0.99))
    return f"{name} {', '.join(parts)} (of finished requests)" if values else f"{name}: no finished request"


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m e2e.load", description=__doc__)
    parser.add_argument("--url", required=True, help="base address of the engine, without /v1")
    parser.add_argument("--model", required=True, help="served model name")
    parser.add_argument("--trace", type=pathlib.Path, default=pathlib.Path("examples/traces/azure-conv-excerpt.csv"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("records.jsonl"))
    parser.add_argument("--seconds", type=float, default=300.0, help="length of the run")
    parser.add_argument("--rate", type=float, default=0.0, help="req/s; 0 plays the trace as recorded")
    parser.add_argument("--step-factor", type=float, default=1.0, help="multiply --rate by this during the step")
    parser.add_argument("--step-start", type=float, help="seconds into the run (default: its start)")
    parser.add_argument("--step-end", type=float, help="seconds into the run (default: its end)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--connections", type=int, default=64, help="keep-alive pool; 0: a connection per request")
    parser.add_argument("--prompt-style", choices=("count", "ids"), default="count", help="ids for a real engine")
    parser.add_argument("--max-prompt-tokens", type=int, default=8192)
    parser.add_argument("--max-output-tokens", type=int, default=1024)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds per request")
    parser.add_argument("--ttft", type=float, default=0.5, help="objective in seconds")
    parser.add_argument("--tpot", type=float, default=0.03, help="objective in seconds")
    parser.add_argument("--objective", type=float, default=0.99, help="share of good requests")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""vLLM's own `bench serve` behind the load port: another client for the same figures."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.tools.bench.load.load_generator import Api, ArrivalRate, CannotGenerate, Endpoint, Load, Run
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord
from holdfast.twin.scenarios.inputs import BadInput

_COLUMNS = ("start_times", "ttfts", "itls", "latencies", "input_lens", "output_lens", "errors")
_NO_SUCCESS = "no first token: vLLM's client does not tell why"


class VllmGenerator:
    """Runs `vllm bench serve --save-detailed` and reads its raw records.

    `command` starts vLLM's command line (`vllm`, or `python -m vllm.entrypoints.cli.main`), `tokenizer` names what it
    makes prompts with. It makes arrivals of one rate and CV, or a closed loop, with fixed lengths, and nothing else.
    """

    def __init__(
        self, tokenizer: str, command: Sequence[str] = ("vllm",), environment: Mapping[str, str] | None = None
    ) -> None:
        self._tokenizer, self._command = tokenizer, tuple(command)
        self._environment = dict(os.environ if environment is None else environment)
        self.summary: dict[str, Any] = {}

    async def run(self, endpoint: Endpoint, load: Load, ended: Callable[[RequestRecord], None]) -> Run:
        """Wait for its end; all records come at once. `summary` is then what vLLM itself made of them."""
        if load.rate is None or load.batches or not load.expected:
            raise BadInput(
                "--generator vllm makes arrivals of one rate or concurrency with fixed lengths: give --rate or "
                "--concurrency with --prompt-tokens, --output-tokens and --requests, or leave --generator out"
            )
        if shutil.which(self._command[0]) is None:
            raise CannotGenerate(
                f"--generator vllm: {self._command[0]} is not installed: pip install vllm, or leave it out"
            )
        with tempfile.TemporaryDirectory() as folder:
            self.summary = await self._result(endpoint, load, load.rate, Path(folder))
        records = tuple(records_of(self.summary, load.rate))
        for record in records:
            ended(record)
        return Run(records, None, "vllm bench serve")

    async def _result(self, endpoint: Endpoint, load: Load, rate: ArrivalRate, folder: Path) -> dict[str, Any]:
        # The key goes by the environment: arguments are seen by everybody on the machine.
        environment = self._environment | ({"OPENAI_API_KEY": endpoint.api_key} if endpoint.api_key else {})
        process = await asyncio.create_subprocess_exec(
            *arguments(self._command, self._tokenizer, endpoint, load, rate, folder),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            cwd=folder,
        )
        try:
            _, told = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode != 0:
            last = told.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise CannotGenerate(f"vllm bench serve ended with {process.returncode}: {last[0][:300]}")
        found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        return found


def arguments(
    command: Sequence[str], tokenizer: str, endpoint: Endpoint, load: Load, rate: ArrivalRate, folder: Path
) -> list[str]:
    """The command line of `vllm bench serve`, 0.32."""
    chat = endpoint.api is Api.CHAT
    given = [
        *(*command, "bench", "serve", f"--base-url={endpoint.url.rstrip('/').removesuffix('/v1')}"),
        f"--backend={'openai-chat' if chat else 'openai'}",
        f"--endpoint=/v1/{'chat/completions' if chat else 'completions'}",
        *(f"--model={tokenizer}", f"--served-model-name={endpoint.model}"),
        *("--dataset-name=random", f"--random-input-len={rate.prompt_tokens}"),
        *(f"--random-output-len={rate.output_tokens}", f"--num-prompts={load.expected}", f"--seed={load.seed}"),
        *("--save-result", "--save-detailed", f"--result-dir={folder}", "--result-filename=result.json"),
        *("--disable-tqdm", "--percentile-metrics=ttft,tpot,itl,e2el", "--metric-percentiles=50,90,95,99"),
    ]
    if load.concurrency:
        given += ["--request-rate=inf", f"--max-concurrency={load.concurrency}"]
    else:
        given += [f"--request-rate={rate.rps:g}", f"--burstiness={1.0 / rate.cv**2:g}"]
    return [*given, "--ignore-eos"] if endpoint.ignore_eos else given


def records_of(result: Mapping[str, Any], rate: ArrivalRate | None = None) -> list[RequestRecord]:
    """The raw records in a file that `--save-detailed` wrote; CannotGenerate where it has none.

    vLLM keeps no moment at which a request was due, and no reason of a failure but a text.
    """
    try:
        rows = list(zip(*(result[name] for name in _COLUMNS), strict=True))
        return [_record(index, row, rate) for index, row in enumerate(rows)]
    except (KeyError, ValueError, TypeError) as problem:
        raise CannotGenerate(
            f"a result of vllm bench serve without detailed records ({problem!r}): versions from 0.32 on write them"
        ) from None


def _record(index: int, row: Sequence[Any], rate: ArrivalRate | None) -> RequestRecord:
    start, ttft, gaps, latency, prompt, output, error = row
    answered = not error and latency > 0.0
    moments = array("d", [start + ttft] if answered else [])
    for gap in gaps if answered else ():
        moments.append(moments[-1] + gap)
    ended = start + max(latency, ttft, 0.0)
    return RequestRecord(
        index=index,
        scheduled_at=start,
        sent_at=start,
        # Summed gaps and the latency differ in their last digits.
        ended_at=max(ended, moments[-1]) if moments else ended,
        outcome=RequestOutcome.FINISHED if answered else _outcome(str(error)),
        token_at=moments,
        prompt_tokens=int(prompt),
        output_tokens=int(output),
        counted=answered,
        asked_tokens=rate.output_tokens if rate else int(output),
        error="" if answered else " ".join(str(error or _NO_SUCCESS).split())[-200:],
    )


def _outcome(error: str) -> RequestOutcome:
    """The outcome that the text of an error shows: the reason phrase of a status, or a traceback."""
    known = (
        ("Too Many Requests", RequestOutcome.RATE_LIMITED),
        ("Service Unavailable", RequestOutcome.OVERLOADED),
        ("Cannot connect", RequestOutcome.UNREACHABLE),
        ("Never received a valid chunk", RequestOutcome.EMPTY),
        ("TimeoutError", RequestOutcome.TIMED_OUT),
        ("Payload", RequestOutcome.TRUNCATED),
    )
    return next((outcome for text, outcome in known if text in error), RequestOutcome.HTTP_ERROR)

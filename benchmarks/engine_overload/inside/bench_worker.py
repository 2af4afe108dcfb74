"""`vllm bench serve` again and again, without importing vLLM every time.

Reads a JSON line with `arguments`, `log` and the ends of window and arrivals per run, runs vLLM's own subcommand in a
fork of its own, and answers with a line that holds its exit code.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from cut_off import CutOff, noting


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # Whatever else is printed here must not look like an answer.
    os.dup2(2, 1)
    import vllm.benchmarks.serve  # noqa: F401

    print("ready", file=answers)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers)


def _run(order: dict[str, Any]) -> None:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        _let_go(order["window_ends_seconds"], order["arrivals_end_seconds"])
        _bench(order["arguments"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _let_go(window_ends_seconds: float, arrivals_end_seconds: float) -> None:
    import vllm.benchmarks.lib.endpoint_request_func as client

    client.RequestFuncOutput = noting(client.RequestFuncOutput)
    ask = client.async_request_openai_completions
    client.ASYNC_REQUEST_FUNCS["openai"] = CutOff(ask, window_ends_seconds, arrivals_end_seconds)


def _bench(arguments: list[str]) -> None:
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as bench
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm bench serve")
    add_cli_args(parser)
    bench(parser.parse_args(arguments))


if __name__ == "__main__":
    main()

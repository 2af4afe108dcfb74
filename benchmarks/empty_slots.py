"""What empty slots cost: decode time of real vLLM at the same load, where it may run 16, 64 or 256 sequences.

    python -m benchmarks.empty_slots                  # some five minutes on a quiet machine, after `make vllm-cpu`
    python -m benchmarks.empty_slots --at-once 4 --limits 8,64

One vLLM for CPUs for each limit, all of them started before anything is measured. In each round every engine gets the
same closed loop of `--at-once` requests, one engine after another, each round in another order. A run's decode time is
the median TPOT of its requests. Printed are the ratio to the lowest limit's of the same round, and the ratio of the
least of all rounds: other work on the machine only ever adds. The model is tiny, so that what a limit costs in the
engine's own bookkeeping is not hidden behind the model's work. An engine for CPUs has no CUDA graphs.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from e2e.engine.server import MODEL, Server, Settings
from e2e.vllm.environment import environment
from holdfast.tools.bench.figures import definitions
from holdfast.tools.bench.generators.client import OwnGenerator
from holdfast.tools.bench.load import workload
from holdfast.tools.bench.load.load_generator import Endpoint, Load, PromptKind
from holdfast.tools.bench.load.records import RequestOutcome

PROMPT_TOKENS, OUTPUT_TOKENS = 32, 64
BATCHES = 8
"""Requests of a run, in times of those at once."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=limits, default=(16, 64, 256), help="sequences, such as 16,64,256 (default)")
    parser.add_argument("--at-once", type=int, default=8, help="requests at once (default 8)")
    parser.add_argument("--rounds", type=int, default=12, help="how often each engine is loaded (default 12)")
    options = parser.parse_args()
    if not 1 <= options.at_once <= min(options.limits):
        parser.error(f"--at-once {options.at_once}: give 1 to {min(options.limits)}, so that no request waits")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: give 1 or more")
    rounds = asyncio.run(_measured(options.limits, options.at_once, options.rounds))
    print(f"{options.at_once} requests at once, {PROMPT_TOKENS} tokens in and {OUTPUT_TOKENS} out, tiny model, CPU")
    for line in told(rounds):
        print(line)
    return 0


def limits(text: str) -> tuple[int, ...]:
    """Two or more different numbers of sequences, ascending."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if len(found) < 2 or found[0] < 1 or found[-1] > 1024:
        raise argparse.ArgumentTypeError(f"{text!r}: give two or more numbers from 1 to 1024, such as 16,64,256")
    return tuple(found)


def told(rounds: Sequence[Mapping[int, float]]) -> list[str]:
    """A line for each limit: the least decode time, its ratio to the lowest limit's, and the ratios round by round."""
    whole = [each for each in rounds if all(0.0 < seconds < math.inf for seconds in each.values())]
    if not whole:
        return ["no round was finished by all engines: read their logs, or give fewer requests with --at-once"]
    lowest = min(whole[0])
    least = {limit: min(each[limit] for each in whole) for limit in sorted(whole[0])}
    lines = [f"sequences  least, ms  ratio to {lowest}  median ratio (least to most) of {len(whole)} rounds"]
    for limit, seconds in least.items():
        ratios = [each[limit] / each[lowest] for each in whole]
        shown = f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        lines.append(f"{limit:>9}  {1000 * seconds:>9.2f}  {seconds / least[lowest]:>11.3f}  {shown}")
    return lines


async def _measured(asked: Sequence[int], at_once: int, rounds: int) -> list[dict[int, float]]:
    """Decode time in seconds by limit, round by round; the first round of all warms up and does not count."""
    found = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = {limit: stack.enter_context(_server(Path(folder), limit)) for limit in asked}
        for number in range(rounds + 1):
            first = number % len(asked)
            order = [*asked[first:], *asked[:first]]
            found.append({limit: await _decode_seconds(servers[limit].url, at_once) for limit in order})
    return found[1:]


def _server(folder: Path, limit: int) -> Server:
    # Of a flag that is given twice the last one counts.
    return Server(Settings(environment(), folder / str(limit), arguments=(f"--max-num-seqs={limit}",)))


async def _decode_seconds(url: str, at_once: int) -> float:
    count = at_once * BATCHES
    load = Load(workload.endless(workload.fixed(PROMPT_TOKENS, OUTPUT_TOKENS), 1, count), count, at_once)
    run = await OwnGenerator().run(Endpoint(url, MODEL, prompts=PromptKind.IDS), load, lambda record: None)
    done = [each for each in run.records if each.outcome is RequestOutcome.FINISHED]
    return median(map(definitions.tpot_seconds, done)) if len(done) == count else math.nan


if __name__ == "__main__":
    sys.exit(main())

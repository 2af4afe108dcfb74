"""One engine over two nodes: real vLLM as the pods of a group start it, compared with one of a single pod.

Counted are answers that differ, and requests that the plugin counts otherwise than their clients. Then a follower is
killed, and once somebody asks the leader, one of its probes must fail.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.campaign import pods, wire
from e2e.campaign.weights import write_weights
from e2e.engine.pod import FrontEnd, Pod
from e2e.engine.server import Prompt, Settings, samples_of
from e2e.patience import patient
from e2e.vllm.environment import Environment
from e2e.vllm.model import VOCABULARY
from holdfast.api.llmservice import LLMService
from holdfast.rendered.names import HEALTH_PATH, PORT, READY_PATH, Manifest
from holdfast_engine.objectives.rules import Limits, Objectives

DIVISIONS: Mapping[str, Mapping[str, int]] = {"TP=2": {"tensor": 2}, "PP=2": {"pipeline": 2}}
PROMPTS = 20
_LIMITS = Limits(version=1, objectives=Objectives(ttft_seconds=20.0, tpot_seconds=5.0))
_LONG = Prompt(list(range(10, 110)), 900)
_READY_SECONDS, _IDLE_SECONDS, _FAILS_SECONDS, _ENDS_SECONDS = 60.0, 20.0, 90.0, 10.0

Answers = list[list[int]]


@dataclass(frozen=True, slots=True)
class Case:
    """A division of an engine among two nodes, and whether its follower is killed while it computes."""

    division: str
    is_busy: bool


CASES = tuple(itertools.starmap(Case, itertools.product(DIVISIONS, (False, True))))


@dataclass(frozen=True, slots=True)
class Loss:
    """A leader without its follower. Seconds are after the kill; None: that did not happen.

    `idle_seconds`: how long it was ready while nobody asked. `status`: of the one request, None for no answer before
    the leader was ended. `failed_probe`: the first one that failed.
    """

    idle_seconds: float
    status: int | None
    failed_probe: str | None
    failed_seconds: float | None
    ended_seconds: float | None
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a group answered, what it counted of that, and its end."""

    case: Case
    same: int
    counted: Mapping[str, float]
    loss: Loss

    @property
    def is_right(self) -> bool:
        """Whether one engine says the same, each request is counted once, and the loss shows."""
        is_same = self.same == PROMPTS and self.counted == {"arrived": PROMPTS, "good": PROMPTS, "bad": 0.0}
        return is_same and self.loss.failed_probe is not None

    def __str__(self) -> str:
        killed = "works" if self.case.is_busy else "waits"
        counted = ", ".join(f"{value:g} {name}" for name, value in self.counted.items())
        loss = self.loss
        status = "no answer" if loss.status is None else f"status {loss.status}"
        idle = "" if self.case.is_busy else f"ready for {loss.idle_seconds:.1f} s of silence, "
        return (
            f"{self.case.division}: {self.same} of {PROMPTS} answers are those of one engine; counted: {counted}\n"
            f"  its follower is killed while it {killed}: {idle}the request gets {status}, the first probe to "
            f"fail is {loss.failed_probe} {_after(loss.failed_seconds)}, the process ends by itself "
            f"{_after(loss.ended_seconds)}, exit code {loss.exit_code}"
        )


def play(environment: Environment, folder: Path, seed: int, cases: Sequence[Case]) -> Iterator[Outcome]:
    """Ask one engine and then each group the same, and kill a follower of each; this process stays in a network apart.

    `folder` gets the weights and the logs.
    """
    os.environ["no_proxy"] = "*"
    shutil.copytree(environment.model, folder / "models" / pods.MODEL)
    write_weights(folder / "models" / pods.MODEL, seed)
    prompts = _prompts(seed)
    with wire.second_node() as there:
        with _replica(environment, pods.tiny(), folder / "one", [[]]) as (single,):
            alone = list(map(single.complete, prompts))
        for case in cases:
            service = pods.tiny(2, **DIVISIONS[case.division])
            place = folder / f"{case.division}-{'busy' if case.is_busy else 'idle'}"
            with _replica(environment, service, place, [[], there]) as (leader, follower):
                same = sum(map(list.__eq__, map(leader.complete, prompts), alone))
                yield Outcome(case, same, _counted(leader), _lose(leader, follower, case.is_busy))


def _prompts(seed: int) -> list[Prompt]:
    drawn = random.Random(f"{seed}/prompts")
    lengths = [(drawn.choice((16, 100, 400)), drawn.choice((8, 40))) for _ in range(PROMPTS)]
    return [Prompt([drawn.randrange(3, VOCABULARY) for _ in range(given)], wanted) for given, wanted in lengths]


class _Member(Pod):
    """A pod of a replica; `prefix` puts it on its node."""

    def __init__(
        self, environment: Environment, container: Manifest, rank: int, folder: Path, prefix: list[str]
    ) -> None:
        shared = folder.parents[1]
        folders = {"/holdfast": folder / "mounted", "/models": shared / "models", "/cache": shared / "cache"}
        given = {"LWS_WORKER_INDEX": str(rank), "LWS_LEADER_ADDRESS": wire.ADDRESSES[0]}
        mounts = {path: str(local) for path, local in folders.items()}
        self._start, self._prefix = pods.started(container, wire.ADDRESSES[rank], given, mounts), prefix
        super().__init__(Settings(environment, folder, arguments=self._start.command), FrontEnd.PYTHON)
        self._port = self._pod_port = PORT
        folder.mkdir(parents=True)
        self.set_limits(_LIMITS.to_json())

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def failed_probe(self) -> str | None:
        """The one that fails now; the livenessProbe where both do, None for neither."""
        for name, path in (("liveness", HEALTH_PATH), ("readiness", READY_PATH)):
            try:
                if self.status_of(path)[0] != 200:
                    return name
            except OSError:
                return name
        return None

    def is_ready(self) -> bool:
        """Whether its probes succeed."""
        return self.failed_probe() is None

    def _command(self) -> list[str]:
        self.mount()
        return [*self._prefix, *self._start.command]

    def _variables(self) -> dict[str, str]:
        return {**super()._variables(), **self._start.variables}


@contextmanager
def _replica(
    environment: Environment, service: LLMService, folder: Path, prefixes: Sequence[list[str]]
) -> Iterator[list[_Member]]:
    """A ready replica of this service, its leader first."""
    containers = pods.engines(service)
    members = [
        _Member(environment, container, rank, folder / str(rank), prefix)
        for rank, (container, prefix) in enumerate(zip(containers, prefixes, strict=True))
    ]
    leader, *followers = members
    # The leader waits for its followers: they are started first.
    with ExitStack() as entered:
        for each in (*followers, leader):
            entered.enter_context(each)
        leader.wait_for(leader.is_ready, _READY_SECONDS, "token of the leader's own")
        yield members


def _counted(leader: Pod) -> dict[str, float]:
    page = leader.get("/metrics")
    names = ("arrived", "good", "bad")
    return {name: sum(samples_of(page, f"holdfast:requests_{name}_total").values()) for name in names}


def _lose(leader: _Member, follower: _Member, is_busy: bool) -> Loss:
    """Kill the follower while the leader answers a request, or has none until it has been silent for a while."""
    with ThreadPoolExecutor(1) as client:
        asked: Future[int | None] | None = None
        if is_busy:
            asked = client.submit(_status, leader)
            leader.wait_for(lambda: sum(leader.samples("vllm:num_requests_running").values()) > 0, 20.0, "request")
        os.killpg(follower.session, signal.SIGKILL)
        killed_at, idle_seconds = time.monotonic(), 0.0
        if asked is None:
            gone = _seconds_until(lambda: not leader.is_ready(), killed_at, _IDLE_SECONDS)
            idle_seconds = _IDLE_SECONDS if gone is None else gone
            asked = client.submit(_status, leader)
        failed = _seconds_until(lambda: not leader.is_ready(), killed_at, patient(_FAILS_SECONDS))
        probe, shown = leader.failed_probe(), time.monotonic() - killed_at
        ended = _seconds_until(lambda: leader.exit_code is not None, killed_at, shown + patient(_ENDS_SECONDS))
        code = leader.exit_code
        with suppress(ProcessLookupError):
            os.killpg(leader.session, signal.SIGKILL)  # as the kubelet does in the end
        return Loss(idle_seconds, asked.result(), probe, failed, ended, code)


def _status(leader: Pod) -> int | None:
    try:
        return leader.ask(_LONG).status
    except OSError:
        return None


def _seconds_until(is_true: Callable[[], bool], since: float, most_seconds: float) -> float | None:
    while time.monotonic() - since < most_seconds:
        if is_true():
            return time.monotonic() - since
        time.sleep(0.1)
    return None


def _after(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {seconds:.1f} s"

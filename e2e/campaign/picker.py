"""The endpoint picker of the Gateway API Inference Extension, asked as a gateway asks it, about the pool of a service.

It must pick Ready pods of that pool: neither those of another service, nor one whose engine restarts or drains.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e import stack
from e2e.cluster.toolset import PICKER
from e2e.kubectl import Json, Kubectl, condition
from e2e.ports import free_port
from holdfast.rendered.names import PORT

REFUSED = "503"
"""What a gateway is to answer where no pod is there to pick."""
_CRD = "inference.networking.k8s.io_inferencepools.yaml"
_REPLICAS = 3
_COLD_START_SECONDS = 15.0
_ROUND, _ROUNDS = 20, 3
_WATCH_SECONDS = 1.0
"""From a change in the API until the picker has it from its watch."""

Asker = Callable[[int], list[str]]


@dataclass(frozen=True, slots=True)
class Phase:
    """What was picked in one state of the pods, and which picks were no Ready pod of the pool."""

    name: str
    picked: Mapping[str, int]
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        picked = ", ".join(f"{endpoint} {count}" for endpoint, count in sorted(self.picked.items()))
        return f"{self.name}: {sum(self.picked.values())} picks ({picked}), {len(self.wrong)} wrong" + (
            f" {self.wrong}" if self.wrong else ""
        )


def wrong_picks(picked: list[str], before: Set[str], after: Set[str]) -> list[str]:
    """Picks that were Ready neither before nor after the picker was asked; it may refuse where none was."""
    right = {*before, *after, *([REFUSED] if not (before and after) else [])}
    return [each for each in picked if each not in right]


def endpoints(pods: list[Json]) -> set[str]:
    """The addresses of pods that are Ready and stay."""
    ready = [pod for pod in pods if condition(pod, "Ready").get("status") == "True"]
    return {f"{pod['status']['podIP']}:{PORT}" for pod in ready if "deletionTimestamp" not in pod["metadata"]}


def play(folder: Path) -> Iterator[Phase]:
    """Ask before, while and after pods are not Ready; the picker's log goes to `folder`."""
    with _services() as place, _picker(place, folder) as ask:
        yield _asked("all are Ready", place, ask)
        names = [pod["metadata"]["name"] for pod in _pods(place)]
        _restart(place, names[:1])
        yield _asked("one restarts", place, ask)
        _wait_for_ready(place, _REPLICAS)
        place.delete("pod", names[1], wait=False)
        time.sleep(_WATCH_SECONDS)
        yield _asked("one drains", place, ask)
        _wait_for_ready(place, _REPLICAS)
        _restart(place, [pod["metadata"]["name"] for pod in _pods(place)])
        yield _asked("all restart", place, ask)
        _wait_for_ready(place, _REPLICAS)
        time.sleep(_WATCH_SECONDS)
        yield _asked("all are Ready again", place, ask)


def _asked(name: str, place: Kubectl, ask: Asker) -> Phase:
    picked: Counter[str] = Counter()
    wrong = []
    for _ in range(_ROUNDS):
        before = endpoints(_pods(place))
        found = ask(_ROUND)
        wrong += wrong_picks(found, before, endpoints(_pods(place)))
        picked.update(found)
    return Phase(name, picked, tuple(wrong))


@contextmanager
def _services() -> Iterator[Kubectl]:
    """A service with a pool, and one without, whose pods have the same port; an operator runs for both."""
    stack.offer_gpus(2 * _REPLICAS + 2, stack.L40S)
    stack.install_types()
    place = Kubectl(f"picker-{secrets.token_hex(4)}")
    place.run("apply", "--server-side", "--filename", str(PICKER.program("bases") / _CRD))
    place.wait_established(f"inferencepools.{_CRD.partition('_')[0]}")
    place.run("create", "namespace", place.namespace)
    place.wait_until(lambda: bool(place.items("serviceaccounts")), 60, "the default ServiceAccount")
    for name, more in (("chat", {"inferencePool": {"endpointPicker": {"name": "chat-epp"}}}), ("other", {})):
        made = stack.small_service(name)
        made["spec"] |= {"replicas": _REPLICAS, **more}
        made["spec"]["engine"]["args"] = [f"--cold-start={_COLD_START_SECONDS:g}"]
        place.apply(made)
    with stack.operator_outside(place.namespace):
        for name in ("chat", "other"):
            _wait_for_ready(place, _REPLICAS, name)
        place.wait_until(lambda: place.exists("inferencepools", "chat"), 60, "the pool")
        yield place


@contextmanager
def _picker(place: Kubectl, folder: Path) -> Iterator[Asker]:
    """The picker as a process next to the control plane, and what asks it."""
    ports = {name: free_port() for name in ("grpc-port", "grpc-health-port", "metrics-port")}
    flags = {"pool-name": "chat", "pool-namespace": place.namespace, **ports}
    flags |= {"secure-serving": "false", "metrics-endpoint-auth": "false"}
    command = [PICKER.built_program("epp"), *(f"--{name}={value}" for name, value in flags.items())]
    with (folder / "picker.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ)

    def ask(count: int) -> list[str]:
        program = [PICKER.built_program("ask"), f"127.0.0.1:{ports['grpc-port']}", str(count)]
        return subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True).stdout.split()

    def knows_all() -> bool:
        try:
            return {*ask(_ROUND)} == endpoints(_pods(place))
        except subprocess.CalledProcessError:
            return False

    try:
        place.wait_until(knows_all, 60, "all pods to be picked")
        yield ask
    finally:
        process.terminate()
        process.wait()


def _restart(place: Kubectl, names: list[str]) -> None:
    """Kill engines, whose containers start again, and return once none of them is Ready."""
    for name in names:
        for number in stack.processes(name):
            os.kill(number, signal.SIGKILL)
    gone = _pods(place)
    addresses = {f"{pod['status']['podIP']}:{PORT}" for pod in gone if pod["metadata"]["name"] in names}
    place.wait_until(lambda: not addresses & endpoints(_pods(place)), 30, "pods that are not Ready", poll_seconds=0.2)
    time.sleep(_WATCH_SECONDS)


def _pods(place: Kubectl, service: str = "chat") -> list[Json]:
    return place.items("pods", f"holdfast.dev/service={service}")


def _wait_for_ready(place: Kubectl, count: int, service: str = "chat") -> None:
    place.wait_until(lambda: len(endpoints(_pods(place, service))) == count, 90, f"{count} Ready pods of {service}")

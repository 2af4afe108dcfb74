"""The real vLLM serves classes: who names one, who starts first, and in whose counts a request is."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.engine.server import ADMISSION, Answer, Prompt, Server, Settings
from e2e.vllm.environment import Environment
from holdfast_engine.objectives.request import OWN_NAME_VARIABLE
from holdfast_engine.objectives.rules import Claim, Limits, Objectives, RequestClass

pytestmark = pytest.mark.vllm

LOOSE = Objectives(ttft_seconds=600.0, tpot_seconds=60.0)
TIGHT = RequestClass("tight", Objectives(ttft_seconds=60.0, tpot_seconds=60.0), priority=10)
LIMITS = Limits(1, LOOSE, classes=(TIGHT, RequestClass("bulk", LOOSE, priority=-10)))
HEADER = {"x-slo-class": "tight"}
SHORT = Prompt(range(3, 43), 4)
FLOOD = [Prompt(range(3 + each, 303 + each), 40) for each in range(160)]
TIGHT_REQUESTS = 12
FEW_SEQUENCES = "--max-num-seqs=8"
"""So a flood waits on a fast machine, too, even where the cache holds its prompts."""
METRICS = ("requests_arrived_total", "requests_good_total", "requests_bad_total")


@pytest.fixture(scope="module")
def server(vllm: Environment, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("classes")
    (folder / "engine-limits").write_text(LIMITS.to_json())
    variables = {OWN_NAME_VARIABLE: "holdfast-of-this-test"}
    with Server(Settings(vllm, folder, plugin, arguments=(ADMISSION, FEW_SEQUENCES), variables=variables)) as found:
        found.ask_all([SHORT] * 8)
        yield found


def of_class(server: Server, name: str, metric: str = "requests_arrived_total") -> float:
    """A count of one class, over all causes: the label of the service's own class is empty, and so left out."""
    labels = 1 if metric == "requests_bad_total" else 0
    found = server.samples(f"holdfast:{metric}").items()
    return sum(value for values, value in found if "".join(values[labels:]) == name)


def counts(server: Server) -> dict[str, float]:
    return {name or "own": of_class(server, name) for name in ("", "tight", "bulk")}


def gained(server: Server, ask: Any) -> dict[str, float]:
    """What arrived by class while something is asked, without the classes where nothing did."""
    before = counts(server)
    answers = ask()
    assert all(answer.status == 200 for answer in answers)
    server.wait_for(lambda: sum(counts(server).values()) > sum(before.values()), 20.0, "arrival")
    return {name: value - before[name] for name, value in counts(server).items() if value > before[name]}


def set_limits(server: Server, limits: Limits) -> None:
    server.set_limits(limits.to_json())
    version = float(limits.version)
    server.wait_for(lambda: server.samples("holdfast:limits")[("version",)] == version, 20.0, "new limits")


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
def test_a_header_names_a_class_and_a_body_does_not(server: Server, fields: dict[str, Any]) -> None:
    body = {"vllm_xargs": {"slo_class": "tight"}, **fields}
    assert gained(server, lambda: [server.ask(SHORT, headers=HEADER, **fields)]) == {"tight": 1}
    assert gained(server, lambda: [server.ask(SHORT, headers={"x-gateway-inference-objective": "bulk"}, **body)]) == {
        "bulk": 1
    }
    for headers in (None, {"x-slo-class": "unknown"}, {"x-slo-class": "a" * 10_000}, {"x-slo-class": "Tight, bulk"}):
        assert gained(server, lambda headers=headers: [server.ask(SHORT, headers=headers, **body)]) == {"own": 1}


def test_each_of_several_answers_is_of_the_class(server: Server) -> None:
    assert gained(server, lambda: [server.ask(SHORT, headers=HEADER, n=3, temperature=1.0)]) == {"tight": 3}


def test_who_may_name_a_class_changes_while_the_engine_serves(server: Server) -> None:
    body = {"vllm_xargs": {"slo_class": "tight"}}
    set_limits(server, replace(LIMITS, version=2, claim=Claim.BODY))
    assert gained(server, lambda: [server.ask(SHORT, **body)]) == {"tight": 1}
    assert gained(server, lambda: [server.ask(SHORT, headers={"x-slo-class": "bulk"}, **body)]) == {"bulk": 1}
    set_limits(server, replace(LIMITS, version=3, claim=Claim.NONE))
    assert gained(server, lambda: [server.ask(SHORT, headers=HEADER, **body)]) == {"own": 1}
    set_limits(server, replace(LIMITS, version=4))
    assert gained(server, lambda: [server.ask(SHORT, **body)]) == {"own": 1}


def timed(server: Server, headers: dict[str, str] | None) -> tuple[Answer, float]:
    began = time.monotonic()
    return server.ask(SHORT, headers=headers), time.monotonic() - began


def overload(server: Server, headers: dict[str, str] | None) -> tuple[list[float], float]:
    """Seconds of short requests that come one after another into a flood, and seconds of the whole flood."""
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(FLOOD) + TIGHT_REQUESTS) as pool:
        flood = [pool.submit(server.ask, prompt) for prompt in FLOOD]
        server.wait_for(lambda: server.samples("holdfast:requests_waiting")[("fresh",)] > 80, 60.0, "queue")
        late = [pool.submit(timed, server, headers) for _ in range(TIGHT_REQUESTS)]
        found = [each.result() for each in late]
        assert all(each.result().status == 200 for each in flood)
    assert all(answer.status == 200 for answer, _ in found)
    return [seconds for _, seconds in found], time.monotonic() - began


def test_a_tight_class_is_served_at_once_in_an_overload_and_the_counts_are_the_clients(server: Server) -> None:
    plain, flood_seconds = overload(server, None)
    # Far above what a tight request takes on a machine that is slower by now, and below the wait without a class.
    bound = flood_seconds / 2
    set_limits(server, replace(LIMITS, version=5, classes=(replace(TIGHT, objectives=Objectives(bound, 60.0)),)))
    before = {(name, metric): of_class(server, name, metric) for name in ("", "tight") for metric in METRICS}
    tight, _ = overload(server, HEADER)
    server.wait_for(lambda: of_class(server, "", "requests_unjudged") == 0, 20.0, "verdicts")
    found = {key: of_class(server, *key) - count for key, count in before.items()}
    print(f"flood {flood_seconds:.1f} s; without a class {max(plain):.2f} s, with it {max(tight):.2f} s; {found}")
    assert max(tight) < bound < max(plain)
    assert found == {
        ("", "requests_arrived_total"): len(FLOOD),
        ("", "requests_good_total"): len(FLOOD),
        ("", "requests_bad_total"): 0,
        ("tight", "requests_arrived_total"): TIGHT_REQUESTS,
        ("tight", "requests_good_total"): TIGHT_REQUESTS,
        ("tight", "requests_bad_total"): 0,
    }


def test_a_class_that_is_declared_no_more_is_in_no_count(server: Server) -> None:
    set_limits(server, Limits(9, LOOSE))
    server.wait_for(lambda: of_class(server, "tight") == 0, 5.0, "end of the class")
    assert gained(server, lambda: [server.ask(SHORT, headers=HEADER)]) == {"own": 1}


def test_nothing_failed(server: Server) -> None:
    assert "holdfast: no admission" not in server.log
    assert "holdfast: off" not in server.log

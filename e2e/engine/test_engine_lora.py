"""The real vLLM serves LoRA adapters as the operator renders them: one with objectives is a class of its name."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.engine.adapters import RANK, write_adapter
from e2e.engine.server import ADMISSION, MODEL, Prompt, Server, Settings
from e2e.load.client import ClientSettings, LoadClient
from e2e.load.records import Record
from e2e.patience import patient
from e2e.vllm.environment import Environment
from holdfast.api.llmservice import LLMService
from holdfast.render import Objectives
from holdfast.render.arguments import ADAPTERS_FLAG, engine_flags
from holdfast.render.engine_limits import engine_limits
from holdfast_engine.objectives.request import OWN_NAME_VARIABLE
from holdfast_engine.objectives.rules import Limits
from holdfast_engine.objectives.rules import Objectives as Bounds

pytestmark = pytest.mark.vllm

TTFT_SECONDS = {"tight": 0.2, "loose": 2.0}
QUIET_SECONDS = 0.05
"""A first token takes no longer on two quiet cores while others run and none waits. Busy ones, which may be slower
still in the seconds to come, have bounds that are as many times as long."""
SHORT = Prompt(range(3, 43), 8)
SEQUENCES = 8
PROMPT_TOKENS, OUTPUT_TOKENS = 64, (4, 28)
CALIBRATED, REQUESTS, LOAD = 40, 240, 1.3
MOST_LATER = 1.25
COUNTS = ("requests_arrived_total", "requests_good_total")


def service(folder: Path) -> LLMService:
    """A service with two adapters. Both may be late only by their own objectives."""
    priorities = {"tight": 10, "loose": 0}
    adapters = [
        {"name": name, "uri": str(folder / name), "slo": {"ttft": f"{ttft}s", "priority": priorities[name]}}
        for name, ttft in TTFT_SECONDS.items()
    ]
    spec = {
        "model": {"uri": "/model", "servedName": MODEL, "lora": {"maxRank": RANK, "adapters": adapters}},
        "slo": {"ttft": "10m", "tpot": "1m"},
        "accelerators": [{"name": "cpu"}],
    }
    return LLMService.parse({"metadata": {"name": "lora"}, "spec": spec})


def adapter_arguments(of: LLMService) -> list[str]:
    """What is rendered for adapters."""
    found = engine_flags(of.spec, of.spec.accelerators[0], Objectives(1.0, 1.0), None, with_plugin=True).arguments
    at = found.index(ADAPTERS_FLAG)
    return [*(flag for flag in found if "-lora" in flag.split("=")[0]), *found[at + 1 : at + 1 + len(TTFT_SECONDS)]]


def limits_of(folder: Path) -> Limits:
    of = service(folder)
    return engine_limits(of, of.spec.accelerators[0])


@pytest.fixture(scope="module")
def server(vllm: Environment, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("lora")
    for seed, name in enumerate(TTFT_SECONDS):
        write_adapter(folder / name, seed)
    of = service(folder)
    (folder / "engine-limits").write_text(limits_of(folder).to_json())
    variables = {OWN_NAME_VARIABLE: "holdfast-of-this-test"}
    arguments = (ADMISSION, f"--max-num-seqs={SEQUENCES}", *adapter_arguments(of))
    with Server(Settings(vllm, folder, plugin, arguments=arguments, variables=variables)) as found:
        found.ask_all([SHORT] * 8)
        yield found


def counts(server: Server, name: str) -> list[float]:
    """Arrived and good requests of a class; the label of the service's own is empty, and so left out."""
    return [server.samples(f"holdfast:{count}").get((name,) if name else (), 0.0) for count in COUNTS]


def test_each_adapter_is_a_model_with_answers_of_its_own(server: Server) -> None:
    models = {each["id"]: each["parent"] for each in json.loads(server.get("/v1/models"))["data"]}
    assert models == {MODEL: None, **dict.fromkeys(TTFT_SECONDS, MODEL)}
    answers = [server.ask(SHORT, model=model, temperature=0) for model in models]
    assert all(answer.status == 200 for answer in answers)
    assert len({json.loads(answer.text)["choices"][0]["text"] for answer in answers}) == len(models)
    assert server.ask(SHORT, model="other").status == 404


@pytest.mark.parametrize(
    ("model", "headers", "found"),
    [
        ("tight", None, "tight"),
        ("loose", {"x-slo-class": "tight"}, "loose"),
        (MODEL, {"x-slo-class": "tight"}, ""),
        (MODEL, None, ""),
    ],
)
def test_only_requests_for_an_adapter_are_in_its_class(
    server: Server, model: str, headers: dict[str, str] | None, found: str
) -> None:
    before = {name: counts(server, name)[0] for name in ("", *TTFT_SECONDS)}
    assert server.ask(SHORT, headers=headers, model=model).status == 200
    server.wait_for(lambda: counts(server, found)[0] > before[found], 20.0, "arrival")
    gained = {name: counts(server, name)[0] - count for name, count in before.items()}
    assert gained == {name: float(name == found) for name in before}


async def play(url: str, requests: int, load: float, at_once: int, apart_seconds: float) -> dict[str, list[Record]]:
    """What the clients of both adapters saw, of equally many requests in a random order.

    `load` requests come for each that is answered, up to so many seconds later: so many times what the engine carries,
    on a busy machine, too.
    """
    names, draw = [*TTFT_SECONDS] * (requests // len(TTFT_SECONDS)), random.Random(5)
    draw.shuffle(names)
    seen: dict[str, list[Record]] = {name: [] for name in TTFT_SECONDS}
    async with client_of(url, "tight") as tight, client_of(url, "loose") as loose:
        clients, coming, due = {"tight": tight, "loose": loose}, iter(names), float(at_once)
        running: dict[asyncio.Task[Record], str] = {}

        async def ask(name: str) -> Record:
            await asyncio.sleep(draw.uniform(0.0, apart_seconds))
            return await clients[name].request(PROMPT_TOKENS, draw.randint(*OUTPUT_TOKENS))

        while True:
            for _, name in zip(range(int(due)), coming, strict=False):
                running[asyncio.create_task(ask(name))] = name
            if not running:
                return seen
            answered, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            due = due % 1.0 + load * len(answered)
            for task in answered:
                seen[running.pop(task)].append(task.result())


def slower(limits: Limits, factor: float) -> Limits:
    """The next version of the limits, with longer bounds for adapters."""
    classes = [
        replace(each, objectives=Bounds(factor * each.objectives.ttft_seconds, each.objectives.tpot_seconds))
        for each in limits.classes
    ]
    return replace(limits, version=limits.version + 1, classes=tuple(classes))


def client_of(url: str, model: str) -> LoadClient:
    return LoadClient(ClientSettings(url, model, connections=256, prompt_style="ids"))


def seconds_to_first_token(record: Record) -> float:
    assert (record.status, record.http_status) == ("ok", 200)
    return (record.first_token_at or record.finished_at) - record.sent_at


def bounds_that_fit_this_machine(server: Server) -> tuple[dict[str, float], float]:
    """Put bounds into force, longer ones on a busy machine; these, and seconds of a first token while none waits."""
    alone = asyncio.run(play(server.url, CALIBRATED, load=1.0, at_once=SEQUENCES, apart_seconds=0.1))
    first = statistics.median(seconds_to_first_token(each) for records in alone.values() for each in records)
    limits = slower(limits_of(server.folder), 1.0 if first <= QUIET_SECONDS else patient(2 * first / QUIET_SECONDS))
    server.set_limits(limits.to_json())
    server.wait_for(lambda: server.samples("holdfast:limits")[("version",)] == limits.version, 20.0, "new limits")
    return {each.name: each.objectives.ttft_seconds for each in limits.classes}, first


def test_a_tight_adapter_is_in_time_in_an_overload_and_all_counts_are_the_clients(server: Server) -> None:
    bounds, first = bounds_that_fit_this_machine(server)
    before = {name: counts(server, name) for name in TTFT_SECONDS}
    seen = asyncio.run(play(server.url, REQUESTS, LOAD, at_once=2 * SEQUENCES, apart_seconds=5 * first))
    server.wait_for(lambda: sum(server.samples("holdfast:requests_unjudged").values()) == 0, 20.0, "verdicts")
    waited = {name: [seconds_to_first_token(each) for each in records] for name, records in seen.items()}
    medians = {name: statistics.median(each) for name, each in waited.items()}
    for name, seconds in waited.items():
        arrived, good = (now - then for now, then in zip(counts(server, name), before[name], strict=True))
        # A client whose machine is busy sees its token later than it was written, and never earlier.
        surely, possibly = (sum(each <= factor * bounds[name] for each in seconds) for factor in (1.0, MOST_LATER))
        told = f"{good:g} of {arrived:g} good within {bounds[name]:.2f} s, its clients saw {surely}"
        print(f"alone {first:.3f} s; {name}: {told}; medians {medians}")
        assert arrived == len(seconds) == REQUESTS / 2
        assert surely - 0.01 * REQUESTS / 2 <= good <= possibly + 0.01 * REQUESTS / 2
        assert name != "tight" or good >= 0.95 * arrived
    assert medians["loose"] > 3 * medians["tight"]


def test_nothing_failed(server: Server) -> None:
    assert "holdfast: no admission" not in server.log
    assert "holdfast: off" not in server.log

"""A rung of a ladder on the twin's clock, measured by the same formulas as a rung of a live engine."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from holdfast.domain.service import Slo
from holdfast.enginemodel.scheduler import BLOCK_TOKENS
from holdfast.tools.bench.figures.engine import EngineSample, Reported, reported
from holdfast.tools.bench.figures.results import Results, measure
from holdfast.tools.bench.load.load_generator import LatencyBounds
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord
from holdfast.tools.tune.ladder import LadderLoad
from holdfast.tools.tune.setting import Setting
from holdfast.tools.tune.twin import TwinEngine
from holdfast.twin.arrays.state_arrays import FINISHED, Records
from holdfast.twin.arrays.timers import Floats

LOOK_SECONDS = 0.1
"""Between two looks at the engine."""


def rung(engine: TwinEngine, setting: Setting, load: LadderLoad, slo: Slo, bounds: LatencyBounds) -> Results:
    """Play the load with these limits.

    A closed loop is played as a queue that is there from the start: with as many sequences as requests are under way
    at most, an engine cannot tell the two apart. When each request was sent is worked out afterwards: as one ended.
    """
    sequences = min(setting.max_num_seqs, load.concurrency or setting.max_num_seqs)
    played, seen = _watched(engine, replace(setting, max_num_seqs=sequences), load, slo)
    sent = _sent_at(played, load.concurrency) if load.concurrency else played["at"]
    records = _recorded(played, sent)
    found = measure(records, bounds, load.warm_up_seconds(records), 0.0)
    return replace(found, engine=seen)


def _watched(engine: TwinEngine, setting: Setting, load: LadderLoad, slo: Slo) -> tuple[Records, Reported | None]:
    """All requests after the load, and the peaks of what the engine would report."""
    fleet, number = engine.started(setting, load.workload, slo)
    looks = [_look(fleet.state(number), load.concurrency)]
    while not fleet.done:
        fleet.advance(fleet.now + LOOK_SECONDS)
        looks.append(_look(fleet.state(number), load.concurrency))
    return fleet.requests, reported(looks)


def _look(state: Records, concurrency: int) -> EngineSample:
    one = state[0]
    running, waiting = float(one["running"]), float(one["waiting"])
    blocks = float(one["blocks"])
    return EngineSample(
        kv_usage=1.0 - float(one["free_blocks"]) / blocks,
        running=running,
        # Of a closed loop most of the queue has not been sent yet.
        waiting=min(waiting, concurrency - running) if concurrency else waiting,
        preemptions=float(one["preemptions"]),
        kv_tokens=blocks * BLOCK_TOKENS,
    )


def _sent_at(played: Records, concurrency: int) -> Floats:
    """Moments in seconds: the first at once, and then one as each ends."""
    ended = np.sort(played["last_at"])
    return np.concatenate([np.zeros(concurrency), ended])[: len(played)]


def _recorded(played: Records, sent_at: Floats) -> Sequence[RequestRecord]:
    """As a client would have them, with the first and the last token alone; refused ones took no time."""
    return [_record(index, one, float(sent)) for index, (one, sent) in enumerate(zip(played, sent_at, strict=True))]


def _record(index: int, one: Records, sent: float) -> RequestRecord:
    output = int(one["output"])
    if one["state"] != FINISHED:
        return RequestRecord(index, sent, sent, sent, RequestOutcome.HTTP_ERROR)
    # The first of a closed loop begin where they were sent: rounding must not put them before it.
    moments = [max(sent, float(one["first_at"])), float(one["last_at"])][: min(2, output)]
    return RequestRecord(
        index,
        sent,
        sent,
        moments[-1],
        RequestOutcome.FINISHED,
        array("d", moments),
        prompt_tokens=int(one["prompt"]),
        output_tokens=output,
        counted=True,
        asked_tokens=output,
    )

"""The twin against vLLM on an H200, with and without Holdfast's plugin, at 0.8 C and in overload.

    python benchmarks/twin_h200.py --data DIR      # DIR holds vllm_gpu_h200/

Three comparisons. Engine time: the steps that were logged, one after the other with what each computed, through the
twin's pipeline; the host's factor that meets the sum is found by call, and by run, and reported. The runs at 0.8 C:
the same requests again on the usual host, nothing fitted. Overload: the plugin's runs one after the other, for it keeps
what it has learned. The host changed within that call, so each run has its own factor (from its steps, not from what
clients saw) and its own API server (processor seconds per token, as recorded).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.h200_data import Recorded, RecordedStep, read
from holdfast.emulator.fast_loop import FastLoopScheduler
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.host import USUAL_FRONT_END
from holdfast.enginemodel.pipeline import Pipeline
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.replay import ReplayClock, ReplayedRequest, replay_on
from holdfast.enginemodel.scheduler import Scheduler, SchedulerLimits
from holdfast.twin.arrays.timers import Floats
from holdfast_engine.law.arithmetic import Law
from holdfast_engine.objectives.rules import Limits, Objectives, Overload
from tests.fakes import GivenLimits

MODEL, ACCELERATOR = "Qwen/Qwen3-8B", "h200"
TOLD_LAW = Law(0.006303006038, 1.81495883e-05, 1.75818296e-05, 3.31587437e-08, 1.19478366e-09)
"""What the plugin was told of the engine before it served: the prior of its time."""

LIMITS = SchedulerLimits(max_num_seqs=1024, max_num_batched_tokens=8192, kv_tokens=802_880)
TTFT, TPOT = 0.5, 0.03
CAPACITY_RPS = 44.19
CALM = ("06-stock-0.8", "07-holdfast-Queue-0.8")
PLUGIN = (
    "07-holdfast-Queue-0.8",
    "09-holdfast-Queue-1.5",
    "11-holdfast-Queue-2.0",
    "13-holdfast-Queue-1.25",
    "14-holdfast-Reject-1.5",
    "16-holdfast-Reject-2.0",
)
STOCK = ("12-stock-1.25", "08-stock-1.5", "10-stock-2.0")
CALM_LIMITS = {"ttft": 0.08, "tpot": 0.04, "e2e": 0.04}
STEPS_LIMIT, GOODPUT_LIMIT, COLLAPSE = 0.10, 0.15, 0.3 * CAPACITY_RPS
CUT_COUNTS_FROM_TOKENS = 20
"""A request that ran when the run was cut counts by what it had received from so many tokens on, as in the kit."""


class RecordedSteps:
    """Stands where the pipeline expects a scheduler: hands out the steps of one busy period in their order."""

    def __init__(self, steps: Sequence[RecordedStep]) -> None:
        self._left = list(reversed(steps))
        self.unfinished = len(steps)

    def step(self, now: float) -> RecordedStep:
        return self._left.pop() if self._left else RecordedStep((), 0, 0.0, now, now, empty=True)

    def complete(self, _: RecordedStep, __: float) -> list[object]:
        self.unfinished -= 1
        return []


def recorded_seconds(periods: Sequence[Sequence[RecordedStep]]) -> float:
    """How long the engine was busy."""
    return sum(period[-1].ended_at - period[0].begun_at for period in periods)


def played_seconds(periods: Sequence[Sequence[RecordedStep]], timer: EngineTimer) -> float:
    """How long the twin's pipeline takes for the same steps."""
    seconds = 0.0
    for period in periods:
        pipeline, steps = Pipeline(timer), RecordedSteps(period)
        pipeline.wake(0.0)
        while steps.unfinished:
            now = pipeline.due
            if pipeline.ending:
                pipeline.end(steps, now)  # type: ignore[arg-type]  # it hands out what is asked of a plan
            pipeline.begin(steps, now)  # type: ignore[arg-type]
        seconds += now
    return seconds


def host_factor(periods: Sequence[Sequence[RecordedStep]], gpu: EngineTimer) -> float:
    """The factor on the usual host with which the pipeline takes as long as the engine did."""
    low, high, real = 0.5, 2.0, recorded_seconds(periods)
    for _ in range(12):
        middle = 0.5 * (low + high)
        slower = played_seconds(periods, gpu.with_host(gpu.host.slower(middle))) < real
        low, high = (middle, high) if slower else (low, middle)
    return 0.5 * (low + high)


def usual_timer() -> EngineTimer:
    """Step times of the engine before anything is measured: the shipped table and the usual host."""
    prior = engine_prior(MODEL, ACCELERATOR)
    return prior.timer.with_host(replace(prior.host, front_end=USUAL_FRONT_END))


def plugin_limits(name: str) -> Limits:
    """What the plugin was told in a run."""
    overload = Overload.REJECT if "Reject" in name else Overload.QUEUE
    return Limits(1, Objectives(TTFT, TPOT), overload=overload, prior=TOLD_LAW)


def play_stock(recorded: Recorded, name: str, timer: EngineTimer) -> list[ReplayedRequest]:
    """A run with vLLM's own scheduler, again."""
    return replay_on(Scheduler(LIMITS), recorded.arrivals(name), timer, ReplayClock())


def play_plugin(
    recorded: Recorded, names: Sequence[str], timer_of: Callable[[str], EngineTimer]
) -> dict[str, list[ReplayedRequest]]:
    """Runs with the plugin again, one after the other in one engine."""
    files, clock = GivenLimits(plugin_limits(names[0])), ReplayClock()
    scheduler, found = FastLoopScheduler(LIMITS, files, clock), {}
    for name in names:
        clock.now = max(clock.now, recorded.runs[name]["start_s"])
        files.give(plugin_limits(name))
        found[name] = replay_on(scheduler, recorded.arrivals(name), timer_of(name), clock)
    return found


@dataclass(frozen=True)
class Compared:
    """A run beside the twin's: good requests per second, and relative errors of the means."""

    real_rps: float
    twin_rps: float
    errors: Mapping[str, float]


def compare(recorded: Recorded, name: str, outcomes: Sequence[ReplayedRequest]) -> Compared:
    """What clients saw of the requests in the window, measured and in the twin."""
    chosen, requests, seconds = recorded.judged(name), recorded.requests[name], recorded.window_seconds(name)
    played = [outcomes[index] for index in chosen]
    real = _means([seen(requests[index]) for index in chosen])
    twin = _means([(each.ttft_seconds, each.tpot_seconds, each.e2e_seconds) for each in played])
    good = sum(each.ttft_seconds <= TTFT and each.tpot_seconds <= TPOT for each in played)
    return Compared(
        sum(_is_good(requests[index]) for index in chosen) / seconds,
        good / seconds,
        dict(zip(CALM_LIMITS, (twin / real - 1.0).tolist(), strict=True)),
    )


def seen(request: Mapping[str, Any]) -> tuple[float, float, float]:
    """TTFT, TPOT and E2E of a request; what it did not get is not a number."""
    missing, done = float("nan"), request["end"] == "done"
    if request["first"] is None:
        return missing, missing, missing
    ttft = request["first"] - request["at"]
    if not done:
        return ttft, missing, missing
    return ttft, (request["last"] - request["first"]) / (request["output"] - 1), request["last"] - request["at"]


def _means(seen: Sequence[tuple[float, float, float]]) -> Floats:
    columns = np.array(seen)
    return np.nanmean(np.where(np.isfinite(columns), columns, np.nan), axis=0)  # type: ignore[no-any-return]


def _is_good(request: Mapping[str, Any]) -> bool:
    if request["first"] is None or request["first"] - request["at"] > TTFT:
        return False
    cut = request["end"] == "cut" and request["tokens"] >= CUT_COUNTS_FROM_TOKENS
    tpot = (request["last"] - request["first"]) / max(1, request["tokens"] - 1)
    return bool((request["end"] == "done" or cut) and tpot <= TPOT)


@dataclass(frozen=True)
class StepsCompared:
    """Engine time of a run: seconds measured, error with the factor of its call, and its own factor."""

    call: int
    seconds: float
    error: float
    factor: float


def compare_steps(recorded: Recorded) -> tuple[dict[int, float], dict[str, StepsCompared]]:
    """The host's factor by call, and each run with it."""
    gpu, factors, found = usual_timer(), dict[int, float](), dict[str, StepsCompared]()
    # The others have too few steps that the host bounds to tell its factor.
    chosen = [name for name, run in recorded.runs.items() if run["arrivals_end"] is not None]
    for call in sorted({recorded.runs[name]["call"] for name in chosen}):
        mine = [name for name in chosen if recorded.runs[name]["call"] == call]
        factors[call] = host_factor([period for name in mine for period in recorded.periods[name]], gpu)
        timer = gpu.with_host(gpu.host.slower(factors[call]))
        for name in mine:
            periods = recorded.periods[name]
            real = recorded_seconds(periods)
            error = played_seconds(periods, timer) / real - 1.0
            found[name] = StepsCompared(call, real, error, host_factor(periods, gpu))
    return factors, found


def measured_timer(recorded: Recorded, steps: Mapping[str, StepsCompared], name: str) -> EngineTimer:
    """The engine of a run in overload: its own host factor, and the processor seconds of its API server."""
    timer, factor = usual_timer(), steps[name].factor
    front_end = USUAL_FRONT_END.slower(recorded.token_seconds(name) / USUAL_FRONT_END.token_seconds)
    return timer.with_host(replace(timer.host.slower(factor), front_end=front_end))


def calm(recorded: Recorded) -> dict[str, Compared]:
    """The two runs at 0.8 C on the usual host."""
    stock, ours = CALM
    played = {stock: play_stock(recorded, stock, usual_timer())}
    played |= play_plugin(recorded, [ours], lambda _: usual_timer())
    return {name: compare(recorded, name, outcomes) for name, outcomes in played.items()}


def overload(recorded: Recorded, steps: Mapping[str, StepsCompared]) -> dict[str, Compared]:
    """All other runs, with what was measured of their hosts."""

    def timer_of(name: str) -> EngineTimer:
        return measured_timer(recorded, steps, name)

    played = play_plugin(recorded, PLUGIN, timer_of)
    played |= {name: play_stock(recorded, name, timer_of(name)) for name in STOCK}
    return {name: compare(recorded, name, outcomes) for name, outcomes in played.items() if name not in CALM}


def calm_held(found: Mapping[str, Compared]) -> bool:
    """Whether the runs at 0.8 C are within their limits."""
    return all(abs(each.errors[name]) <= limit for each in found.values() for name, limit in CALM_LIMITS.items())


def overload_held(found: Mapping[str, Compared]) -> bool:
    """Whether goodput that was queued for is met at 1.25 and 1.5 C, and its collapse at 2 C is seen."""
    near = (found["13-holdfast-Queue-1.25"], found["09-holdfast-Queue-1.5"])
    met = all(abs(each.twin_rps / each.real_rps - 1.0) <= GOODPUT_LIMIT for each in near)
    return met and found["11-holdfast-Queue-2.0"].twin_rps < COLLAPSE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    recorded = read(parser.parse_args().data)
    factors, steps = compare_steps(recorded)
    print("| run | call | engine busy s | twin, one factor by call % | own factor |\n|---|---|---|---|---|")
    for name, each in steps.items():
        print(f"| {name} | {each.call} | {each.seconds:.2f} | {100 * each.error:+.1f} | {each.factor:.2f} |")
    print("\nhost factors by call:", ", ".join(f"{call}: {factor:.3f}" for call, factor in factors.items()))
    print("\n| run | good/s real | twin | TTFT mean % | TPOT mean % | E2E mean % |\n|---|---|---|---|---|---|")
    slow, fast = calm(recorded), overload(recorded, steps)
    for name, compared in (slow | fast).items():
        # In overload clients gave up, and the twin's do not: only what both finished compares.
        shown = [compared.errors[each] if name in slow or each == "tpot" else None for each in CALM_LIMITS]
        cells = " | ".join("" if error is None else f"{100 * error:+.1f}" for error in shown)
        print(f"| {name} | {compared.real_rps:.1f} | {compared.twin_rps:.1f} | {cells} |")
    ours = calm_held({CALM[1]: slow[CALM[1]]}) and overload_held(fast)
    print(
        f"\nWith the plugin {'all' if ours else '**not all**'} within the limits (the record's plugin is of 67a7e69)."
    )
    held = calm_held({CALM[0]: slow[CALM[0]]}) and all(abs(each.error) <= STEPS_LIMIT for each in steps.values())
    print(f"Steps, and requests without the plugin: {'all' if held else '**not all**'} within the limits.")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

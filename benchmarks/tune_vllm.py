"""`holdfast tune` against vLLM's auto-tune recipe on real vLLM: trials, seconds, and what the choice is worth.

    python -m benchmarks.tune_vllm --out tuned    # half an hour on a quiet machine; again: goes on

The engine is that of `benchmarks.engine_overload --paced`: vLLM for CPUs on one core, whose steps last as long as those
of an accelerator by the project's step law, and the client has the other core. The pace is 1.36 times what the model
that proposes believes of Qwen2.5-3B on an L4 (`slower` in benchmarks/tune.py). One engine with the plugin serves all,
its limits are set live and its own adapting is off, so that settings differ by their limits and nothing else.

Ours is the command itself, with the grid of all powers of two. The recipe is that of benchmarks/tune.py, sent by the
same client; each of its settings is charged the seconds that this engine took to start, since vLLM's script restarts.

What a choice is worth is the rate at which 95 % of 400 requests behind a warm-up are good, the same lengths and moments
for all settings: of ours and of the recipe's, to 3 %. Every other setting of the recipe's grid is sent 3 % more than
the better one carries: where it holds that, its rate is looked for as well.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_overload.__main__ import PACE
from benchmarks.engine_overload.cells import CONVERSATION, FixedLimits
from benchmarks.engine_overload.engines import Cores, Engine, Paced, Start, on_core, two_cores
from benchmarks.engine_overload.trace import quantiles
from benchmarks.engine_overload.vllm_engines import VllmEngines
from benchmarks.tune import RECIPE_GRID, RECIPE_REQUESTS, SECONDS, SLOS, TRIALS, Spent, recipe
from e2e.engine.server import MODEL
from e2e.vllm.environment import environment
from holdfast.cli.bench import allow_connections
from holdfast.domain.service import Slo
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.tools.bench.figures import definitions
from holdfast.tools.bench.figures.definitions import GOOD
from holdfast.tools.bench.generators.client import OwnGenerator
from holdfast.tools.bench.load.load_generator import Endpoint, LatencyBounds, Load, Planned, PromptKind
from holdfast.tools.tune.engine_port import TrialRequests
from holdfast.tools.tune.limits import LimitsFile
from holdfast.tools.tune.setting import Setting
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.replica.capacity import LengthPairs
from holdfast_engine.objectives.rules import Limits, Objectives

SLOWER = 1.36
SLO_NAME = "2 s, 100 ms, 95 %"
SLO = SLOS[SLO_NAME]
STARTED = Setting(256, 8192)
PAIRS, COUNTED, WARM_UP, SEED, WORTH_SEED = 5_000, 400, 100, 1, 77
RESOLUTION, STRIDE = 1.03, 1.06
WORTH = 0.95
"""The bar on real vLLM: of the best."""

LEAST_SHARE = 0.1
"""Of the first guess: a setting that does not carry so much counts as one that carries nothing."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    parts = [options.out / f"{name}.json" for name in ("ours", "recipe", "worth")]
    if not all(part.exists() for part in parts):
        _measure(options.out, *parts)
    ours, theirs, worth = (json.loads(part.read_text()) for part in parts)
    return _told(_spent(ours), _spent(theirs), worth)


def _measure(out: Path, ours: Path, theirs: Path, worth: Path) -> None:
    """Make the parts that are missing."""
    allow_connections()
    cores, drawn = two_cores(), lengths()
    with (
        tempfile.TemporaryDirectory(prefix="tune-vllm-") as folder,
        started(Path(folder), cores) as (engines, engine, seconds),
        on_core(cores.client),
    ):
        rig = Rig(engine, Path(folder), drawn)
        if not ours.exists():
            spent = rig.tuned(out / "command.json")
            _keep(ours, replace(spent, seconds=spent.seconds + seconds))
        if not theirs.exists():
            _keep(theirs, recipe(rig.play, drawn, SEED, RECIPE_REQUESTS, seconds))
        chosen = [_spent(json.loads(part.read_text())) for part in (ours, theirs)]
        found = rig.worth(chosen) | {"beyond_pace_share": engines.paced(engine).beyond_share_since(Paced())}
        worth.write_text(json.dumps(found, indent=1) + "\n")


def lengths() -> LengthPairs:
    """Pairs of the conversation of benchmarks.engine_overload."""
    draw = np.random.default_rng(4)
    columns = (np.array(quantiles(each, PAIRS), np.int64) for each in (CONVERSATION.prompt, CONVERSATION.output))
    prompts, outputs = (draw.permutation(column) for column in columns)
    return LengthPairs(prompts, outputs)


@contextmanager
def started(folder: Path, cores: Cores) -> Iterator[tuple[VllmEngines, Engine, float]]:
    """An engine with the plugin, by whom it was started, and the seconds that it took."""
    law = engine_prior(*PACE, {}, 1, None).law
    engines = VllmEngines(environment(), folder, cores, StepLaw(*(SLOWER * each for each in asdict(law).values())))
    start = Start("plugin", FixedLimits(STARTED.max_num_seqs, STARTED.max_num_batched_tokens))
    inside, began = folder / "server", time.monotonic()
    inside.mkdir()
    fixed = Limits(1, Objectives(SLO.ttft_seconds, SLO.tpot_seconds), adapt=False)
    with engines.start(start, inside, fixed.to_json()) as engine:
        yield engines, engine, time.monotonic() - began


@dataclass(frozen=True)
class Rig:
    """Sends loads to the one engine."""

    engine: Engine
    folder: Path
    drawn: LengthPairs

    @property
    def limits_file(self) -> Path:
        """What the engine's plugin reads."""
        return self.engine.folder / "engine-limits"

    def tuned(self, told: Path) -> Spent:
        """What the command finds, from a manifest and a file of lengths."""
        manifest, trace = self.folder / "service.yaml", self.folder / "lengths.csv"
        manifest.write_text(json.dumps(_manifest(SLO)))
        with trace.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("arrival_seconds", "prompt_tokens", "output_tokens"))
            rows.writerows(zip(range(PAIRS), self.drawn.prompt_tokens, self.drawn.output_tokens, strict=True))
        command = ("tune", f"--url={self.engine.url}", f"--limits-file={self.limits_file}", f"--filename={manifest}")
        load = (f"--lengths={trace}", "--prompts=ids", f"--accelerator={PACE[1]}", f"--seed={SEED}", f"--json={told}")
        # The client shares its core with nobody, but the host may take that away for a moment.
        lag = "--max-client-lag=100ms"
        told.unlink(missing_ok=True)
        done = subprocess.run([sys.executable, "-m", "holdfast.cli.main", *command, *load, lag], check=False)
        if not told.exists():
            raise SystemExit(f"holdfast tune ended with {done.returncode} and found nothing")
        found = json.loads(told.read_text())["results"][0]
        best = found["best"] and Setting(found["best"]["max_num_seqs"], found["best"]["max_num_batched_tokens"])
        return Spent(best, (found["best"] or {}).get("rate_rps", 0.0), len(found["trials"]), found["seconds"])

    def play(self, setting: Setting, load: Workload) -> tuple[bool, float]:
        """Whether the objective was attained, and seconds until the last token."""
        share, seconds = asyncio.run(self._sent(setting, load, 0))
        print(f"  {setting}: {len(load)} requests, {100 * share:.1f} % good, {seconds:.0f} s", file=sys.stderr)
        return share >= SLO.objective, seconds

    def worth(self, chosen: Sequence[Spent]) -> dict[str, Any]:
        """Requests per second by setting, as far as it could be the best, and the same load three times."""
        found: dict[Setting, float] = {}
        for spent in chosen:
            if spent.setting and spent.setting not in found:
                found[spent.setting] = self._carried(spent.setting, spent.rate_rps)
        if not found:
            raise SystemExit("neither found limits that hold the objective: there is nothing to compare")
        below = []
        for setting in RECIPE_GRID:
            best = max(found.values())
            if setting not in found and self.holds(setting, RESOLUTION * best):
                found[setting] = self._carried(setting, RESOLUTION * best)
            elif setting not in found:
                below.append({"setting": asdict(setting), "misses_rps": RESOLUTION * best})
        most = max(found, key=found.__getitem__)
        again = [self._share(most, found[most]) for _ in range(3)]
        rates = [{"setting": asdict(setting), "rate_rps": rate} for setting, rate in found.items()]
        return {"rates": rates, "below": below, "same_load": {"rate_rps": found[most], "good": again}}

    def holds(self, setting: Setting, rate_rps: float) -> bool:
        """Whether the objective is attained at a rate."""
        return self._share(setting, rate_rps) >= SLO.objective

    def _carried(self, setting: Setting, guess_rps: float) -> float:
        """The middle of a bracket of 3 %; 0 where it carries next to nothing."""
        held, missed, rate = 0.0, math.inf, guess_rps
        while rate >= LEAST_SHARE * guess_rps:
            if self.holds(setting, rate):
                held = rate
            else:
                missed = rate
            if held and missed / held <= 1.01 * RESOLUTION:
                return math.sqrt(held * missed)
            rate = math.sqrt(held * missed) if held and missed < math.inf else rate * STRIDE ** (1 if held else -1)
        return 0.0

    def _share(self, setting: Setting, rate_rps: float) -> float:
        load = TrialRequests(self.drawn, COUNTED, WARM_UP, seed=WORTH_SEED).at(rate_rps, 0.0)
        share, _ = asyncio.run(self._sent(setting, load.requests, load.first))
        print(f"  {setting}: {rate_rps:.2f} req/s, {100 * share:.1f} % good", file=sys.stderr)
        return share

    async def _sent(self, setting: Setting, load: Workload, first: int) -> tuple[float, float]:
        """Share of good requests from number `first` on, and seconds until all were answered."""
        endpoint = Endpoint(self.engine.url, MODEL, prompts=PromptKind.IDS)
        bounds = LatencyBounds(SLO.ttft_seconds, SLO.tpot_seconds)
        await LimitsFile(self.limits_file, endpoint, bounds).apply(setting)
        planned = [
            Planned(at, prompt, output)
            for at, prompt, output in zip(
                load.at.tolist(), load.prompt_tokens.tolist(), load.output_tokens.tolist(), strict=True
            )
        ]
        began = time.monotonic()
        run = await OwnGenerator().run(endpoint, Load(planned, len(planned), drain_seconds=300.0), lambda record: None)
        seconds = time.monotonic() - began
        counted = [record for record in run.records if record.index >= first]
        return sum(definitions.verdict(record, bounds) == GOOD for record in counted) / len(counted), seconds


def _manifest(slo: Slo) -> dict[str, Any]:
    objectives = {"ttft": f"{slo.ttft_seconds:g}s", "tpot": f"{1000 * slo.tpot_seconds:g}ms"}
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "tuned", "namespace": "default"},
        "spec": {
            "model": {"uri": PACE[0]},
            "slo": {**objectives, "objective": f"{100 * slo.objective:g}%"},
            "accelerators": [{"name": PACE[1]}],
        },
    }


def _keep(path: Path, spent: Spent) -> None:
    path.write_text(json.dumps(asdict(spent), indent=1) + "\n")


def _spent(told: dict[str, Any]) -> Spent:
    return Spent(**{**told, "setting": told["setting"] and Setting(**told["setting"])})


def _told(ours: Spent, theirs: Spent, worth: dict[str, Any]) -> int:
    """A table, and whether the bars are kept."""
    rates = {Setting(**each["setting"]): each["rate_rps"] for each in worth["rates"]}
    best = max(rates.values())
    print("| | choice | carries, req/s | of the best | told / carried | trials | s |\n|---|---|---|---|---|---|---|")
    for name, spent in (("holdfast tune", ours), ("the recipe", theirs)):
        carried = rates.get(spent.setting, 0.0) if spent.setting else 0.0
        told = f"{spent.rate_rps / carried:.3f}" if carried else "-"
        cells = (name, str(spent.setting), f"{carried:.2f}", f"{carried / best:.3f}", told, str(spent.trials))
        print(f"| {' | '.join(cells)} | {spent.seconds:.0f} |")
    trials, seconds = ours.trials / theirs.trials, ours.seconds / theirs.seconds
    share = rates.get(ours.setting, 0.0) / best if ours.setting else 0.0
    for each in worth["below"]:
        print(f"{Setting(**each['setting'])} misses the objective at {each['misses_rps']:.2f} req/s")
    same = ", ".join(f"{100 * good:.1f}" for good in worth["same_load"]["good"])
    print(f"The host took longer than the pace by {worth['beyond_pace_share']:.2%}")
    print(f"The same load of {worth['same_load']['rate_rps']:.2f} req/s, three times: {same} % good")
    print(
        f"Of the recipe's: trials {trials:.2f} (bar {TRIALS}), seconds {seconds:.2f} (bar {SECONDS}); worth {share:.3f}"
    )
    return 0 if share >= WORTH and trials <= TRIALS and seconds <= SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())

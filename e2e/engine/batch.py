"""An engine with a Batch class, for the tests of batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.engine.server import ADMISSION, Prompt, Server, Settings
from e2e.vllm.environment import Environment
from holdfast_engine.objectives.request import OWN_NAME_VARIABLE
from holdfast_engine.objectives.rules import UNBOUNDED, Kind, Limits, Objectives, RequestClass

NIGHT = RequestClass("night", UNBOUNDED, kind=Kind.BATCH)
LIMITS = Limits(1, Objectives(ttft_seconds=60.0, tpot_seconds=60.0), classes=(NIGHT,))
BATCH = {"x-slo-class": "night"}
SEQUENCES = 8
SHORT = Prompt(range(3, 43), 4)


@contextmanager
def engine_with_batch(vllm: Environment, plugin: Path, folder: Path) -> Iterator[Server]:
    """A warm engine of few sequences that knows the class."""
    (folder / "engine-limits").write_text(LIMITS.to_json())
    variables = {OWN_NAME_VARIABLE: "holdfast-of-this-test"}
    arguments = (ADMISSION, f"--max-num-seqs={SEQUENCES}")
    with Server(Settings(vllm, folder, plugin, arguments=arguments, variables=variables)) as found:
        found.ask_all([SHORT] * 8)
        yield found


def total(server: Server, metric: str) -> float:
    """The sum of a metric's series."""
    return sum(server.samples(metric).values())

"""What `kubectl get llms` prints at a few moments of the demo, as the picture of a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import io
import pathlib
import re
import subprocess
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from e2e.demo.scenario import Scenario
from e2e.kubectl import KubectlError

COMMAND = ("get", "llms")
PICTURE = "kubectl.svg"

_SOON_SECONDS = 20.0  # into the step: replicas are ordered, and none of them serves yet
_BEFORE_SECONDS = 10.0  # a turn of the load
_FONT_FROM_ELSEWHERE = re.compile(r"@font-face\s*{.*?}\s*", re.DOTALL)

Screen = tuple[str, str]
"""What goes on, and what was printed."""


def moments(scenario: Scenario) -> list[tuple[float, str]]:
    """Return seconds of load and what can be seen then, in the order of time."""
    begins, ends = scenario.step_start_seconds, scenario.step_end_seconds
    soon = min(begins + _SOON_SECONDS, ends)
    return [
        (max(0.0, begins - _BEFORE_SECONDS), "base load"),
        (soon, f"{soon - begins:.0f} s after the load went to x{scenario.factor:g}"),
        (max(soon, ends - _BEFORE_SECONDS), "the end of the high load"),
        (max(ends, scenario.duration_seconds - _BEFORE_SECONDS), "the end of the run"),
    ]


async def watch(kubectl: Callable[..., str], scenario: Scenario, seen: list[Screen]) -> None:
    """Add what kubectl prints at each of the moments from now on; one that it fails at is left out."""
    begun = asyncio.get_running_loop().time()
    for seconds, caption in moments(scenario):
        await asyncio.sleep(begun + seconds - asyncio.get_running_loop().time())
        with contextlib.suppress(KubectlError, OSError, subprocess.SubprocessError):
            seen.append((caption, await asyncio.to_thread(kubectl, *COMMAND)))


def write(seen: Sequence[Screen], file: pathlib.Path) -> None:
    """Draw the terminal; nothing is fetched by whoever looks at it, and nothing is drawn of nothing."""
    if not seen:
        return
    width = max(len(line) for _, text in seen for line in text.splitlines())
    console = Console(record=True, file=io.StringIO(), width=max(width, 80), color_system="truecolor")
    for caption, text in seen:
        console.print(Text(f"# {caption}", style="dim"))
        console.print(Text(f"$ kubectl {' '.join(COMMAND)}", style="bold"))
        console.print(Text(text))
    drawn = console.export_svg(title="make demo", unique_id="demo")
    file.write_text(_FONT_FROM_ELSEWHERE.sub("", drawn), encoding="utf-8")

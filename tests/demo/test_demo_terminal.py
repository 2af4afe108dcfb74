"""The picture of `kubectl get llms`: taken when there is something to see, and drawn without help from elsewhere."""

import asyncio
import pathlib
import xml.etree.ElementTree as ElementTree

from hypothesis import given
from hypothesis import strategies as st

from e2e.demo import terminal
from e2e.demo.scenario import Scenario
from e2e.kubectl import KubectlError

SHORT = Scenario(before_seconds=0.02, step_seconds=0.02, after_seconds=0.02)
TABLE = "NAME   READY   REPLICAS\nchat   True    2\n"
spans = st.floats(0.0, 3600.0)


@given(before=spans, step=spans, after=spans)
def test_moments_lie_within_the_load_and_in_the_order_of_time(before: float, step: float, after: float) -> None:
    scenario = Scenario(before_seconds=before, step_seconds=step, after_seconds=after)
    seconds = [at for at, _ in terminal.moments(scenario)]
    assert seconds == sorted(seconds)
    assert seconds[0] >= 0.0
    assert seconds[-1] <= scenario.duration_seconds


def test_a_look_that_fails_costs_that_look_alone() -> None:
    answers = iter([TABLE, KubectlError("the server is busy"), TABLE, TABLE])

    def kubectl(*arguments: str) -> str:
        assert arguments == ("get", "llms")
        answer = next(answers)
        if isinstance(answer, KubectlError):
            raise answer
        return answer

    seen: list[terminal.Screen] = []
    asyncio.run(terminal.watch(kubectl, SHORT, seen))
    captions = [caption for _, caption in terminal.moments(SHORT)]
    assert seen == [(captions[0], TABLE), (captions[2], TABLE), (captions[3], TABLE)]


def test_the_picture_shows_what_was_printed_and_loads_nothing(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "kubectl.svg"
    terminal.write([("base load", TABLE), ("later <b>", TABLE.replace("2", "4"))], file)
    drawn = file.read_text()
    words = " ".join(ElementTree.fromstring(drawn).itertext()).replace("\N{NO-BREAK SPACE}", " ")
    assert "$ kubectl get llms" in words
    assert "chat   True    4" in words
    assert "# later <b>" in words
    assert "url(" not in drawn.replace("url(#", "")
    assert "font-face" not in drawn


def test_no_picture_is_drawn_of_nothing(tmp_path: pathlib.Path) -> None:
    terminal.write([], tmp_path / "kubectl.svg")
    assert not any(tmp_path.iterdir())

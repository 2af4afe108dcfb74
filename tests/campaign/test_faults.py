"""How the faults of a schedule are brought about: in their order, and none is left when one cannot be."""

from __future__ import annotations

import pytest

from e2e.campaign.faults import Act, bring_about
from e2e.campaign.schedule import KINDS, Fault


class Diary:
    """Faults that write down when they begin and end."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def act(self, name: str, replica: str = "", fails: bool = False) -> Act:
        def begin() -> None:
            self.lines.append(f"{name} begins")
            if fails:
                raise OSError("nobody answers")

        return Act(begin, lambda: self.lines.append(f"{name} ends"), replica)


@pytest.fixture
def diary() -> Diary:
    return Diary()


def fault(at_seconds: float, lasts_seconds: float) -> Fault:
    return Fault(KINDS[0], at_seconds, lasts_seconds)


def test_faults_begin_and_end_in_the_order_of_their_times(diary: Diary) -> None:
    bring_about(
        [
            (fault(0.0, 0.05), diary.act("first")),
            (fault(0.02, 0.0), diary.act("short")),
            (fault(0.01, 0.1), diary.act("last")),
        ]
    )
    assert diary.lines == ["first begins", "last begins", "short begins", "short ends", "first ends", "last ends"]


def test_only_an_engine_that_is_taken_away_is_a_harm(diary: Diary) -> None:
    (harm,) = bring_about([(fault(0.0, 0.05), diary.act("engine", "chat-0")), (fault(0.0, 0.0), diary.act("lie"))])
    assert harm.replica == "chat-0"
    assert harm.until - harm.since >= 0.05


def test_what_has_begun_ends_where_another_fault_cannot_be_brought_about(diary: Diary) -> None:
    with pytest.raises(OSError, match="nobody answers"):
        bring_about([(fault(0.0, 60.0), diary.act("long")), (fault(0.01, 60.0), diary.act("broken", fails=True))])
    assert diary.lines == ["long begins", "broken begins", "long ends", "broken ends"]

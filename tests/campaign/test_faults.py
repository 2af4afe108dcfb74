"""How the faults of a schedule are brought about: in their order, and none is left when one cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.campaign.faults import Act, bring_about, often_restarted
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


def pod(name: str, *restarts: int) -> dict[str, Any]:
    statuses = [{"restartCount": each} for each in restarts]
    return {"metadata": {"name": name}, "status": {"containerStatuses": statuses} if statuses else {}}


def test_pods_that_earlier_schedules_killed_twice_are_replaced_before_the_next() -> None:
    pods = [pod("new", 0), pod("killed-once", 1), pod("killed-twice", 2), pod("one-container", 0, 5), pod("pending")]
    assert often_restarted(pods) == ["killed-twice", "one-container"]

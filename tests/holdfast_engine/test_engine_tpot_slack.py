"""How far decoding sequences are ahead of their objective, against a plain account of every sequence."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_engine.law.arithmetic import Law, tokens_per_step
from holdfast_engine.queue.tpot_slack import Pace

TPOT = 0.05
LAW = Law(0.01, 1e-4, 1e-4, 0.0, 0.0)


class Account:
    """Every sequence's first token and number of tokens."""

    def __init__(self) -> None:
        self.now, self.pace, self.tokens, self.began = 0.0, Pace(), dict[str, int](), dict[str, float]()

    def step(self, seconds: float) -> None:
        self.now += seconds
        self.pace.step(self.now)
        for name in self.tokens:
            self.tokens[name] += 1

    def start(self, name: str) -> None:
        self.tokens[name], self.began[name] = 1, self.now
        self.pace.start(name, self.now)

    def end(self, name: str) -> None:
        self.tokens.pop(name, None)
        self.pace.end(name)

    def least_ahead(self, tpot: float = TPOT) -> float:
        ahead = [tpot * (count - 1) - (self.now - self.began[name]) for name, count in self.tokens.items()]
        return max(0.0, min(ahead, default=math.inf))


def after_long_answers() -> Account:
    """Every answer so far took forty short steps."""
    account = Account()
    for number in range(32):
        account.start(f"long{number}")
    for _ in range(40):
        account.step(0.02)
    for number in range(32):
        account.end(f"long{number}")
    return account


def test_fast_steps_are_saved_up_and_a_slow_one_spends_them() -> None:
    account = Account()
    account.start("a")
    for _ in range(10):
        account.step(0.02)
    assert account.pace.spare_seconds(TPOT, account.now) == pytest.approx(10 * 0.03)
    account.step(0.25)
    assert account.pace.spare_seconds(TPOT, account.now) == pytest.approx(0.1)


def test_a_new_sequence_has_nothing_to_spare_and_speaks_for_all() -> None:
    account = Account()
    account.start("a")
    for _ in range(10):
        account.step(0.02)
    account.start("b")
    assert account.pace.spare_seconds(TPOT, account.now) == 0.0
    account.end("b")
    assert account.pace.spare_seconds(TPOT, account.now) == pytest.approx(0.3)


def test_time_that_passes_counts_before_the_step_ends() -> None:
    account = Account()
    account.start("a")
    account.step(0.01)
    assert account.pace.spare_seconds(TPOT, account.now + 0.03) == pytest.approx(0.01)


def test_where_nothing_decodes_there_is_no_bound() -> None:
    assert Pace().spare_seconds(TPOT, 5.0) == math.inf


def test_where_answers_are_long_a_new_sequence_may_count_on_steps_to_come() -> None:
    account = after_long_answers()
    account.start("new")
    spare = account.pace.spare_seconds(TPOT, account.now)
    assert spare == pytest.approx((account.pace.surest_steps - 1) * 0.03, rel=0.05)
    assert spare > 0.2


def test_where_a_few_answers_are_short_it_may_not() -> None:
    account = Account()
    for number in range(32):
        account.start(f"r{number}")
        for _ in range(1 if number % 10 == 0 else 40):
            account.step(0.02)
        account.end(f"r{number}")
    account.start("new")
    assert account.pace.spare_seconds(TPOT, account.now) == 0.0


def test_what_a_new_sequence_lent_is_paid_back_while_it_has_steps_to_come() -> None:
    """Steps grow longer than those it counted on: without shorter ones it would end behind its objective."""
    account = after_long_answers()
    account.start("new")
    sure = account.pace.surest_steps
    for _ in range(sure):
        account.step(max(0.02, 0.9 * (TPOT + account.pace.spare_seconds(TPOT, account.now))))
    assert account.now - account.began["new"] <= sure * TPOT


def test_what_an_old_sequence_is_behind_by_is_asked_of_nobody() -> None:
    account = Account()
    account.start("late")
    account.step(5.0)
    assert account.pace.spare_seconds(TPOT, account.now) == 0.0


stories = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.floats(0.001, 0.2)),
        st.tuples(st.sampled_from(["start", "end"]), st.integers(0, 12)),
        st.tuples(st.just("tpot"), st.floats(0.01, 0.1)),
    ),
    max_size=120,
)


@given(stories)
def test_without_learnt_answers_it_promises_what_the_account_says(
    story: list[tuple[str, float]],
) -> None:
    account, tpot = Account(), TPOT
    for kind, number in story:
        name = f"r{number}"
        if kind == "step":
            account.step(number)
        elif kind == "start" and name not in account.tokens:
            account.start(name)
        elif kind == "end":
            account.end(name)
        elif kind == "tpot":
            tpot = number
        spare, exact = account.pace.spare_seconds(tpot, account.now), account.least_ahead(tpot)
        if account.pace.surest_steps <= 1 and math.isfinite(exact):
            assert spare == pytest.approx(exact, abs=1e-9)
        assert len(account.pace) == len(account.tokens)


def test_nothing_is_kept_of_sequences_that_are_gone() -> None:
    account = Account()
    account.start("stays")
    for number in range(3000):
        account.start(f"r{number}")
        account.step(0.02)
        account.pace.spare_seconds(TPOT, account.now)
        account.end(f"r{number}")
    assert len(account.pace) == 1
    assert len(account.pace._heap) + len(account.pace._young) < 80


def test_what_is_spare_goes_into_prefill() -> None:
    def tokens(spare: float) -> int:
        return tokens_per_step(
            LAW, TPOT, decodes=10, kv_tokens=0.0, pairs_per_prefill=0.0, most=2048, spare_seconds=spare
        )

    assert tokens(0.05) == pytest.approx(tokens(0.0) + 450, abs=1)
    assert tokens(math.inf) == 2048

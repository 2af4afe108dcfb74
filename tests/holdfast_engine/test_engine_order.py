from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast_engine.queue.order import DeadlineOrder, Place


def place(deadline: float, *, arrived: float = 0.0, needs: float = 0.0, tokens: int = 100) -> Place:
    return Place(deadline, deadline - needs, arrived, tokens)


def order_of(**places: Place) -> DeadlineOrder[str]:
    order: DeadlineOrder[str] = DeadlineOrder()
    for name, found in places.items():
        order.add(name, found)
    return order


def drained(order: DeadlineOrder[str]) -> list[str]:
    return [order.take() for _ in range(len(order))]


def test_requests_in_time_start_by_deadline() -> None:
    order = order_of(b=place(2.0), a=place(1.0), c=place(3.0))
    order.advance(0.5)
    assert list(order) == drained(order) == ["a", "b", "c"]


def test_late_requests_start_after_the_others_and_the_oldest_first() -> None:
    order = order_of(late=place(1.0, arrived=0.2), older=place(1.5, arrived=0.1), fresh=place(9.0))
    order.advance(2.0)
    assert list(order) == drained(order) == ["fresh", "older", "late"]


def test_a_request_is_late_when_it_could_not_be_ready_any_more() -> None:
    order = order_of(long=place(1.0, needs=0.8), short=place(1.1, needs=0.1))
    order.advance(0.5)
    assert drained(order) == ["short", "long"]


def test_late_requests_get_their_share_while_others_can_be_in_time() -> None:
    order: DeadlineOrder[str] = DeadlineOrder(late_share=0.1)
    for number in range(10):
        order.add(f"late{number}", place(1.0, arrived=number))
    order.advance(2.0)
    for number in range(100):
        order.add(f"fresh{number}", place(100.0 + number))
    taken = [order.take() for _ in range(60)]
    late = [name for name in taken if name.startswith("late")]
    assert len(late) in (5, 6)
    assert late == sorted(late)


def test_idle_times_save_up_no_share_for_late_requests() -> None:
    order: DeadlineOrder[str] = DeadlineOrder()
    order.advance(1.0)
    for number in range(1000):
        order.add(f"fresh{number}", place(100.0))
        order.take()
    order.add("late", place(0.5))
    order.add("fresh", place(100.0))
    assert drained(order) == ["fresh", "late"]


def test_preempted_requests_keep_their_place_before_all_others() -> None:
    order = order_of(fresh=place(5.0))
    order.put_first("younger")
    order.put_first("older")
    assert list(order) == drained(order) == ["older", "younger", "fresh"]


def test_a_blocked_late_request_earns_nothing_by_being_looked_at() -> None:
    order = order_of(late=place(0.5), other=place(0.6, arrived=0.1))
    for step in range(1, 50):
        order.advance(float(step))
        blocked = order.take()
        order.put_back(blocked, place(0.5))
    order.add("fresh", place(1000.0))
    assert order.take() == "fresh"


def test_time_never_runs_backwards() -> None:
    order = order_of(late=place(1.0), fresh=place(9.0))
    order.advance(5.0)
    order.advance(0.0)
    assert drained(order) == ["fresh", "late"]


def test_by_arrival_is_what_a_plain_queue_would_hold() -> None:
    order = order_of(third=place(1.0, arrived=3.0), second=place(9.0, arrived=2.0))
    order.put_first("preempted")
    order.advance(5.0)
    order.head()
    assert order.by_arrival() == ["preempted", "second", "third"]


def test_removed_requests_leave_nothing_behind() -> None:
    order: DeadlineOrder[int] = DeadlineOrder()
    for number in range(20_000):
        order.add(number, place(float(number)))
        if number >= 10:
            order.remove([number - 10])
    assert len(order) == 10
    assert len(order._fresh) < 200
    assert order.fresh_tokens == 1000


places = st.builds(
    lambda deadline, needs, arrived, tokens: Place(deadline, deadline - needs, arrived, tokens),
    st.floats(0, 10),
    st.floats(0, 3),
    st.floats(0, 10),
    st.integers(1, 1000),
)


@given(st.lists(places, max_size=30), st.lists(st.floats(0, 12), min_size=1, max_size=5))
def test_iteration_shows_what_taking_yields_and_counts_agree(waiting: list[Place], times: list[float]) -> None:
    order: DeadlineOrder[int] = DeadlineOrder()
    for number, found in enumerate(waiting):
        order.add(number, found)
    for now in times:
        order.advance(now)
        if len(order):
            expected = list(order)
            assert order.head() == expected[0] == order.take()
    shown = list(order)
    assert sum(order.sizes) == len(order) == len(shown)
    assert [order.take() for _ in shown] == shown
    assert order.fresh_tokens == 0
    assert order.sizes == (0, 0, 0)

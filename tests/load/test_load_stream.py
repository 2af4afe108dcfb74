"""Counting tokens in a stream that arrives in arbitrary pieces."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from e2e.load.stream import StreamCounter

EVENT = b'data: {"choices":[{"text":"\\ndata: not an event"}]}\n\n'
DONE = b"data: [DONE]\n\n"


@given(
    tokens=st.integers(0, 30),
    cuts=st.lists(st.integers(0, 2000), max_size=20),
    line_end=st.sampled_from([b"\n", b"\r\n"]),
)
def test_the_count_does_not_depend_on_how_the_network_cut_the_stream(
    tokens: int, cuts: list[int], line_end: bytes
) -> None:
    body = (EVENT * tokens + DONE).replace(b"\n\n", line_end * 2)
    counter = StreamCounter()
    borders = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for start, end in itertools.pairwise(borders):
        counter.feed(body[start:end])
    assert (counter.tokens, counter.finished, counter.error) == (tokens, True, "")


def test_an_unfinished_stream_says_so() -> None:
    counter = StreamCounter()
    counter.feed(EVENT * 3)
    assert (counter.tokens, counter.finished) == (3, False)


def test_the_usage_event_outranks_the_count_of_events() -> None:
    counter = StreamCounter()
    counter.feed(EVENT + b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens": 12}}\n\n' + DONE)
    assert counter.tokens == 12


def test_an_error_event_is_found_in_both_shapes_of_vllm() -> None:
    for text in (b'{"error":{"message":"x"}}', b'{"object": "error", "message":"x"}'):
        counter = StreamCounter()
        counter.feed(EVENT + b"data: " + text + b"\n\n" + DONE)
        assert "message" in counter.error

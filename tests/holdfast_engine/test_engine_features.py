from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast_engine.law.features import Features, step_features
from tests.holdfast_engine.test_engine_fastloop import Cached, New, ToyOutput


def step(new: dict[str, tuple[int, int]], cached: dict[str, tuple[int, int]], drafts: int = 0) -> Features:
    """Features of a step whose requests have (tokens computed in it, tokens before it)."""
    output = ToyOutput(
        [New(name, before) for name, (_, before) in new.items()],
        Cached(list(cached), [before for _, before in cached.values()]),
        {name: tokens for name, (tokens, _) in (new | cached).items()},
    )
    return step_features(output, drafts)


def test_a_step_of_decodes_reads_their_kv() -> None:
    assert step({}, {"a": (1, 100), "b": (1, 200)}) == Features(0, 2, 302, 0.0)


def test_prompts_are_prefill_in_whatever_piece() -> None:
    found = step({"new": (100, 0)}, {"decode": (1, 50), "piece": (30, 200)})
    assert found == Features(130, 1, 51, 100 * 50.0 + 30 * 215.0)


def test_a_cached_prefix_counts_as_pairs_only() -> None:
    assert step({"new": (10, 1000)}, {}) == Features(10, 0, 0, 10 * 1005.0)


def test_drafted_tokens_are_no_prefill() -> None:
    assert step({}, {"a": (4, 100), "piece": (64, 0), "b": (3, 10)}, drafts=3) == Features(64, 2, 112, 64 * 32.0)


pieces = st.tuples(st.integers(1, 50), st.integers(0, 1000))


@given(st.lists(pieces, max_size=5), st.lists(pieces, max_size=20))
def test_every_token_is_prefill_or_a_decode(new: list[tuple[int, int]], cached: list[tuple[int, int]]) -> None:
    found = step(dict(enumerate_names("n", new)), dict(enumerate_names("c", cached)))
    tokens = sum(count for count, _ in new + cached)
    assert found.prefill + found.decodes == tokens
    assert found.decodes == sum(count == 1 for count, _ in cached)


def enumerate_names(prefix: str, found: list[tuple[int, int]]) -> list[tuple[str, tuple[int, int]]]:
    return [(f"{prefix}{number}", piece) for number, piece in enumerate(found)]

"""The twin fills every signal that the policy reads, but for those that are listed here with the reason."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields

import pytest

from holdfast.domain.engine import EngineFacts, ExactCounts
from holdfast.domain.signals import AcceleratorTraffic, Traffic
from holdfast.twin.pods import view

NOT_PLAYED = {
    Traffic: {
        "ttft": "percentiles are for pages, nothing is decided by them",
        "tpot": "percentiles are for pages, nothing is decided by them",
        "e2e": "percentiles are for pages, nothing is decided by them",
        "concurrency": "quantiles are for status and pages, nothing is decided by them",
        "revisions": "no revision is on trial in the twin",
        "silent": "an engine that hangs is seen by its own metrics",
        "failing": "no engine ends requests with an error",
    },
    AcceleratorTraffic: {
        "failed": "no engine ends requests with an error",
        "aborted": "clients wait for their answers",
        "batch": "without_batch fills it, from what the plugins count",
    },
    EngineFacts: dict.fromkeys(
        {each.name for each in fields(EngineFacts)} - {"kv_tokens", "block_tokens"},
        "engines report their KV cache only",
    ),
}


@pytest.mark.parametrize("signal", NOT_PLAYED, ids=lambda signal: signal.__name__)
def test_a_signal_is_filled_by_the_twin_or_listed(signal: type) -> None:
    names = {each.name for each in fields(signal)}
    assert filled(signal) | NOT_PLAYED[signal].keys() == names
    assert not filled(signal) & NOT_PLAYED[signal].keys()


def test_verdicts_of_plugins_are_filled() -> None:
    judged = {name.removeprefix("judged_") for name in view.EXACT}
    clients_times_are_known = {"engine_timed"}  # no front end stands between an engine and its clients
    no_engine_comes_back = {"bad_killed"}  # one that is lost is lost with its pod
    apart = clients_times_are_known | no_engine_comes_back
    assert judged | filled(ExactCounts) | apart == {each.name for each in fields(ExactCounts)}


def filled(signal: type) -> set[str]:
    """The keywords with which the twin's view makes this value, wherever it does."""
    calls = [each for each in ast.walk(ast.parse(inspect.getsource(view))) if isinstance(each, ast.Call)]
    own = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == signal.__name__]
    return {word.arg for call in own for word in call.keywords if word.arg is not None}

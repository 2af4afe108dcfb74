"""Lines of the operator's log, and of the libraries below it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import kopf
import pytest
from kopf._core.actions.loggers import LocalObjectLogger

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action
from holdfast.domain.service import ServiceKey
from holdfast.runtime.logs import configure_logging

CHAT = ServiceKey("prod", "chat")


@pytest.fixture
def root() -> Iterator[None]:
    """The root logger is put back afterwards."""
    logger = logging.getLogger()
    before, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = before
    logger.setLevel(level)


def line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The only line that was written."""
    (written,) = capsys.readouterr().err.splitlines()
    found = json.loads(written)
    assert isinstance(found, dict)
    return found


@pytest.mark.usefixtures("root")
def test_a_decision_is_a_line_with_service_action_and_reason(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    words = ("%s: %s/%s: %s", CHAT, Action.SCALE_UP, Reason.AT_MAXIMUM, "2 -> 3 replicas")
    logging.getLogger("holdfast.control.status.status_publisher").info(*words)
    told = line(capsys)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told.pop("time"))
    assert told == {
        "level": "info",
        "logger": "holdfast.control.status.status_publisher",
        "message": "prod/chat: ScaleUp/AtMaximum: 2 -> 3 replicas",
        "namespace": "prod",
        "service": "chat",
        "action": "ScaleUp",
        "reason": "AtMaximum",
    }


@pytest.mark.usefixtures("root")
def test_a_line_about_no_service_has_only_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    logging.getLogger("holdfast.control.tick.leadership").info("this process leads as %s", "pod-1")
    assert line(capsys).keys() == {"time", "level", "logger", "message"}


@pytest.mark.usefixtures("root")
def test_a_benchmark_is_no_service(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    logging.getLogger("holdfast.control.benchmarks.benchmarks").info("%s: %s", ServiceKey("prod", "limits"), "it runs")
    told = line(capsys)
    assert (told["namespace"], told["benchmark"]) == ("prod", "limits")
    assert "service" not in told


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("kind", ["LLMService", "Pod"])
def test_lines_of_kopf_have_the_same_fields(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    configure_logging("info", "json")
    body = kopf.Body({"apiVersion": "v1", "kind": kind, "metadata": {"name": "chat", "namespace": "prod", "uid": "u"}})
    LocalObjectLogger(body=body, settings=kopf.OperatorSettings()).warning("Handler %r failed.", "index")
    told = line(capsys)
    known = {"namespace", "service"} if kind == "LLMService" else set()
    assert told.keys() == {"time", "level", "logger", "message", *known}
    assert (told["logger"], told["message"], told["level"]) == ("kopf.objects", "Handler 'index' failed.", "warning")
    logging.getLogger("kopf._core.reactor.running").info("Signal SIGINT is received.")
    assert line(capsys)["logger"] == "kopf._core.reactor.running"


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("words", ["two\nlines", "\x1b[2J", "\ud800", "\N{LINE SEPARATOR}", '{"a": 1}', "%s %d"])
def test_whatever_is_said_stays_one_line_of_json(capsys: pytest.CaptureFixture[str], words: str) -> None:
    configure_logging("info", "json")
    logging.getLogger("holdfast").info("%s: %s", CHAT, words)
    assert line(capsys)["message"] == f"prod/chat: {words}"


@pytest.mark.usefixtures("root")
def test_text_is_a_line_that_people_read(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "text")
    logging.getLogger("holdfast").info("%s: %s/%s", CHAT, Action.HOLD, Reason.STEADY)
    assert capsys.readouterr().err.rstrip().endswith("INFO    holdfast: prod/chat: Hold/Steady")


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("style", ["text", "json"])
def test_a_deep_traceback_does_not_fill_the_log(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("error", style)
    try:
        raise ValueError("x" * 3_000_000)
    except ValueError:
        logging.getLogger("holdfast").exception("%s failed", CHAT)
    written = capsys.readouterr().err
    assert "prod/chat failed" in written
    assert "characters left out" in written
    assert len(written) < 20_000
    if style == "json":
        assert json.loads(written)["exception"].startswith("Traceback")

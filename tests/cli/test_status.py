"""`holdfast status` against an API server in memory: the table, JSON, and the exit code for scripts."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from typing import Any

import pytest

from holdfast.cli import main, reading, status
from tests.fakes import FakeApi

CHAT = {
    "conditions": [{"type": "Ready", "status": "True"}, {"type": "SLOMet", "status": "False"}],
    "slo": {"attainment": 0.97, "budgetRemaining": -2.0, "arrivalRps": 26.1, "ttftP95": "420ms", "tpotP95": "31ms"},
    "replicas": {"ready": 2, "desired": 4},
    "reason": "BelowCapacity",
}
MET = {"conditions": [{"type": "Ready", "status": "True"}, {"type": "SLOMet", "status": "True"}]}


def cluster(namespace: str | None = "prod", **services: dict[str, Any]) -> FakeApi:
    """Services with these statuses, listed for one namespace or for all."""
    api = FakeApi()
    items = [{"metadata": {"namespace": "prod", "name": name}, "status": told} for name, told in services.items()]
    api.put_object(reading.services_path(namespace), {"items": items})
    return api


def arguments(*given: str) -> argparse.Namespace:
    return main.build_parser(("status",)).parse_args(["status", *given])


async def test_a_service_is_a_line_with_what_is_known_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert await status.told(cluster(chat=CHAT, fresh={}), arguments("-n", "prod")) == 1
    heads, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert tuple(heads) == status.COLUMNS
    assert lines == [
        ["prod", "chat", "True", "False", "0.97", "-2.0", "2/4", "26.1", "420ms", "31ms", "BelowCapacity"],
        ["prod", "fresh", "-", "-", "-", "-", "0/0", "-", "-", "-", "-"],
    ]


@pytest.mark.parametrize(
    ("services", "code"),
    [
        ({}, 0),
        ({"chat": MET}, 0),
        ({"chat": {}}, 0),
        ({"chat": {"conditions": [{"type": "SLOMet", "status": "Unknown"}]}}, 0),
        ({"chat": MET, "other": CHAT}, 1),
    ],
    ids=["none", "met", "no status yet", "unknown", "one misses"],
)
async def test_it_ends_with_1_where_an_objective_is_missed_and_not_where_none_is_known(
    services: dict[str, dict[str, Any]], code: int
) -> None:
    assert await status.told(cluster(**services), arguments("-n", "prod")) == code


async def test_machines_get_whole_statuses_of_all_namespaces(capsys: pytest.CaptureFixture[str]) -> None:
    assert await status.told(cluster(None, chat=CHAT), arguments("-A", "--json")) == 1
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["namespace"], told["name"], told["status"]) == ("prod", "chat", CHAT)


async def test_what_others_write_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    odd = {"reason": "[/b]:boom:\x1b[2J"}
    await status.told(cluster(chat=odd), arguments("-n", "prod"))
    assert capsys.readouterr().out.splitlines()[1].endswith("[/b]:boom:\N{REPLACEMENT CHARACTER}[2J")


def test_kubectl_finds_its_plugin_among_what_is_installed() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="kubectl-holdfast")
    assert script.load() is main.main

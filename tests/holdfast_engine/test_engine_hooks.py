"""What the test of faults on the real vLLM relies on, without vLLM."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from e2e.engine.everyhook import ApiServer
from e2e.engine.hooks import UNTRIED, hooks
from holdfast_engine.clients.written_file import ReportKind, WrittenReader
from holdfast_engine.stats.stats_fields import FOLDER_VARIABLE, written_path
from tests.fakes import FakeApiServer


def test_what_no_fault_is_tried_in_exists() -> None:
    assert set(UNTRIED) <= set(hooks())


def test_each_run_reports_the_same_however_many_requests_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    server = ApiServer(FakeApiServer().output_processor)
    found = [reported(server, f"run {number}", requests) for number, requests in enumerate((6, 2, 7, 6, 6))]
    assert found[0] == found[3] == found[4]
    assert found[2][:6] == found[0]
    assert found[0][1] is ReportKind.GONE


def reported(server: ApiServer, run: str, requests: int) -> list[ReportKind]:
    """Of the first token of each request."""
    server.begin()
    reader = WrittenReader(written_path())
    reader.poll(0.0)
    for number in range(requests):
        name = f"{run} {number}"
        server._follow(SimpleNamespace(external_req_id=name, request_id=name, sampling_params=None))
        server.write(name, ends=False)
    kinds = [report.kind for report in reader.poll(1.0)]
    return [kind for kind in kinds if kind is not ReportKind.STARTED]

"""The lies of the proxy, and that it tells the truth where it is to tell none."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.campaign import schedule
from e2e.campaign.lies import EVERYWHERE, LATE_SECONDS, ROW_LIES, Liar, told

Row = dict[str, Any]


def row(namespace: str, value: str, at: float = 100.0) -> Row:
    return {"metric": {"namespace": namespace, "holdfast_service": "chat"}, "value": [at, value]}


TRUE = [row("a", "3"), row("a", "-1"), row("b", "7")]


def values(rows: list[Row], namespace: str) -> list[str]:
    return [each["value"][1] for each in rows if each["metric"]["namespace"] == namespace]


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        ("nan", ["NaN", "NaN"]),
        ("infinite", ["+Inf", "+Inf"]),
        ("negative", ["-3", "1"]),
        ("huge", ["1e300", "1e300"]),
        ("zero", ["0", "0"]),
        ("duplicate", ["3", "-1", "3", "-1"]),
        ("half", ["3"]),
        ("frozen", ["30"]),
        ("late", ["31"]),
    ],
)
def test_a_lie_about_one_namespace_leaves_the_others_alone(lie: str, expected: list[str]) -> None:
    rows = told(TRUE, {"a": lie}, [row("a", "30"), row("b", "9")], [row("a", "31")])
    assert values(rows, "a") == expected
    assert values(rows, "b") == ["7"]
    assert values(TRUE, "a") == ["3", "-1"], "the truth is not changed"


def test_values_of_a_range_are_lied_about_at_each_time() -> None:
    (lied,) = told([{"metric": {"namespace": "a"}, "values": [[1, "2"], [2, "3"]]}], {"a": "nan"}, [], [])
    assert lied["values"] == [[1, "NaN"], [2, "NaN"]]


def test_there_are_twelve_and_each_can_be_drawn() -> None:
    drawn = {*schedule.ROW_LIES.split(), *schedule.ANSWER_LIES.split()}
    assert len(drawn) == 12
    assert drawn >= set(ROW_LIES)


class Prometheus:
    """Answers each query with its own time, and counts."""

    def __init__(self) -> None:
        prometheus = self
        self.asked = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                prometheus.asked += 1
                form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                rows = [row("a", form["time"]), row("b", str(prometheus.asked))]
                body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}}).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def liar() -> Iterator[Liar]:
    prometheus = Prometheus()
    proxy = Liar(prometheus.url, "127.0.0.1")
    with proxy.serving():
        yield proxy
    prometheus.server.shutdown()
    prometheus.server.server_close()


def ask(liar: Liar, at: float, seconds: float = 10.0) -> list[Row]:
    form = urllib.parse.urlencode({"query": "up", "time": at}).encode()
    with urllib.request.urlopen(f"{liar.url}/api/v1/query", data=form, timeout=seconds) as answer:
        found: list[Row] = json.load(answer)["data"]["result"]
        return found


def test_without_a_lie_it_tells_the_truth(liar: Liar) -> None:
    assert values(ask(liar, 1000.0), "a") == ["1000.0"]


def test_a_frozen_answer_is_that_of_before_until_it_ends(liar: Liar) -> None:
    ask(liar, 1000.0)
    liar.begin("frozen", "a")
    rows = ask(liar, 1005.0)
    assert (values(rows, "a"), values(rows, "b")) == (["1000.0"], ["2"])
    liar.end("a")
    assert values(ask(liar, 1010.0), "a") == ["1010.0"]


def test_a_late_answer_is_that_of_ten_minutes_ago(liar: Liar) -> None:
    liar.begin("late", "a")
    assert values(ask(liar, 1000.0), "a") == [str(1000.0 - LATE_SECONDS)]


def test_whole_answers_are_empty_errors_or_none(liar: Liar) -> None:
    liar.begin("empty")
    assert ask(liar, 1000.0) == []
    liar.end()
    liar.begin("error")
    with pytest.raises(urllib.error.HTTPError, match="500"):
        ask(liar, 1000.0)
    liar.end()
    liar.begin("hang")
    with pytest.raises(TimeoutError):
        ask(liar, 1000.0, seconds=0.3)
    liar.end(EVERYWHERE)
    assert values(ask(liar, 1000.0), "a") == ["1000.0"]

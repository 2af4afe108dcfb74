"""The plugin's scheduler, which also writes a line when a request arrives, and one when it is judged.

A line survives an engine that is killed, and each one begins with a line without a name. Requests are called by their
first tokens, because a router gives them ids of its own.
"""

from __future__ import annotations

import json
from typing import Any, TextIO

from vllm.v1.request import Request

from e2e.engine.prefilldecode import NAME_TOKENS, TRACE
from holdfast_engine.clients.ledger import Entry, Ledger
from holdfast_engine.objectives.rules import RequestVerdict
from holdfast_engine.scheduler import HoldfastScheduler
from holdfast_engine.stats.stats_fields import folder


class TracedScheduler(HoldfastScheduler):
    """`--scheduler-cls e2e.engine.traced.TracedScheduler`."""

    def _begin(self) -> None:
        self._named: dict[str, list[int]] = {}
        super()._begin()
        if self._loop is not None:
            _trace(self._loop.ledger, self._named, (folder() / TRACE).open("a", buffering=1))

    def add_request(self, request: Request) -> None:
        self._named[request.request_id] = list(request.prompt_token_ids or ())[:NAME_TOKENS]
        super().add_request(request)


def _trace(ledger: Ledger, named: dict[str, list[int]], file: TextIO) -> None:
    arrive, judge = ledger.arrive, ledger._judge
    names: dict[Entry, list[int]] = {}

    def say(name: list[int], **said: Any) -> None:
        file.write(json.dumps({"name": name, **said}) + "\n")

    def arrive_and_say(request_id: str, *given: Any) -> Entry:
        entry = arrive(request_id, *given)
        if entry not in names:
            names[entry] = named.get(request_id, [])
            say(names[entry])
        return entry

    def judge_and_say(entry: Entry, verdict: RequestVerdict) -> None:
        judge(entry, verdict)
        first = entry.first_token if entry.first_written is None else entry.first_written
        ttft_seconds = None if first is None else first - entry.arrived
        say(names[entry], verdict=verdict.value, ttft_seconds=ttft_seconds)

    vars(ledger).update(arrive=arrive_and_say, _judge=judge_and_say)
    say([])

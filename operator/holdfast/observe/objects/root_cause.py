"""The root cause of an engine's end, by the lines of its log: the exception of the process that failed first.

The processes of vLLM fail one after the other. A worker raises, the engine core reports the worker, and the API server
reports the engine core ("See root cause above"). So the last exception of a log is the one that says least.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

MOST_CHARACTERS = 1000
"""Characters of one exception."""
_MOST_EXCEPTIONS = 6

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
# `(EngineCore_DP0 pid=88) `, also where the kubelet cut the beginning off; Ray puts one before another.
_PROCESS = re.compile(r"([^\s():]{0,40} ?\([^()]{0,80}?|[\w.-]{0,40} ?)\bpid=(?P<pid>\d+)[^()]{0,80}\)\s?")
_RANK = re.compile(r"^\[rank\d+\]: ?")
_RECORD = re.compile(r"(CRITICAL|ERROR|WARNING|INFO|DEBUG)\s+[-\d/:.,T ]+\[?[^\]\s]+:\d+\] ?")
_TRACE = re.compile(r'Traceback \(most recent call last\)|\s+File ".*", line \d+')
_LINK = re.compile(r"(The above exception was the direct cause|During handling of the above exception)")
# A dotted name of a class, or one that says what it is; C++ and the interpreter have words of their own.
_EXCEPTION = re.compile(
    r"((\w+\.)+[A-Z]\w*|(\w+\.)*[A-Z]\w*(Error|Exception|Timeout|Expired|Failure|Failed))(:|$)"
    r"|terminate called after throwing|Fatal Python error:"
)
_NAME = re.compile(r"(\w+\.)*[A-Za-z_]\w*(\([\w.]+\))?(: |:?$)")
# Exceptions that end a process for any reason.
_STOPPED = re.compile(r"([\w.]+\.)?(KeyboardInterrupt|SystemExit|CancelledError|GeneratorExit)\b")
_POINTER = re.compile(r"root cause|\b(see|check)\b.{0,60}\b(above|traces?|stack ?traces?|logs?)\b", re.I)


class Cause(NamedTuple):
    """The exceptions that led to each other in one process, the first one first.

    `is_last`: whether no other exception follows in the log.
    """

    exceptions: tuple[str, ...]
    is_last: bool


class _Process:
    """The exceptions of one process of the engine."""

    def __init__(self) -> None:
        self.chain: list[str] = []
        self.seen_at = 0
        self.is_tracing = self.is_linked = self.is_new = False
        self.record: str | None = None  # what the lines of a message that goes on begin with

    def read(self, record: str, text: str, at: int) -> bool:
        """Read a line; return whether it is an exception, be it one that only points to another."""
        if _TRACE.match(text):
            self.is_new = self.is_new or not (self.is_tracing or self.is_linked)
            self.is_tracing, self.record = True, None
            return False
        if _LINK.match(text):
            self.is_linked, self.record = True, None
        elif _EXCEPTION.match(text) or (self.is_tracing and _NAME.match(text)):
            return self._raised(record, text, at)
        elif self.record == record and self.chain and not text.startswith("["):
            self.chain[-1] = f"{self.chain[-1]}\n{text}"[:MOST_CHARACTERS].rstrip("\n")
        else:
            self.record = None
        self.is_tracing = self.is_tracing and text[:1] in ("", " ")
        return False

    def _raised(self, record: str, text: str, at: int) -> bool:
        self.is_tracing = self.is_linked = False
        self.record = None
        if _STOPPED.match(text):
            return False
        self.chain, self.is_new = [] if self.is_new else self.chain, False
        self.seen_at = at
        if not _POINTER.search(text):
            self.chain = [*self.chain[-_MOST_EXCEPTIONS:], text[:MOST_CHARACTERS]]
            self.record = record
        return True


class _Log:
    """The processes of an engine, by the lines of its log."""

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = defaultdict(_Process)
        self._told: list[str] = []  # the last exceptions that point to no other
        self._count = 0
        self._last: _Process | None = None

    def read(self, line: str) -> None:
        """Read the next line."""
        pid, text = _split(_COLOR.sub("", line))
        record = _RECORD.match(text)
        process = self._processes[pid]
        if record is not None and record[1] not in ("ERROR", "CRITICAL"):
            process.record = None
            return
        text = _RANK.sub("", text[record.end() :] if record else text, count=1)
        self._count += 1
        if process.read(record[0] if record else "", text, self._count):
            self._last = process
            self._told = process.chain or self._told

    def cause(self) -> Cause | None:
        """The root cause; None where no exception says more than that another one is to be read.

        Of the processes that failed, the first. A process whose last exception points elsewhere has only reported.
        """
        failed = [each for each in self._processes.values() if each.chain]
        first = min(failed, key=lambda each: each.seen_at, default=None)
        if first is not None:
            return Cause(tuple(first.chain), first is self._last)
        return Cause(tuple(self._told), is_last=False) if self._told else None


def root_cause(words: str) -> Cause | None:
    """The root cause in a piece of a log, such as the last 2048 bytes that the kubelet keeps."""
    log = _Log()
    for line in words.splitlines():
        log.read(line)
    return log.cause()


def _split(line: str) -> tuple[str, str]:
    """The id of the process that wrote a line, empty where it does not say so, and the rest of the line."""
    pid = ""
    while (found := _PROCESS.match(line)) is not None:
        pid, line = found["pid"], line[found.end() :]
    return pid, line

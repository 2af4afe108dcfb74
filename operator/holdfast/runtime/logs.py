"""The operator's log: text, or JSON with the service, action and reason of each line as fields; kopf's lines too."""

from __future__ import annotations

import datetime
import logging
import sys
from typing import Any

from pythonjsonlogger.core import LogData
from pythonjsonlogger.json import JsonFormatter

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action
from holdfast.domain.service import ServiceKey

_MOST_TRACEBACK_CHARACTERS = 16_000
_BENCHMARKS = "holdfast.control.benchmarks.benchmarks"


class _Traceback(logging.Formatter):
    """The beginning and the end of a long traceback: a deep object makes one of megabytes."""

    def formatException(self, exc_info: Any) -> str:  # logging's own name
        text, half = super().formatException(exc_info), _MOST_TRACEBACK_CHARACTERS // 2
        cut = len(text) - 2 * half
        return text if cut <= 0 else f"{text[:half]}\n... {cut} characters left out ...\n{text[-half:]}"


class _Json(_Traceback, JsonFormatter):
    """One object per line; times in RFC 3339, UTC."""

    def __init__(self) -> None:
        super().__init__("%(name)s %(message)s", rename_fields={"name": "logger", "exc_info": "exception"})

    def add_fields(self, log_data: LogData, record: logging.LogRecord, message_dict: LogData) -> None:
        """Add time, level and the fields of the record; what other libraries attach is left out."""
        log_data["time"] = _rfc3339(record.created)
        log_data["level"] = record.levelname.lower()
        super().add_fields(log_data, record, message_dict)

    def process_log_record(self, log_data: LogData) -> LogData:
        """Keep the fields that are promised."""
        return {name: value for name, value in log_data.items() if name in _FIELDS}


_FIELDS = frozenset(
    {"time", "level", "logger", "message", "exception", "namespace", "service", "benchmark", "action", "reason"}
)


def _rfc3339(seconds: float) -> str:
    """A time in milliseconds, with the offset Z."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def add_subject(record: logging.LogRecord) -> bool:
    """Note on a record what it is about: by the types of its arguments, or by what kopf attaches; a logging filter."""
    for argument in record.args if isinstance(record.args, tuple) else ():
        match argument:
            case ServiceKey(namespace, name):
                record.namespace = namespace
                setattr(record, "benchmark" if record.name == _BENCHMARKS else "service", name)
            case Action():
                record.action = argument.value
            case Reason():
                record.reason = argument.value
    reference = getattr(record, "k8s_ref", None) or {}
    if reference.get("kind") == "LLMService":
        record.namespace, record.service = reference.get("namespace"), reference.get("name")
    return True


def configure_logging(level: str, style: str) -> None:
    """Send the records of all libraries to stderr; called once, by the command."""
    handler = logging.StreamHandler(sys.stderr)
    text = _Traceback("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_Json() if style == "json" else text)
    handler.addFilter(add_subject)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("aiohttp.access", "kopf.objects"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

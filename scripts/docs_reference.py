"""Pages of the reference that the code itself tells: commands and options, reasons, metrics of the operator."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator

from holdfast.api.reasons import Reason
from holdfast.cli.main import build_parser
from holdfast.runtime.telemetry import Telemetry

_CLI = """\
# The command line

Each command says this with `--help`, too. `kubectl holdfast` is the same program."""
_REASONS = """\
# Reasons

The same word stands in conditions, Events, log lines and metrics. [The API reference](../api.md#conditions) says which
condition has which, and [Operations](../operations.md#conditions-and-reasons) what to do about each."""
_METRICS = """\
# Metrics of the operator

Each operator pod has them at `:8080/metrics`. [Operations](../operations.md#metrics-of-the-operator) says what to
watch, [the fast loop](../engine.md#metrics) has the metrics of engines, and
[Monitoring](../monitoring.md#what-is-recorded) what is recorded from both."""


def pages() -> dict[str, str]:
    """Path below docs to the Markdown of each page."""
    return {"reference/cli.md": cli(), "reference/reasons.md": reasons(), "reference/metrics.md": metrics()}


def cli() -> str:
    """Every command with its arguments and options."""
    sections = [_CLI]
    for command, (parser, summary) in commands(build_parser()).items():
        sections += [f"## {command}", _plain(parser.description or summary), _options(parser)]
    return "\n\n".join(sections) + "\n"


def commands(parser: argparse.ArgumentParser) -> dict[str, tuple[argparse.ArgumentParser, str]]:
    """Every command of a parser with its own parser and what the list of commands says of it."""
    (action,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    told = {each.dest: each.help or "" for each in action._choices_actions}
    return {name: (below, told.get(name, "")) for name, below in action.choices.items()}


def reasons() -> str:
    """Every reason of a condition or a decision."""
    rows = ((f"`{reason}`", _plain(reason.meaning)) for reason in sorted(Reason))
    return f"{_REASONS}\n\n{_table(('reason', 'meaning'), rows)}\n"


def metrics() -> str:
    """Every metric of the operator."""
    return f"{_METRICS}\n\n{_table(('metric', 'type', 'meaning'), _metrics())}\n"


def _metrics() -> Iterator[tuple[str, str, str]]:
    for metric in sorted(Telemetry().registry.collect(), key=lambda each: each.name):
        if metric.name.startswith("holdfast_"):
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            yield f"`{name}`", metric.type, _plain(metric.documentation)


def _options(parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    left_out = (argparse._SubParsersAction, argparse._HelpAction)
    shown = [each for each in parser._actions if each.help != argparse.SUPPRESS and not isinstance(each, left_out)]
    rows = [(_name(action), _plain(formatter._expand_help(action) if action.help else "")) for action in shown]
    return _table(("argument", "meaning"), rows) if rows else "It takes no arguments."


def _name(action: argparse.Action) -> str:
    metavar = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    shown = " ".join(metavar) if isinstance(metavar, tuple) else metavar
    if action.choices is not None and action.metavar is None:
        shown = ",".join(map(str, action.choices))
    names = ", ".join(action.option_strings)
    if not names:
        return f"`{shown}`"
    return f"`{names}`" if action.nargs == 0 else f"`{names} {shown}`"


def _plain(text: str) -> str:
    """Text of a help as one line of Markdown."""
    return re.sub(r"([|<>*_\[\]])", r"\\\1", " ".join(text.split()))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])

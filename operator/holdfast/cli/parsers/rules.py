"""The parser of `holdfast rules`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from holdfast.cli.commands import COMMANDS
from holdfast.cli.values import duration_seconds

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OBJECT_LABEL = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./]*")
_EXAMPLE = """examples:
  holdfast rules > /etc/prometheus/rules/holdfast.yaml
  holdfast rules --prometheus-rule holdfast --label release=kube-prometheus-stack | kubectl apply -f -"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "rules",
        help=COMMANDS["rules"],
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--prometheus-rule", metavar="NAME", help="print a PrometheusRule object with this name")
    parser.add_argument(
        "--label", action="append", default=[], type=_pair(_OBJECT_LABEL), metavar="NAME=VALUE",
        help="label NAME=VALUE of that object; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--scrape-interval",
        default=15.0,
        type=_seconds,
        metavar="DURATION",
        help="scrape interval of the engines (default: 15s)",
    )
    parser.add_argument(
        "--prometheus-matcher", action="append", default=[], type=_pair(_LABEL), metavar="NAME=VALUE",
        help="label NAME=VALUE that only the series of this cluster have, if Prometheus stores several clusters; "
        "may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--operator-namespace",
        type=_expression,
        metavar="REGEX",
        help="namespace of the operator, a regular expression if several run; no other target is believed (default: "
        "any, which is unsafe where tenants' pods are scraped)",
    )
    parser.add_argument(
        "--runbook-base",
        default="",
        type=_address,
        metavar="URL",
        help="address that this project's files are below: alerts get a runbook_url (default: none)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of YAML")


def _pair(name_like: re.Pattern[str]) -> Callable[[str], tuple[str, str]]:
    def pair(text: str) -> tuple[str, str]:
        name, _, value = text.partition("=")
        if not name_like.fullmatch(name) or not value or not text.isprintable():
            raise argparse.ArgumentTypeError(f"{text!r} is not a label: give NAME=VALUE, such as cluster=prod-eu")
        return name, value

    return pair


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
    if not text or not text.isprintable():
        raise argparse.ArgumentTypeError("name the namespace of the operator, such as holdfast-system")
    return text


def _address(text: str) -> str:
    if text and not re.fullmatch(r"https?://[^\s\"'`<>{}]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an address: give one such as https://docs.example.com")
    return text


def _seconds(text: str) -> float:
    seconds = duration_seconds(text)
    if seconds <= 0.0:
        raise argparse.ArgumentTypeError("it must be above 0")
    return seconds

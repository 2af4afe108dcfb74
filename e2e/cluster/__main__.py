"""``python -m e2e.cluster``: build, run, up, down, exec, status."""

from __future__ import annotations

import argparse
import os
import sys

from e2e.cluster import binaries, namespaces, session
from e2e.cluster.embedded import EmbeddedProvider
from e2e.cluster.layout import Layout
from e2e.cluster.provider import PROVIDERS, ProviderError


def main(arguments: list[str]) -> int:
    """Run one subcommand and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.action(options)
    except (ProviderError, namespaces.BusyError, binaries.BuildError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _command(commands, "build", _build, "build what is missing")
    run = _command(commands, "run", _run, "run a command in a new private cluster")
    run.add_argument("command", nargs="+", metavar="CMD")
    for hidden, action in (("inside", _inside), ("clean-up", _clean_up)):
        parser_of_hidden = commands.add_parser(hidden)
        parser_of_hidden.set_defaults(action=action)
        parser_of_hidden.add_argument("--name", required=True)
        parser_of_hidden.add_argument("--lifeline", type=int)
        parser_of_hidden.add_argument("command", nargs="*")
    return parser


def _command(commands, name, action, text):  # type: ignore[no-untyped-def]
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(action=action)
    parser.add_argument("--name", help="the cluster's name")
    parser.add_argument("--provider", choices=PROVIDERS)
    return parser


def _build(options: argparse.Namespace) -> int:
    EmbeddedProvider(Layout("build")).build()
    return 0


def _run(options: argparse.Namespace) -> int:
    layout = Layout(options.name or f"run-{os.getpid()}")
    EmbeddedProvider(layout).build()
    return namespaces.run_inside(layout, ["inside", "--name", layout.name, "--", *options.command])


def _inside(options: argparse.Namespace) -> int:
    return session.first_process(Layout(options.name), options.command)


def _clean_up(options: argparse.Namespace) -> int:
    namespaces.clean_up(Layout(options.name), options.lifeline)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

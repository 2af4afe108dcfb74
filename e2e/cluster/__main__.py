"""A Kubernetes cluster for Holdfast's demo and tests: ``python -m e2e.cluster COMMAND``."""

from __future__ import annotations

import argparse
import os
import sys

from e2e.cluster import background, binaries, namespaces, processes, session
from e2e.cluster.current import CurrentProvider
from e2e.cluster.embedded import EmbeddedProvider
from e2e.cluster.kind import KindProvider
from e2e.cluster.layout import Layout
from e2e.cluster.provider import PROVIDERS, Provider, ProviderError, choose_provider
from e2e.cluster.toolset import CAMPAIGN_TOOLS, TEST_TOOLS

_EXPECTED = (ProviderError, namespaces.BusyError, binaries.BuildError, processes.StartError)
_BACKGROUND_NAME = "up"


def main(arguments: list[str]) -> int:
    """Run one subcommand and return its exit code."""
    own, _, command = _split(arguments)
    options = _parser().parse_args(own)
    if options.needs_command and not command:
        print("error: name a command after --", file=sys.stderr)
        return 2
    options.command = command
    try:
        code: int = options.action(options)
    except _EXPECTED as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def _split(arguments: list[str]) -> tuple[list[str], bool, list[str]]:
    """What is meant for this program, and the command after the first ``--``."""
    if "--" not in arguments:
        return arguments, False, []
    place = arguments.index("--")
    return arguments[:place], True, arguments[place + 1 :]


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--name", help="the cluster's name")
    common.add_argument("--provider", choices=PROVIDERS, help="default: what this machine allows")
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    table = (
        ("build", _build, False, "build what is missing, kwok for fake nodes included"),
        ("run", _run, True, "run -- CMD: run a command in a new cluster that ends with it"),
        ("up", _up, False, "start a cluster in the background"),
        ("exec", _execute, True, "exec -- CMD: run a command in the cluster that is up"),
        ("status", _status, False, "say which clusters are running"),
        ("down", _down, False, "end the cluster that is up"),
    )
    for name, action, needs_command, text in table:
        sub = commands.add_parser(name, help=text, description=text, parents=[common])
        sub.set_defaults(action=action, needs_command=needs_command)
        if action is _build:
            sub.add_argument("--campaigns", action="store_true", help="and what only campaigns run")
    for name, action in (("inside", _inside), ("clean-up", _clean_up)):
        sub = commands.add_parser(name, parents=[common])
        sub.add_argument("--lifeline", type=int)
        sub.set_defaults(action=action, needs_command=False)
    return parser


def _provider(options: argparse.Namespace, name: str) -> Provider:
    choice = choose_provider(options.provider)
    if choice == "kind":
        return KindProvider(name)
    return EmbeddedProvider(Layout(name)) if choice == "embedded" else CurrentProvider()


def _build(options: argparse.Namespace) -> int:
    _provider(options, _BACKGROUND_NAME).build()
    binaries.build((*TEST_TOOLS, *CAMPAIGN_TOOLS) if options.campaigns else TEST_TOOLS)
    return 0


def _run(options: argparse.Namespace) -> int:
    name = options.name or f"run-{os.getpid()}"
    provider = _provider(options, name)
    provider.build()
    if isinstance(provider, EmbeddedProvider):
        return namespaces.run_inside(Layout(name), ["inside", "--name", name, "--", *options.command])
    session.end_on_signals()
    try:
        provider.start()
        return session.run_command(options.command, provider.environment())
    finally:
        provider.stop()


def _up(options: argparse.Namespace) -> int:
    name = options.name or _BACKGROUND_NAME
    provider = _provider(options, name)
    provider.build()
    if isinstance(provider, EmbeddedProvider):
        background.start(Layout(name))
        return _status(options)
    print(f"export KUBECONFIG={provider.start()}")
    return 0


def _execute(options: argparse.Namespace) -> int:
    name = options.name or _BACKGROUND_NAME
    provider = _provider(options, name)
    if isinstance(provider, EmbeddedProvider):
        return background.execute(Layout(name), options.command, provider.environment())
    return session.run_command(options.command, provider.environment())


def _status(options: argparse.Namespace) -> int:
    running = [layout for layout in background.running() if options.name in {None, layout.name}]
    for layout in running:
        print(background.describe(layout))
    if not running:
        print("no cluster is running")
    return 0 if running else 1


def _down(options: argparse.Namespace) -> int:
    name = options.name or _BACKGROUND_NAME
    provider = _provider(options, name)
    if isinstance(provider, EmbeddedProvider):
        background.stop(Layout(name))
    provider.stop()
    return 0


def _inside(options: argparse.Namespace) -> int:
    return session.first_process(Layout(options.name), options.command)


def _clean_up(options: argparse.Namespace) -> int:
    namespaces.clean_up(Layout(options.name), options.lifeline)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`holdfast completion`: what makes a shell complete commands and options."""

from __future__ import annotations

import argparse

from argcomplete.shell_integration import shellcode

SHELLS = ("bash", "zsh", "fish")
EXAMPLE = """examples:
  source <(holdfast completion bash)
  holdfast completion fish | source"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that sources the script")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the script; 0."""
    print(shellcode(["holdfast", "kubectl-holdfast"], shell=arguments.shell))
    return 0

"""`holdfast completion`: what makes a shell complete commands and options."""

from __future__ import annotations

import argparse

from argcomplete.shell_integration import shellcode


def run(arguments: argparse.Namespace) -> int:
    """Print the script; 0."""
    print(shellcode(["holdfast", "kubectl-holdfast"], shell=arguments.shell))
    return 0

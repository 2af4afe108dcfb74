"""The flags of `vllm serve`, asked of the installed release: its parser needs a whole vLLM, the emulator has none."""

from __future__ import annotations

import subprocess
import sys

from e2e.vllm.environment import Environment

_ASK = """
import json
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = ServeSubcommand().subparser_init(FlexibleArgumentParser().add_subparsers())
flags = [[sorted(each.option_strings), each.nargs] for each in parser._actions if each.option_strings]
print("FLAGS", *(json.dumps(flag) for flag in sorted(flags)), sep="\\n")
"""


def flags(vllm: Environment) -> str:
    """JSON: the spellings of each flag, and how many values it takes as argparse says it. CalledProcessError."""
    command = [sys.executable, "-c", _ASK]
    done = subprocess.run(command, env=vllm.variables(), stdout=subprocess.PIPE, text=True, check=True)
    lines = done.stdout.partition("FLAGS\n")[2].splitlines()
    return "[\n" + ",\n".join(lines) + "\n]\n"

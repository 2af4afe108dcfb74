"""`python -m e2e.vllm build`: install the real vLLM for CPUs into the cache; `flags` prints those of `vllm serve`.

Where torch's wheel is missing, `build` says so and succeeds: the tests that need it are then skipped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from e2e.cluster.binaries import BuildError
from e2e.vllm import environment, flags, image, sources


def main(arguments: list[str]) -> int:
    """Run one subcommand and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m e2e.vllm", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    commands.add_parser("build", help="install what is missing")
    commands.add_parser("flags", help="print vllm_flags.json of the emulator")
    if parser.parse_args(arguments).command == "flags":
        print(flags.flags(environment.environment()), end="")
        return 0
    try:
        image.install_prerequisites()
        environment.build()
        sources.fetch()
    except environment.MissingWheelError as problem:
        print(f"NO REAL VLLM: {problem}. Its tests will be skipped.", file=sys.stderr)
    except (BuildError, subprocess.CalledProcessError, RuntimeError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

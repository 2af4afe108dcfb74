"""`make publish`: pushes the image and the chart of a release, with the logins of skopeo and helm."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_LOCAL = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?(/|$)")


class PublishError(Exception):
    """A program is missing or failed; the message ends with its own words."""


def publish(folder: Path, version: str, registry: str, skopeo: Sequence[str] = ("skopeo",)) -> None:
    """Push what `make release` wrote: REGISTRY/holdfast:VERSION and oci://REGISTRY/charts/holdfast."""
    image, chart = folder / f"holdfast-image-{version}.oci.tar", folder / f"holdfast-{version}.tgz"
    for file in (image, chart):
        if not file.exists():
            raise PublishError(f"{file} is missing: make release VERSION={version} REGISTRY={registry}")
    # A registry on this machine speaks plain HTTP, as container runtimes expect it to.
    local = bool(_LOCAL.match(registry))
    insecure = ["--dest-tls-verify=false"] if local else []
    command = [*skopeo, "--insecure-policy", "copy", "--quiet", "--all", "--preserve-digests", *insecure]
    _run([*command, f"oci-archive:{image}", f"docker://{registry}/holdfast:{version}"])
    _run(["helm", "push", str(chart), f"oci://{registry}/charts", *(["--plain-http"] if local else [])])


def _run(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        raise PublishError(f"{command[0]} is missing: install it with this distribution's package manager")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PublishError(f"{' '.join(command)}:\n{(done.stdout + done.stderr).strip()[-2000:]}")


def main() -> int:
    """Read the inputs and push."""
    parser = argparse.ArgumentParser(prog="python -m release.publish", description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--registry", required=True)
    parser.add_argument("--out", type=Path, default=Path("dist"))
    given = parser.parse_args()
    try:
        if not given.registry:
            raise PublishError("REGISTRY is empty: give host and path, such as registry.example.com/team")
        publish(given.out, given.version, given.registry.rstrip("/"))
    except PublishError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"pushed {given.registry}/holdfast:{given.version} and oci://{given.registry}/charts/holdfast")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`make trial`: this checkout's image in the cluster of the kubeconfig, and examples/no-gpu with that image.

A cluster of kind, minikube or k3d takes an archive. All others pull from a registry, so this refuses them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from e2e.cluster.images import Image, trial_image
from e2e.cluster.processes import StartError
from e2e.cluster.provider import OWN
from e2e.cluster.seed import import_archive
from release import notes
from release.debian import ArchiveError
from release.wheels import REPOSITORY, WheelError

EXAMPLES = REPOSITORY / "examples" / "no-gpu"
TARGET = REPOSITORY / "build" / "trial"
_MINIKUBE = "minikube.sigs.k8s.io"
_START = "start one (`kind create cluster`, `minikube start`, `k3d cluster create`)"
_CHOOSE = "choose its context with `kubectl config use-context NAME`"


class TrialError(Exception):
    """The image cannot be brought into this cluster; the message says why and what to do."""


def loader(kubeconfig: Mapping[str, Any]) -> list[str]:
    """The command that loads an archive into the cluster of a minified kubeconfig; ARCHIVE stands for its path.

    Raises: TrialError, where the cluster is of none of the three programs.
    """
    ((context,), (entry,)) = kubeconfig["contexts"], kubeconfig["clusters"]
    name, cluster = str(entry["name"]), entry["cluster"]
    extensions = [each.get("extension") for each in cluster.get("extensions") or []]
    if name == "minikube" or any(isinstance(each, dict) and each.get("provider") == _MINIKUBE for each in extensions):
        return ["minikube", "image", "load", "ARCHIVE", "--profile", name]
    if name.startswith("kind-"):
        return ["kind", "load", "image-archive", "ARCHIVE", "--name", name.removeprefix("kind-")]
    if name.startswith("k3d-"):
        return ["k3d", "image", "import", "ARCHIVE", "--cluster", name.removeprefix("k3d-")]
    where = f"context {context['name']} is cluster {name} at {cluster.get('server', 'no address')}"
    raise TrialError(
        f"the kubeconfig's {where}, which is none of kind, minikube and k3d: no image can be loaded into it from here; "
        f"{_START} or {_CHOOSE}, or publish the image to a registry with `make release publish` (docs/releases.md)"
    )


def current(environment: Mapping[str, str]) -> dict[str, Any]:
    """The kubeconfig as kubectl reads it, with the current context alone; raises TrialError."""
    command = ["kubectl", "config", "view", "--minify", "--output=json"]
    found: dict[str, Any] = json.loads(_run(command, environment, f"{_START} or {_CHOOSE}"))
    return found


def load(archive: Path, command: list[str], environment: Mapping[str, str]) -> None:
    """Run a loader's command with this archive; raises TrialError."""
    given = [str(archive) if word == "ARCHIVE" else word for word in command]
    _run(given, environment, f"look whether {command[0]}'s cluster runs and has room on its disk, and try again")


def into_the_cluster(environment: Mapping[str, str], build: Callable[[], Image]) -> Image:
    """Build the image, once it is known how to load it, and load it; raises TrialError."""
    if environment.get("HOLDFAST_CLUSTER") == OWN:
        import_archive((image := build()).archive)
        return image
    command = loader(current(environment))
    require(command[0], environment)
    load((image := build()).archive, command, environment)
    return image


def write_files(reference: str, target: Path) -> None:
    """Write examples/no-gpu with this image into a folder."""
    repository, _, tag = reference.rpartition(":")
    target.mkdir(parents=True, exist_ok=True)
    for file in EXAMPLES.glob("*.yaml"):
        text = notes.with_image(file.read_text(), tag, repository.removesuffix("/holdfast"))
        # The chart's own tag is that of a release.
        text = text.replace(f"repository: {repository}\n", f'repository: {repository}\n  tag: "{tag}"\n')
        (target / file.name).write_text(text)


def require(program: str, environment: Mapping[str, str]) -> None:
    """Raise TrialError where a program is not on PATH."""
    if shutil.which(program, path=environment.get("PATH")) is None:
        raise TrialError(f"{program} is not on PATH: install it, and try again")


def _run(command: list[str], environment: Mapping[str, str], remedy: str) -> str:
    require(command[0], environment)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TrialError(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}; {remedy}")
    return done.stdout


def main() -> int:
    """Find the cluster, build, load, and write the files; 2 with a sentence where that cannot be."""
    try:
        if sys.platform != "linux":
            raise TrialError(
                f"the image is built on Linux only, and this is {sys.platform}: take the trial of a release"
            )
        image = into_the_cluster(os.environ, trial_image)
    except (TrialError, ArchiveError, WheelError, StartError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_files(image.reference, TARGET)
    print(f"{image.reference} is in the cluster; {TARGET.relative_to(REPOSITORY)} holds the trial's files for it")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The README's trial without a GPU: its code blocks as they are and nothing else, in order, until the SLO is kept.

The tutorial begins in the same way, and its further blocks run on the service that is there then.

In a cluster of its own, as empty as a reader's:
python -m e2e.cluster run -- python -m pytest e2e/test_readme.py
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from e2e import stack, trial
from e2e.cluster import images
from e2e.cluster.provider import OWN
from e2e.kubectl import Kubectl, condition
from e2e.patience import patient

pytestmark = pytest.mark.cluster

_SECTION = "Try it without a GPU"


def blocks(page: str, section: str) -> list[str]:
    """Return the shell blocks of a section of a page."""
    text = (stack.REPOSITORY / page).read_text(encoding="utf-8")
    (found,) = re.findall(rf"^## {section}.*?\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```sh\n(.*?)^```", found, re.MULTILINE | re.DOTALL)


def run(block: str) -> subprocess.CompletedProcess[str]:
    """Run a block in the checkout as a reader does."""
    return subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", block],
        cwd=stack.REPOSITORY, env=os.environ, capture_output=True, text=True, timeout=patient(600.0), check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def reader() -> Iterator[Kubectl]:
    """A reader's cluster: ours where it is the one of the tests, with what others pull from Docker Hub."""
    if not os.environ.get("HOLDFAST_CLUSTER"):
        pytest.fail(__doc__ or "", pytrace=False)
    if os.environ["HOLDFAST_CLUSTER"] == OWN:
        values = yaml.safe_load((trial.EXAMPLES / "values.yaml").read_text(encoding="utf-8"))
        pulled = values["prometheus"]["image"]
        name = f"docker.io/{pulled['repository']}:{pulled['tag']}"
        subprocess.run(["ctr", "--namespace", "k8s.io", "images", "tag", images.PROMETHEUS_IMAGE, name], check=True)
    kubectl = Kubectl()
    yield kubectl
    kubectl.run("delete", "--ignore-not-found", "--filename", str(trial.TARGET / "trial.yaml"))


def test_the_readmes_blocks_alone_reach_a_kept_slo_after_an_install_that_failed(reader: Kubectl) -> None:
    install, watch = blocks("README.md", _SECTION)
    make, helm, kubectl = install.replace("\\\n", "").splitlines()
    assert (make, helm.split()[0], kubectl.split()[0]) == ("make trial", "helm", "kubectl")
    hurried = run(f"{make} >&2; {helm} --timeout=1s --set image.tag=missing || echo failed")
    assert hurried.stdout.endswith("failed\n"), hurried.stdout + hurried.stderr
    assert "sh.helm.release.v1.holdfast" in reader.run("get", "secrets", "--namespace", stack.NAMESPACE), hurried.stderr
    for block in (install, watch):
        done = run(block)
        assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^trial +", done.stdout, re.MULTILINE), done.stdout
    served = reader.get_json("llms", "trial")
    assert condition(served, "SLOMet")["status"] == "True"
    assert condition(served, "CapacityAvailable")["message"] == "every desired replica has a node"


@pytest.mark.parametrize("section", ["4. Ask why", "5. Ask for", "6. Take the wheel", "7. Break something"])
def test_the_tutorials_commands_do_what_it_says_on_the_trial(reader: Kubectl, section: str) -> None:
    (block,) = blocks("docs/tutorial.md", re.escape(section))
    done = run(block)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()

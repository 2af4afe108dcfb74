"""What a command costs before it does anything, and what a plain installation has to hold."""

from __future__ import annotations

import gc
import pkgutil
import resource
import subprocess
import sys
from array import array
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from holdfast.cli import parsers
from holdfast.cli.commands import COMMANDS
from holdfast.cli.main import main
from holdfast.cli.simulate import SEARCHED
from holdfast.tools.bench.load import records
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord
from holdfast.twin.policies import ALIASES, POLICIES
from holdfast.twin.scenarios.inputs import POLICY_NAMES

TRIES = 3
ROOT = Path(__file__).parents[2]


def cpu_seconds(*arguments: str) -> float:
    """User and system time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "holdfast", *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    ("arguments", "bound"), [(("--help",), 0.3), *(((name, "--help"), 0.5) for name in COMMANDS)], ids=str
)
def test_a_help_comes_at_once(arguments: tuple[str, ...], bound: float) -> None:
    # The first try may compile the sources, and a crowded machine makes each one slower: one within the bound is proof.
    assert any(cpu_seconds(*arguments) <= bound for _ in range(TRIES))


def test_a_plan_loads_no_decision_of_the_operator() -> None:
    program = "import sys, holdfast.cli.plan; sys.exit('holdfast.policy.decide' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_command_runs_with_garbage_collected_and_its_imports_left_alone() -> None:
    assert main(["completion", "bash"]) == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_the_list_of_commands_is_that_of_their_parsers() -> None:
    assert set(COMMANDS) == {module.name for module in pkgutil.iter_modules(parsers.__path__)} - {"connection"}
    assert all(Path(parsers.__path__[0]).parent.joinpath(f"{name}.py").is_file() for name in COMMANDS)


def test_the_help_of_simulate_names_every_policy() -> None:
    assert (*POLICIES, *ALIASES, *SEARCHED) == POLICY_NAMES


def sizes_mb(name: str, found: dict[str, float]) -> dict[str, float]:
    """Megabytes on disk of a distribution and of what it needs without extras, as installed without compiling."""
    distribution = metadata.distribution(name)
    files = [Path(str(file.locate())) for file in distribution.files or () if file.suffix != ".pyc"]
    found[name] = sum(file.stat().st_blocks * 512 for file in files if file.is_file()) / 1e6
    for each in map(Requirement, distribution.requires or ()):
        wanted = canonicalize_name(each.name)
        if wanted not in found and (each.marker is None or each.marker.evaluate({"extra": ""})):
            sizes_mb(wanted, found)
    return found


PLAIN = """
import pathlib, sys
sys.modules.update(dict.fromkeys(("numba", "llvmlite", "matplotlib")))  # as if they were not installed
from holdfast.cli.main import main
for words in sys.argv[1:]:
    print(main(words.split()), flush=True)
files = {pathlib.Path(getattr(module, "__cached__", None) or "") for module in sys.modules.values() if module}
print(sum(file.stat().st_blocks * 512 for file in files if file.is_file()))
"""


def test_a_plain_installation_serves_five_commands_within_250_mb(tmp_path: Path) -> None:
    record = RequestRecord(0, 0.0, 0.0, 0.3, RequestOutcome.FINISHED, array("d", [0.1, 0.2, 0.3]), 5, 3)
    records.write(tmp_path / "records", [record])
    cluster = f"--kubeconfig={tmp_path / 'none'}"
    words = [f"bench --from {tmp_path / 'records'} --warm-up 0s --cool-down 0s", "catalog --accelerator h100"]
    words += [f"status {cluster}", f"explain prod/chat {cluster}", f"adopt deploy/chat {cluster}"]
    done = subprocess.run([sys.executable, "-c", PLAIN, *words], capture_output=True, text=True, check=True)
    *codes, compiled_bytes = [int(line) for line in done.stdout.splitlines() if line.isdecimal()]
    assert codes == [0, 0, 1, 1, 1]
    told = done.stderr.splitlines()
    assert [line.split(":")[0] for line in told] == ["holdfast status", "holdfast explain", "holdfast adopt"]
    assert all("does not exist" in line for line in told)
    installed = sizes_mb("holdfast-operator", {})
    assert not {"numba", "llvmlite", "matplotlib"} & set(installed)
    assert sum(installed.values()) + compiled_bytes / 1e6 < 250.0


def test_the_pages_install_without_compiling() -> None:
    # pip would compile each of the 1,900 modules of the Kubernetes client: 90 MB, of which half is never loaded.
    readme, operations = ((ROOT / page).read_text() for page in ("README.md", "docs/operations.md"))
    assert "pip install --no-compile -c constraints.txt .  " in readme
    assert "pipx install --pip-args='--no-compile -c constraints.txt' ." in operations


@pytest.mark.parametrize("words", ["plan --rate 5", "tune -f service.yaml", "simulate step.yaml"])
def test_what_simulates_names_the_extra_where_numba_is_missing(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "numba is missing" in line
    assert "'.[simulate]'" in line

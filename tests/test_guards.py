"""Rules of the house that no single module's tests would catch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.api.reasons import Reason

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "operator" / "holdfast"
# In pieces, because this file is searched as well.
INDEX_HOSTS = (
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("proxy", "golang", "org"),
    ("sum", "golang", "org"),
    ("npmjs", "org"),
    ("npmjs", "com"),
    ("crates", "io"),
)
PACKAGE_INDEX = re.compile(rf"\b({'|'.join(map('[.]'.join, INDEX_HOSTS))})\b".replace("[.]", r"\\?[.]"), re.IGNORECASE)
# A mode of the spec, and a reason of Kubernetes' own.
WORDS_OF_OTHERS = {Reason.RECOMMEND, Reason.PROGRESS_DEADLINE_EXCEEDED}
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|root|home|tmp/brief)/")


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: tracked files are unknown")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        numbered = enumerate(text.splitlines(), 1)
        found += [f"{path.relative_to(ROOT)}:{number}" for number, line in numbered if pattern.search(line)]
    return found


def test_the_source_root_is_no_package() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists(), "it would hide the standard library's operator module"


def test_every_folder_of_modules_is_a_package_so_that_the_wheel_has_it() -> None:
    """The competitors' policies, say: `holdfast simulate --policy hpa` works without a checkout."""
    folders = {file.parent for file in SOURCE.rglob("*.py")} - {SOURCE / "render" / "pod"}  # files for engine pods
    assert SOURCE / "twin" / "peers" in folders
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_policy_holds_only_what_decisions_use() -> None:
    """What decide() never asks for belongs to the package that asks for it."""
    names = {".".join(file.relative_to(SOURCE.parent).with_suffix("").parts) for file in SOURCE.glob("policy/**/*.py")}
    program = "import sys, holdfast.policy.decide; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert {name.removesuffix(".__init__") for name in names} - set(done.stdout.split()) == set()


def test_tests_are_no_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_the_import_layers_hold() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("host", INDEX_HOSTS)
def test_a_host_of_a_package_index_is_recognized(host: tuple[str, ...]) -> None:
    """Also as part of an address, and where it is escaped in a pattern."""
    assert PACKAGE_INDEX.search(f"https://files.{'.'.join(host)}/simple")
    assert PACKAGE_INDEX.search("\\.".join(host).upper())
    assert not PACKAGE_INDEX.search(f"my{'.'.join(host)}")


def test_no_tracked_file_names_a_package_index() -> None:
    assert lines_with(PACKAGE_INDEX) == []


def test_no_tracked_file_holds_a_path_of_somebodys_machine() -> None:
    assert lines_with(MACHINE_PATH) == []


def test_no_tracked_file_is_large() -> None:
    large = [str(path.relative_to(ROOT)) for path in tracked_files() if path.stat().st_size > 1_000_000]
    assert large == []


def test_every_reason_is_used() -> None:
    sources = [path.read_text() for path in SOURCE.rglob("*.py") if path.name != "reasons.py"]
    said = set(re.findall(r"\bReason\.([A-Z_]+)\b", "\n".join(sources)))
    assert {reason.name for reason in Reason} - said == set(), "said nowhere"


def test_reasons_are_one_word_each() -> None:
    assert all(re.fullmatch(r"[A-Z][A-Za-z]*", str(reason)) for reason in Reason)


def test_decisions_name_reasons_by_their_constants() -> None:
    words = [str(reason) for reason in Reason if reason not in WORDS_OF_OTHERS]
    literal = re.compile("|".join(f'"{re.escape(word)}"' for word in words))
    allowed = {"reasons.py"}
    where = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCE.rglob("*.py")
        if path.name not in allowed
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if literal.search(line)
    ]
    assert where == []

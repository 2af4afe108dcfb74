"""The images' Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from e2e.cluster.pythonlayers import site_script


def test_libraries_are_found_by_a_python_that_does_not_look_for_them_itself(tmp_path: Path) -> None:
    libraries, source = tmp_path / "site-packages", tmp_path / "source"
    libraries.mkdir()
    source.mkdir()
    (libraries / "a_library.py").write_text("")
    (libraries / "source.pth").write_text(f"{source}\n")
    (source / "the_project.py").write_text("")
    program = f"{site_script(str(libraries))}\nimport a_library, the_project"

    # -S leaves out every folder that this Python's own site would look into.
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")

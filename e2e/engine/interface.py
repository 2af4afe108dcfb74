"""Check the plugin's files that know vLLM against the types of a release of vLLM, installed or only unpacked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from e2e.vllm.environment import REPOSITORY

# Only these modules of vLLM are read: the whole of it would take minutes.
_MODULES = (
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.core.sched.output",
    "vllm.v1.core.sched.request_queue",
    "vllm.v1.core.sched.interface",
    "vllm.v1.request",
    "vllm.v1.engine",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.output_processor",
    "vllm.exceptions",
    "vllm.v1.outputs",
    "vllm.v1.metrics.loggers",
    "vllm.config.scheduler",
    "vllm.config.parallel",
    "vllm.config.model",
    "vllm.config.vllm",
    "vllm.version",
)
_SETTINGS = """[mypy]
strict = true
follow_imports = silent
ignore_missing_imports = true
namespace_packages = true
explicit_package_bases = true
[mypy-vllm.*]
follow_imports = skip
ignore_errors = true
"""


def problems(vllm: Path, scratch: Path, *modules: str) -> str:
    """What mypy says about these modules when `vllm` is the package they import; empty when all is well.

    What it has read of a package is kept in `scratch` for the next call.
    """
    link = scratch / "path" / "vllm"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.symlink_to(vllm)
    settings = scratch / "mypy.ini"
    settings.write_text(_SETTINGS)
    command = [sys.executable, "-m", "mypy", f"--config-file={settings}", f"--cache-dir={scratch / 'cache'}"]
    for module in (*_MODULES, *modules):
        command += ["-m", module]
    path = f"{scratch / 'path'}:{REPOSITORY / 'operator'}:{Path(__file__).parent}"
    done = subprocess.run(
        command,
        env={"MYPYPATH": path, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        cwd=scratch,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr

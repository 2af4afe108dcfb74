"""The launcher's choice between the plugin and plain flags, run as pods run it, with a made-up vLLM in its path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.render.podfiles import load_plugin

LAUNCHER = Path(__file__).parents[2] / "operator/holdfast/render/pod/launcher.py"
SCHEDULER = "--scheduler-cls=holdfast_engine.scheduler.HoldfastScheduler"
ADMISSION = "--max-num-queued-tokens=5600"

# What vLLM sees: its arguments, and the plugin in this process and in one that it starts.
ENGINE = """
import importlib.metadata, importlib.util, json, os, subprocess, sys

LOOK = (
    "import importlib.metadata as m, json;"
    "print(json.dumps([e.name for e in m.entry_points(group='vllm.stat_logger_plugins')]))"
)

def main():
    try:
        import holdfast_engine.objectives.rules as found
        where = found.__file__
    except ImportError:
        where = None
    child = subprocess.run([sys.executable, "-S", "-c", LOOK], capture_output=True, text=True, check=True)
    seen = [argument for argument in sys.argv if argument != "--host=::"]
    plugins = os.environ.get("VLLM_PLUGINS")
    loggers = json.loads(child.stdout)
    print(json.dumps({"plugins": plugins, "arguments": seen, "found": where, "loggers": loggers}), flush=True)
"""


class Pod:
    """A folder with the mounted files and one with an image."""

    def __init__(self, folder: Path, version: str, plugin: bytes) -> None:
        self.files = folder / "holdfast"
        self.image = folder / "image"
        self.files.mkdir()
        shutil.copy(LAUNCHER, self.files)
        if plugin:
            (self.files / "holdfast_engine.zip").write_bytes(plugin)
        info = self.image / f"vllm-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        package = self.image / "vllm" / "entrypoints" / "cli"
        package.mkdir(parents=True)
        for part in (package, *package.parents[:2]):
            (part / "__init__.py").touch()
        (package / "main.py").write_text(ENGINE)

    def run(self, *arguments: str, plain: str = ADMISSION, **variables: str) -> tuple[dict[str, Any], str]:
        """What vLLM saw, and what the launcher said."""
        done = subprocess.run(
            [sys.executable, "-S", str(self.files / "launcher.py"), *arguments],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(self.image),
                "PYTHONDONTWRITEBYTECODE": "1",
                "HOLDFAST_DRAIN_FILE": str(self.files / "draining"),
                **({"HOLDFAST_FLAGS_WITHOUT_PLUGIN": plain} if plain else {}),
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.33.1"])
def test_a_known_vllm_gets_the_plugin_in_all_its_processes(version: str, tmp_path: Path) -> None:
    pod = Pod(tmp_path, version, load_plugin())
    seen, said = pod.run("serve", "m", SCHEDULER, "--seed=1")
    assert seen["arguments"] == ["vllm", "serve", "m", SCHEDULER, "--seed=1"]
    assert seen["found"].startswith(str(pod.files / "holdfast_engine.zip"))
    assert seen["loggers"] == ["holdfast"]
    assert f"the fast loop runs inside vLLM {version}" in said


@pytest.mark.parametrize("version", ["0.31.1", "0.34.0", "1.0.0", "0.1.dev123"])
def test_another_vllm_gets_plain_flags_and_the_log_says_so(version: str, tmp_path: Path) -> None:
    seen, said = Pod(tmp_path, version, load_plugin()).run("serve", "m", SCHEDULER, "--seed=1")
    assert seen["arguments"] == ["vllm", "serve", "m", "--seed=1", ADMISSION]
    assert seen["found"] is None
    assert seen["loggers"] == []
    assert f"the plugin does not know vLLM {version}: no fast loop, started with {ADMISSION} instead" in said


@pytest.mark.parametrize("plugin", [b"", b"no zip"])
def test_a_plugin_that_cannot_be_loaded_is_no_reason_not_to_serve(plugin: bytes, tmp_path: Path) -> None:
    seen, said = Pod(tmp_path, "0.32.0", plugin).run("serve", "m", SCHEDULER, plain="")
    assert seen["arguments"] == ["vllm", "serve", "m"]
    assert "the plugin cannot be loaded" in said
    assert "no fast loop, plain flags" in said


def test_flags_for_the_other_case_are_dropped_by_a_vllm_that_does_not_know_them(tmp_path: Path) -> None:
    seen, said = Pod(tmp_path, "0.28.0", load_plugin()).run("serve", "m", SCHEDULER)
    assert seen["arguments"] == ["vllm", "serve", "m"]
    assert "vLLM 0.28.0 does not know --max-num-queued-tokens: dropped" in said


def test_a_scheduler_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    seen, said = Pod(tmp_path, "0.32.0", load_plugin()).run("serve", "m", "--scheduler-cls=mine.Scheduler")
    assert seen["arguments"] == ["vllm", "serve", "m", "--scheduler-cls=mine.Scheduler"]
    assert seen["loggers"] == []
    assert "fast loop" not in said


@pytest.mark.parametrize("listed", ["", "lora_filesystem_resolver"])
def test_a_list_of_plugins_that_vllm_may_load_gets_ours(listed: str, tmp_path: Path) -> None:
    pod = Pod(tmp_path, "0.32.0", load_plugin())
    seen, _ = pod.run("serve", "m", SCHEDULER, VLLM_PLUGINS=listed)
    assert seen["plugins"].split(",") == [listed, *seen["loggers"]]


def test_without_such_a_list_vllm_loads_all_plugins(tmp_path: Path) -> None:
    seen, _ = Pod(tmp_path, "0.32.0", load_plugin()).run("serve", "m", SCHEDULER)
    assert seen["plugins"] is None


def test_without_the_fast_loop_the_list_stays(tmp_path: Path) -> None:
    seen, _ = Pod(tmp_path, "0.31.0", load_plugin()).run("serve", "m", SCHEDULER, VLLM_PLUGINS="other")
    assert seen["plugins"] == "other"

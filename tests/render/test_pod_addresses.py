"""Where an engine listens, in network namespaces of its own: with IPv6, without, and with one socket for each.

The launcher's own answer is taken to a real socket, as vLLM takes `--host`, and asked from inside the namespace.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.render import podfiles

LAUNCHER = Path(podfiles.__file__).parent / "pod" / "launcher.py"
INSIDE = """
import importlib.util, socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
for setting in sys.argv[2:]:
    path, value = setting.split("=")
    open("/proc/sys/net/ipv6/" + path, "w").write(value)
spec = importlib.util.spec_from_file_location("launcher", sys.argv[1])
launcher = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launcher)
host = dict(each.split("=") for each in launcher.on_all_addresses([])).get("--host", "")
family = socket.AF_INET6 if ":" in host else socket.AF_INET
server = socket.socket(family)
server.bind((host, 8000))
server.listen()
for address in ("127.0.0.1", "::1"):
    try:
        socket.create_connection((address, 8000), timeout=5).close()
        print(address)
    except OSError:
        pass
"""


def reached(*settings: str) -> list[str]:
    """The loopback addresses on which an engine is reached where the kernel has these settings."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("needs unshare and ip: apt install util-linux iproute2")
    isolated = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--mount-proc"]
    command = [*isolated, sys.executable, "-c", INSIDE, str(LAUNCHER), *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.stderr.startswith("unshare:"):
        pytest.skip(f"needs user namespaces (sysctl user.max_user_namespaces): {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_an_engine_is_reached_on_both_families_where_the_kernel_has_both() -> None:
    assert reached() == ["127.0.0.1", "::1"]


@pytest.mark.parametrize("settings", [("conf/all/disable_ipv6=1",), ("bindv6only=1",)])
def test_an_engine_is_reached_on_ipv4_where_the_kernel_does_not_give_both(settings: tuple[str, ...]) -> None:
    assert reached(*settings) == ["127.0.0.1"]

"""Without a cluster, or rights in it, every command says so in one line: the server, the reason and the remedy."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from holdfast.cli.main import main

COMMANDS = [["status"], ["explain", "prod/chat"], ["adopt", "deploy/chat"]]
FORBIDDEN = 'llmservices.holdfast.dev is forbidden: User "jane" cannot list resource "llmservices"'


def kubeconfig(folder: Path, port: int) -> str:
    file = folder / "config"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    user, context = {"name": "u", "user": {"token": "t"}}, {"name": "here", "context": {"cluster": "c", "user": "u"}}
    file.write_text(
        json.dumps({"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "here"})
    )
    return f"--kubeconfig={file}"


@contextmanager
def server(status: int, message: str) -> Iterator[int]:
    """An API server that answers everything alike; yields its port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"kind": "Status", "message": message}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running.server_port
        finally:
            running.shutdown()
            thread.join()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_kubeconfig_is_one_line_with_the_remedy(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, f"--kubeconfig={tmp_path / 'none'}"]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line == (
        f"holdfast {command[0]}: no cluster configuration: the kubeconfig {tmp_path / 'none'} does not exist; "
        "set KUBECONFIG or --kubeconfig"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_dead_server_is_one_line_with_its_address_the_reason_and_the_remedy(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert main([*command, kubeconfig(tmp_path, port)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"holdfast {command[0]}: http://127.0.0.1:{port} does not answer GET /")
    assert "Connection refused; check that the cluster runs" in line


@pytest.mark.parametrize(
    ("status", "message", "remedy"),
    [
        (401, "Unauthorized", "log in again"),
        (403, FORBIDDEN, "ask for this right"),
        (404, "the server could not find the requested resource", "holdfast crd | kubectl apply -f -"),
        (404, 'llmservices.holdfast.dev "chat" not found', "check the name and --namespace"),
        (500, "etcdserver: leader changed", "try again"),
    ],
)
def test_a_refusal_is_one_line_with_the_server_its_words_and_the_remedy(
    status: int, message: str, remedy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with server(status, message) as port:
        assert main(["explain", "prod/chat", kubeconfig(tmp_path, port)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"holdfast explain: http://127.0.0.1:{port} refuses it, {status}: {message}; ")
    assert remedy in line


def test_without_rights_adopt_says_which_right_is_missing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with server(403, FORBIDDEN) as port:
        assert main(["adopt", "deploy/chat", kubeconfig(tmp_path, port)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert "ask for th" in line


@pytest.mark.parametrize("text", ["", "root:x:0:0\n", "{", "[]", "apiVersion: v1\nkind: Config\n", "\x00"])
@pytest.mark.parametrize("command", [["status"], ["explain", "prod/chat"]])
def test_a_file_that_is_no_kubeconfig_is_told_in_one_line(
    command: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    assert main([*command, f"--kubeconfig={file}"]) == 1
    assert f"holdfast {command[0]}: no cluster configuration: " in capsys.readouterr().err


@pytest.mark.slow
def test_an_operator_without_a_cluster_ends_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("root:x:0:0\n")
    # A process of its own, for an operator sets up logging and signals.
    command = [sys.executable, "-m", "holdfast.cli.main", "run", "--prometheus-url=http://prometheus:9090"]
    done = subprocess.run([*command, f"--kubeconfig={file}"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "no cluster configuration: " in line

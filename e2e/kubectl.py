"""A thin wrapper around the real kubectl, for tests and the demo."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from e2e.patience import patient

Json = dict[str, Any]

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.25, 1.0


class KubectlError(Exception):
    """Kubectl failed; the message is what it printed on standard error."""


class Timeout(Exception):
    """Something did not become true in time; the message ends with the last state seen."""


class Kubectl:
    """Kubectl in one namespace of the cluster that KUBECONFIG names; it waits as `patience` says."""

    def __init__(self, namespace: str = "default") -> None:
        self.namespace = namespace

    def run(self, *arguments: str, stdin: str | None = None, seconds: float = 60.0) -> str:
        """Run ``kubectl ARGUMENTS`` and return what it printed."""
        command = ["kubectl", "--namespace", self.namespace, *arguments]
        deadline = time.monotonic() + patient(seconds)
        while True:
            done = subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=patient(seconds), check=False
            )
            if done.returncode == 0:
                return done.stdout
            # Nothing was asked yet of an API server that is too busy for a handshake.
            if "TLS handshake timeout" not in done.stderr or time.monotonic() > deadline:
                raise KubectlError(done.stderr.strip())

    def apply(self, manifest: str | Json | list[Json]) -> None:
        """Apply YAML text, one object or several."""
        self.run("apply", "--filename", "-", stdin=_text(manifest))

    def create(self, manifest: str | Json | list[Json]) -> None:
        """Create objects that must not exist yet."""
        self.run("create", "--filename", "-", stdin=_text(manifest))

    def refusal(self, manifest: str | Json | list[Json]) -> str:
        """The API server's message for a manifest that it must refuse."""
        try:
            self.run("apply", "--server-side", "--force-conflicts", "--filename", "-", stdin=_text(manifest))
        except KubectlError as error:
            return str(error)
        raise AssertionError("the API server accepted a manifest that it should refuse")

    def get_json(self, kind: str, name: str | None = None, *, selector: str | None = None) -> Json:
        """An object, or a list when no name is given."""
        target = [kind] if name is None else [kind, name]
        labels = ["--selector", selector] if selector else []
        found: Json = json.loads(self.run("get", *target, *labels, "--output", "json"))
        return found

    def items(self, kind: str, selector: str | None = None) -> list[Json]:
        """All objects of a kind, perhaps only those with these labels."""
        found: list[Json] = self.get_json(kind, selector=selector)["items"]
        return found

    def exists(self, kind: str, name: str) -> bool:
        """Whether the object is there."""
        return bool(self.run("get", kind, name, "--ignore-not-found", "--output", "name").strip())

    def patch(self, kind: str, name: str, body: Json, *, subresource: str | None = None) -> None:
        """Merge-patch an object or a subresource of it."""
        extra = ["--subresource", subresource] if subresource else []
        self.run("patch", kind, name, "--type", "merge", "--patch", json.dumps(body), *extra)

    def scale(self, kind: str, name: str, replicas: int) -> None:
        """Set the number of replicas through the scale subresource."""
        self.run("scale", kind, name, f"--replicas={replicas}")

    def delete(self, kind: str, name: str, *, wait: bool = True, seconds: float = 60.0) -> None:
        """Delete an object if it is there; with wait, return when it is gone."""
        self.run("delete", kind, name, "--ignore-not-found", f"--wait={str(wait).lower()}", seconds=seconds)

    def logs(self, target: str, *arguments: str) -> str:
        """Output of a pod, or of ``deployment/NAME``."""
        return self.run("logs", target, *arguments)

    def execute(self, target: str, *command: str, seconds: float = 60.0) -> str:
        """Run a command in a pod, or in a pod of ``deployment/NAME``, and return what it printed."""
        return self.run("exec", target, "--", *command, seconds=seconds)

    def wait_for(
        self,
        kind: str,
        name: str,
        is_true: Callable[[Json], bool],
        seconds: float,
        what: str = "the condition",
    ) -> Json:
        """Watch an object, which may not exist yet, until is_true(object); return it as it is then."""
        last: Json = {}
        deadline = time.monotonic() + patient(seconds)
        # A watch may end before its time, where a busy API server is too slow for a handshake for one.
        while (left := deadline - time.monotonic()) > 0.0:
            # A field selector, for a watch by name refuses names that do not exist yet.
            with self._watching(kind, f"--field-selector=metadata.name={name}", left) as objects:
                for last in objects:
                    if is_true(last):
                        return last
            time.sleep(0.25)
        shown = json.dumps(last.get("status", last), indent=1)[:3000] if last else "nothing of that name was seen"
        raise Timeout(f"waited {patient(seconds):.0f} s for {what} of {kind}/{name}; last seen: {shown}")

    def wait_until(
        self, is_true: Callable[[], bool], seconds: float, what: str, poll_seconds: float | None = None
    ) -> None:
        """Ask again and again, less and less often unless told how often; for facts of several objects."""
        deadline = time.monotonic() + patient(seconds)
        pause = poll_seconds or _FIRST_PAUSE_SECONDS
        while not is_true():
            if time.monotonic() > deadline:
                raise Timeout(f"waited {patient(seconds):.0f} s for {what}")
            time.sleep(pause)
            # Each question is a process of kubectl, 0.2 s of CPU: four in a second take what is waited for.
            pause = poll_seconds or min(_LONGEST_PAUSE_SECONDS, 1.2 * pause)

    def wait_established(self, crd: str) -> None:
        """Wait until the API server takes objects of a type; kubectl's own wait fails on one without any condition."""
        self.wait_for("crd", crd, lambda found: condition(found, "Established").get("status") == "True", 30, "a type")

    def wait_available(self, deployment: str, seconds: float = 60.0) -> None:
        """Wait until a deployment has all its replicas, updated and available."""
        self.wait_for("deployment", deployment, _is_available, seconds, "all replicas")

    @contextmanager
    def recorded(self, kind: str, selector: str, seconds: float) -> Iterator[Callable[[], list[Json]]]:
        """Note each state of the objects with these labels in the order it had; yields what reads them."""
        with tempfile.NamedTemporaryFile() as noted:
            process = self._watch(kind, f"--selector={selector}", patient(seconds), stdout=noted)
            try:
                yield lambda: list(_documents(Path(noted.name).read_text(encoding="utf-8").splitlines()))
            finally:
                process.kill()
                process.communicate()

    @contextmanager
    def _watching(self, kind: str, which: str, seconds: float) -> Iterator[Iterator[Json]]:
        process = self._watch(kind, which, seconds, stdout=subprocess.PIPE)
        try:
            yield _documents_of(process)
        finally:
            process.kill()
            process.communicate()

    def _watch(self, kind: str, which: str, seconds: float, *, stdout: int | IO[bytes]) -> subprocess.Popen[str]:
        command = ["kubectl", "--namespace", self.namespace, "get", kind, which]
        command += ["--watch", "--output=json", f"--request-timeout={max(1, round(seconds))}s"]
        return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)


def condition(found: Json, kind: str) -> Json:
    """The condition of this type, or an empty object."""
    conditions = found.get("status", {}).get("conditions") or []
    return next((entry for entry in conditions if entry["type"] == kind), {})


def _is_available(found: Json) -> bool:
    status, wanted = found.get("status", {}), found["spec"].get("replicas", 1)
    current = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
    counts = [status.get(field, 0) for field in ("replicas", "updatedReplicas", "availableReplicas")]
    return current and counts == [wanted] * 3


def _documents_of(process: subprocess.Popen[str]) -> Iterator[Json]:
    """What kubectl prints, until it ends."""
    assert process.stdout is not None
    yield from _documents(process.stdout)
    assert process.stderr is not None
    error = process.stderr.read().strip()
    if process.wait() not in {0, None} and "timeout" not in error.lower() and "deadline" not in error.lower():
        raise KubectlError(error)


def _documents(printed: Iterable[str]) -> Iterator[Json]:
    """The JSON documents that kubectl prints one after the other, each as soon as it is complete."""
    lines: list[str] = []
    for line in printed:
        lines.append(line)
        if line.rstrip() == "}":
            yield json.loads("".join(lines))
            lines.clear()


def _text(manifest: str | Json | list[Json]) -> str:
    if isinstance(manifest, str):
        return manifest
    # JSON, for YAML written by one library may mean something else to another (a bare y, for one).
    if isinstance(manifest, list):
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifest})
    return json.dumps(manifest)

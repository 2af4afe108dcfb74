"""A release, pushed to a real registry and installed from there, as somebody else would."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest

from e2e.cluster.images import project
from e2e.cluster.toolset import PROMETHEUS
from e2e.kubectl import Kubectl
from e2e.patience import patient
from e2e.registry import registry, skopeo
from release import chart, own
from release.oci import INDEX_TYPE, MANIFEST_TYPE, write_index_archive
from release.publish import publish

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def published(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The registry and path that image and chart of this checkout were pushed to; the image is this machine's."""
    dist, version = tmp_path_factory.mktemp("dist"), own.project_version()
    with registry(tmp_path_factory.mktemp("registry")) as host:
        address = f"{host}/team"
        archive = dist / f"holdfast-image-{version}.oci.tar"
        write_index_archive(archive, version, [project().image(version)], {})
        chart.package(dist, version, address, "https://docs.example.com/h", "")
        publish(dist, version, address, skopeo())
        yield address


def _fetched(address: str, accept: str) -> bytes:
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=patient(10.0)) as answer:
        return answer.read()


def test_the_registry_has_the_image_under_the_digest_that_the_clusters_image_has(published: str) -> None:
    host, version, image = published.partition("/")[0], own.project_version(), project().image(own.project_version())
    index = _fetched(f"http://{host}/v2/team/holdfast/manifests/{version}", INDEX_TYPE)
    assert [found["digest"] for found in json.loads(index)["manifests"]] == [image.digest]
    manifest = _fetched(f"http://{host}/v2/team/holdfast/manifests/{image.digest}", MANIFEST_TYPE)
    assert manifest == image.manifest


def test_the_chart_installs_from_the_registry_and_its_operator_runs_the_image_from_there(
    published: str, api: Kubectl, namespace: Kubectl
) -> None:
    version = own.project_version()
    settings = {
        # The types are there, and another operator may lead in this cluster.
        "crds.install": "false",
        "rbac.aggregate": "false",
        "replicas": "1",
        "watchNamespaces": f"{{{namespace.namespace}}}",
        "prometheus.enabled": "true",
        "prometheus.image.repository": "holdfast.local/prometheus",
        "prometheus.image.tag": PROMETHEUS.version,
    }
    given = [argument for name, value in settings.items() for argument in ("--set", f"{name}={value}")]
    command = ["helm", "upgrade", "--install", "published", f"oci://{published}/charts/holdfast", "--plain-http"]
    wait = ["--version", version, "--namespace", namespace.namespace, "--wait", f"--timeout={patient(240.0):.0f}s"]
    subprocess.run([*command, *wait, *given], check=True, stdout=subprocess.DEVNULL, env=os.environ)

    pods = namespace.items("pods")
    [status] = [
        status
        for pod in pods
        for status in pod["status"]["containerStatuses"]
        if status["image"].startswith(f"{published}/holdfast:")
    ]
    assert status["image"] == f"{published}/holdfast:{version}"
    assert status["imageID"].startswith(f"{published}/holdfast@sha256:")
    assert status["ready"]
    subprocess.run(["helm", "uninstall", "published", "--namespace", namespace.namespace, "--wait"], check=True)

"""The release's notes, out of the changelog, and its README."""

from __future__ import annotations

import re

from release.wheels import REPOSITORY

CHANGELOG = REPOSITORY / "CHANGELOG.md"


class NotesError(Exception):
    """The changelog has no section for the version."""


def of_version(version: str, changelog: str | None = None) -> str:
    """The changelog's section of this version, else the one that is not released yet."""
    text = CHANGELOG.read_text() if changelog is None else changelog
    sections = dict(re.findall(r"^## \[(.+?)\].*?\n(.*?)(?=^## \[|\Z)", text, re.MULTILINE | re.DOTALL))
    found = sections.get(version, sections.get("Unreleased", "")).strip()
    if not found:
        raise NotesError(f"CHANGELOG.md has neither a section [{version}] nor anything under [Unreleased]: write it")
    return f"# Holdfast {version}\n\n{found}\n"


def with_image(text: str, version: str, registry: str) -> str:
    """A manifest or values file of the checkout with the release's image where REGISTRY/holdfast stands."""
    text = re.sub(r"\bREGISTRY/holdfast:\S+", f"REGISTRY/holdfast:{version}", text)
    return text.replace("REGISTRY/holdfast", f"{registry}/holdfast") if registry else text


def readme(version: str, registry: str, site: str, repository: str) -> str:
    """What is in the folder, how to publish it, install it and check it."""
    home = registry or "REGISTRY"
    links = "".join(f"{name}: {address}\n\n" for name, address in (("Docs", site), ("Source", repository)) if address)
    return f"""\
# Holdfast {version}

{links}| file | what it is |
|---|---|
| `holdfast-image-{version}.oci.tar` | image for amd64 and arm64 as an OCI archive (no test runs arm64) |
| `holdfast-{version}.tgz` | the Helm chart |
| `holdfast_operator-*.whl`, `holdfast_operator-*.tar.gz` | the package `holdfast-operator`: command line and operator |
| `no-gpu-values.yaml`, `no-gpu-trial.yaml` | a trial without a GPU: values of the chart, then a service and its load |
| `*.cdx.json`, `*.spdx.json` | what each image consists of, in the forms of CycloneDX and SPDX |
| `SHA256SUMS`, `SHA256SUMS.sig` | checksums, and their signature where the release was signed |

Publish it (skopeo and helm, logged in to the registry):

```sh
skopeo copy --all oci-archive:holdfast-image-{version}.oci.tar docker://{home}/holdfast:{version}
helm push holdfast-{version}.tgz oci://{home}/charts
```

Install it:

```sh
helm upgrade --install holdfast oci://{home}/charts/holdfast --version {version} \\
  --namespace holdfast-system --create-namespace --set settings.prometheusUrl=http://prometheus.monitoring:9090
```

Or try it without a GPU, in a plain cluster with two CPUs; the engines are emulated:

```sh
helm upgrade --install holdfast oci://{home}/charts/holdfast --version {version} \\
  --namespace holdfast-system --create-namespace --wait --values no-gpu-values.yaml
kubectl apply --filename no-gpu-trial.yaml
```

Check it:

```sh
sha256sum --check SHA256SUMS
openssl dgst -sha256 -verify PUBLIC_KEY.pem -signature SHA256SUMS.sig SHA256SUMS
```
"""

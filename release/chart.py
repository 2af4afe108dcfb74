"""The chart as it is published: the checkout's, with the release's version and addresses written into it."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from pathlib import Path

import yaml

from holdfast.monitoring import files
from release import notes
from release.own import EPOCH_SECONDS
from release.wheels import REPOSITORY

CHART = REPOSITORY / "charts" / "holdfast"
_RULES = "files/monitoring/rules.yaml"
ICON = "docs/images/icon.svg"


def package(target: Path, version: str, registry: str, site: str, repository: str) -> Path:
    """Write holdfast-VERSION.tgz into a folder, as `helm package` lays it out; empty addresses are left out."""
    contents = {str(path.relative_to(CHART)): path.read_text() for path in CHART.rglob("*") if path.is_file()}
    contents.pop(".helmignore", None)
    contents["Chart.yaml"] = _about(contents["Chart.yaml"], version, registry, site, repository)
    contents["values.yaml"] = notes.with_image(contents["values.yaml"], version, registry)
    contents["README.md"] = contents["README.md"].replace("oci://REGISTRY", f"oci://{registry or 'REGISTRY'}")
    contents["README.md"] = contents["README.md"].replace("--version VERSION", f"--version {version}")
    if site:
        groups = files.rule_groups(operator_namespace="RELEASE_NAMESPACE", runbook_base=site)
        contents[_RULES] = files.rules_yaml(groups)
    archive = target / f"holdfast-{version}.tgz"
    archive.write_bytes(_packed({f"holdfast/{name}": text for name, text in contents.items()}))
    return archive


def _about(text: str, version: str, registry: str, site: str, repository: str) -> str:
    about = yaml.safe_load(text)
    about |= {"version": version, "appVersion": version}
    about |= {"home": site, "icon": f"{site}/{ICON}"} if site else {}
    about |= {"sources": [repository]} if repository else {}
    links = [{"name": name, "url": url} for name, url in (("docs", site), ("source", repository)) if url]
    told = {
        "artifacthub.io/prerelease": str("-" in version).lower(),
        "artifacthub.io/images": _listed(
            [{"name": "holdfast", "image": f"{registry or 'REGISTRY'}/holdfast:{version}"}]
        ),
        "artifacthub.io/changes": _listed(_changes(notes.of_version(version))),
    }
    about["annotations"] |= told | ({"artifacthub.io/links": _listed(links)} if links else {})
    return yaml.safe_dump(about, sort_keys=False, width=10_000, allow_unicode=True)


def _changes(text: str) -> list[dict[str, str]]:
    """The first sentence of each entry, with the kind of its section."""
    changes, kind = [], "added"
    for line in re.split(r"\n(?=- |### )", text):
        if heading := re.match(r"### (\w+)", line):
            kind = heading.group(1).lower()
        elif line.startswith("- "):
            sentence = re.split(r"(?<=[.:;])\s", " ".join(line[2:].split()))[0].rstrip(":;")
            changes.append({"kind": kind, "description": sentence})
    return changes


def _listed(items: list[dict[str, str]]) -> str:
    return yaml.safe_dump(items, sort_keys=False, width=10_000, allow_unicode=True)


def _packed(contents: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(contents):
            member, content = tarfile.TarInfo(name), contents[name].encode()
            member.size, member.mode, member.mtime = len(content), 0o644, EPOCH_SECONDS
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)

"""What an image consists of, as CycloneDX 1.5 and SPDX 2.3 say it: Debian's packages, wheels and the project."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from release import wheels
from release.debian import Deb

Json = dict[str, Any]
# Equal inputs give equal documents, so that they carry the time of no build.
_CREATED = "1980-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Part:
    """A package inside the image: `address` is its package URL, `sha256` the checksum of its file."""

    name: str
    version: str
    address: str
    sha256: str
    licence: str


def parts(architecture: str, debs: Sequence[Deb], libraries: Sequence[Path]) -> list[Part]:
    """The parts of the image of one architecture; Debian's licences are in its copyright files, not here."""
    return [*(_of_deb(deb, architecture) for deb in debs), *(_of_wheel(wheel) for wheel in libraries)]


def _of_deb(deb: Deb, architecture: str) -> Part:
    address = f"pkg:deb/debian/{deb.package}@{quote(deb.version, safe='')}?arch={architecture}&distro=bookworm"
    return Part(deb.package, deb.version, address, deb.sha256, "")


def _of_wheel(wheel: Path) -> Part:
    about = wheels.about(wheel)
    name, version = wheels.normalized(about["Name"]), about["Version"]
    licence = about.get("License-Expression") or ""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Part(name, version, f"pkg:pypi/{name}@{quote(version, safe='')}", digest, licence)


def cyclonedx(version: str, architecture: str, image_digest: str, found: Sequence[Part]) -> Json:
    """The parts as a CycloneDX document."""
    subject = {
        "type": "container",
        "bom-ref": _address(architecture, image_digest),
        "name": "holdfast",
        "version": version,
        "purl": _address(architecture, image_digest),
    }
    components = [
        {
            "type": "library",
            "bom-ref": part.address,
            "name": part.name,
            "version": part.version,
            "purl": part.address,
            "hashes": [{"alg": "SHA-256", "content": part.sha256}],
            **({"licenses": [{"expression": part.licence}]} if part.licence else {}),
        }
        for part in found
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, image_digest)}",
        "version": 1,
        "metadata": {"timestamp": _CREATED, "component": subject},
        "components": components,
        "dependencies": [{"ref": subject["bom-ref"], "dependsOn": [part.address for part in found]}],
    }


def spdx(version: str, architecture: str, image_digest: str, found: Sequence[Part]) -> Json:
    """The parts as an SPDX document."""
    image = {
        "SPDXID": "SPDXRef-image",
        "name": "holdfast",
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseDeclared": "Apache-2.0",
        "externalRefs": [_reference(_address(architecture, image_digest))],
    }
    packages = [image, *(_spdx_package(part) for part in found)]
    contained = [
        {"spdxElementId": image["SPDXID"], "relationshipType": "CONTAINS", "relatedSpdxElement": package["SPDXID"]}
        for package in packages[1:]
    ]
    described = {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES"}
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"holdfast-{version}-{architecture}",
        "documentNamespace": f"urn:holdfast:{version}:{architecture}:{image_digest}",
        "creationInfo": {"created": _CREATED, "creators": ["Tool: holdfast-release"]},
        "packages": packages,
        "relationships": [{**described, "relatedSpdxElement": image["SPDXID"]}, *contained],
    }


def _spdx_package(part: Part) -> Json:
    return {
        "SPDXID": "SPDXRef-" + re.sub(r"[^a-zA-Z0-9.-]", "-", f"{part.address.split('/')[0][4:]}-{part.name}"),
        "name": part.name,
        "versionInfo": part.version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseDeclared": part.licence or "NOASSERTION",
        "checksums": [{"algorithm": "SHA256", "checksumValue": part.sha256}],
        "externalRefs": [_reference(part.address)],
    }


def _reference(address: str) -> Json:
    return {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": address}


def _address(architecture: str, image_digest: str) -> str:
    return f"pkg:oci/holdfast@{quote(image_digest, safe='')}?arch={architecture}"

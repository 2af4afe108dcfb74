"""Where weights are, for each form of model.uri, and adapters, for each form of their uri."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from holdfast.rendered.names import Manifest, short_hash

MOUNT_PATH = "/models"
VOLUME = "model"
ADAPTERS_PATH = "/adapters"


@dataclass(frozen=True, slots=True)
class Location:
    """Where `vllm serve` finds weights, and the volume with them (None: Hugging Face, or in the image)."""

    argument: str
    volume: Manifest | None = None
    mount_path: str = MOUNT_PATH

    @property
    def mount(self) -> Manifest | None:
        """The mount of the volume: read-only."""
        if self.volume is None:
            return None
        return {"name": self.volume["name"], "mountPath": self.mount_path, "readOnly": True}


def locate_model(uri: str) -> Location:
    """Return where `vllm serve` finds a model; the API has checked the form of the uri."""
    if uri.startswith("pvc://"):
        return _in_claim(uri, VOLUME, MOUNT_PATH)
    if uri.startswith("oci://"):
        reference = uri.removeprefix("oci://")
        source = {"image": {"reference": reference, "pullPolicy": "IfNotPresent"}}
        return Location(MOUNT_PATH, {"name": VOLUME, **source})
    return Location(uri)


def locate_adapter(uri: str) -> Location:
    """Return where an adapter is; the launcher downloads `org/name@commit` before it starts vLLM.

    Adapters of one claim share a volume.
    """
    if not uri.startswith("pvc://"):
        return Location(uri)
    claim = _claim_of(uri)[0]
    return _in_claim(uri, f"adapters-{short_hash(claim)}", f"{ADAPTERS_PATH}/{claim}")


def _in_claim(uri: str, volume: str, mount_path: str) -> Location:
    claim, path = _claim_of(uri)
    source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    # normpath of an absolute path cannot climb above its root, so the mount bounds it.
    inside = posixpath.normpath(f"/{path}").lstrip("/")
    return Location(posixpath.join(mount_path, inside).rstrip("/"), {"name": volume, **source}, mount_path)


def _claim_of(uri: str) -> tuple[str, str]:
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    return claim, path

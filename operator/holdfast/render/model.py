"""Where the weights are, for each form of model.uri."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from holdfast.render.names import Manifest

MOUNT_PATH = "/models"
VOLUME = "model"


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """The model argument of `vllm serve`, and the volume it needs (None: Hugging Face, or in the image)."""

    argument: str
    volume: Manifest | None = None

    @property
    def mount(self) -> Manifest | None:
        """The mount of the volume: read-only."""
        return {"name": VOLUME, "mountPath": MOUNT_PATH, "readOnly": True} if self.volume else None


def locate_model(uri: str) -> ModelLocation:
    """Return where `vllm serve` finds a model; the API has checked the form of the uri."""
    if uri.startswith("pvc://"):
        claim, _, path = uri.removeprefix("pvc://").partition("/")
        source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        # normpath of an absolute path cannot climb above its root, so the mount bounds it.
        inside = posixpath.normpath(f"/{path}").lstrip("/")
        return ModelLocation(posixpath.join(MOUNT_PATH, inside).rstrip("/"), {"name": VOLUME, **source})
    if uri.startswith("oci://"):
        reference = uri.removeprefix("oci://")
        source = {"image": {"reference": reference, "pullPolicy": "IfNotPresent"}}
        return ModelLocation(MOUNT_PATH, {"name": VOLUME, **source})
    return ModelLocation(uri)

"""Which engines get the plugin, and how it reaches them (docs/engine.md).

It lies as one zip next to the launcher, which knows the version of vLLM for a fact: it loads the plugin where that
version is supported, and starts vLLM with plain flags elsewhere. What the operator knows before is decided here.
"""

from __future__ import annotations

import re

from holdfast.api.engine_flags import flag_name, is_flag
from holdfast.api.llmservice import Accelerator, LLMService, LLMServiceSpec
from holdfast.rendered import names
from holdfast.rendered.context import Deployed
from holdfast.rendered.names import Manifest
from holdfast_engine.versions import SUPPORTED, is_supported

ARCHIVE = "holdfast_engine.zip"
PLAIN_FLAGS_VARIABLE = "HOLDFAST_FLAGS_WITHOUT_PLUGIN"
"""Where the launcher finds what to add where it starts vLLM without the plugin after all."""

# holdfast_engine.objectives.limits looks into these.
LIMITS_FOLDER = "/etc/holdfast/limits"
POD_FOLDER = "/etc/holdfast/pod"
LIMITS_FILE = "engine-limits"

_RELEASE = re.compile(r"v?(\d+)\.(\d+)(\.\d+)?")


def withheld(spec: LLMServiceSpec, accelerator: Accelerator) -> str:
    """Why engines are rendered without the plugin, empty where they get it."""
    if spec.engine.plugin == "Disabled":
        return "engine.plugin is Disabled"
    if any(is_flag(flag_name(argument), names.SCHEDULER_FLAG) for argument in (*spec.engine.args, *accelerator.args)):
        return f"the arguments name a {names.SCHEDULER_FLAG} of their own"
    release = tagged_release(accelerator.image or spec.engine.image)
    if release is not None and not is_supported(release):
        known = " and ".join(f"{major}.{minor}" for major, minor in sorted(SUPPORTED))
        return f"the plugin knows vLLM {known}, and the image is {release}"
    return ""


def tagged_release(image: str) -> str | None:
    """The release that the tag of a vLLM image names, None where only the image itself can tell."""
    repository, _, tag = image.partition("@")[0].rpartition(":")
    found = _RELEASE.match(tag)
    # Other images, and tags such as `rocm7.0`, have numbers of their own.
    if found is None or not repository.rpartition("/")[2].startswith("vllm"):
        return None
    return f"{found[1]}.{found[2]}{found[3] or '.0'}"


def volumes(service: str, accelerator: Accelerator) -> list[Manifest]:
    """Where an engine finds its limits: those of its service, and those written for its pod while it runs.

    Neither needs to be there: an engine without limits serves first come first served.
    """
    of_service = {
        "name": names.limits_name(service),
        "items": [{"key": accelerator.name, "path": LIMITS_FILE}],
        "optional": True,
    }
    of_pod = {"path": LIMITS_FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{names.LIMITS_ANNOTATION}']"}}
    return [
        {"name": "service-limits", "configMap": of_service},
        {"name": "pod-limits", "downwardAPI": {"items": [of_pod]}},
    ]


def mounts() -> list[Manifest]:
    """Folders, never single files: those the kubelet would not keep up to date."""
    return [
        {"name": "service-limits", "mountPath": LIMITS_FOLDER, "readOnly": True},
        {"name": "pod-limits", "mountPath": POD_FOLDER, "readOnly": True},
    ]


def remark(service: LLMService, accelerator: Accelerator, deployed: Deployed | None, *, limited: bool) -> str:
    """What people should know where an engine runs without the plugin; `limited`: it refuses requests on its own."""
    why = withheld(service.spec, accelerator)
    name = names.deployment_name(service.metadata.name, accelerator.name)
    if why and (service.spec.engine.plugin == "Auto" or service.spec.overload == "Queue"):
        refused = "; requests beyond its capacity are refused, not queued"
        return f"{name}: no fast loop, because {why}{refused if limited else ''}"
    if not why and deployed is not None and not deployed.has_plugin:
        return f"{name}: started without the fast loop; its next rollout brings it, a new engine.pluginRevision at once"
    return ""

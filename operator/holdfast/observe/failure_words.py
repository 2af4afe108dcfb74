"""What engines, the kubelet and the scheduler say of pods that fail: our Reason for it, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import IMAGE_WORDS

MOST_WORDS = 600
"""Characters of what is quoted."""


class Remedy(NamedTuple):
    """What to do about a pod: in words of the spec, and in words of somebody else's Deployment if those differ."""

    by_spec: str
    by_deployment: str = ""

    def of(self, target: str) -> str:
        """The remedy for pods of this target, a Deployment; empty where Holdfast made them."""
        return f"{self.by_deployment} in Deployment {target}" if target and self.by_deployment else self.by_spec


_ACCESS = Remedy(
    "set model.tokenSecretRef to a Secret with a token that may read this model",
    "set HF_TOKEN to a token that may read this model",
)
_OFFLINE = Remedy(
    "let pods reach the hub, set HF_ENDPOINT in engine.env to a mirror, or use a pvc:// or oci:// model",
    "let pods reach the hub, or set HF_ENDPOINT to a mirror",
)
_NUMBERED = Remedy(
    "name one in template.spec.securityContext.runAsUser, or start the operator without --platform-assigns-ids",
    "name one in securityContext.runAsUser",
)
_LARGER = Remedy(
    "use a larger volume for model.cache, or a node with a larger disk",
    "use a node with a larger disk, or a larger volume",
)
_OFFICIAL = Remedy(
    "set engine.image to vllm/vllm-openai, or to an image based on it",
    "change the image to vllm/vllm-openai, or to one based on it",
)
_UNSERVED = Remedy("remove what it names, or serve this model without Holdfast", "remove what it names")
_CREATE = Remedy(
    "create it in the namespace of the LLMService, or correct its name in the spec",
    "create it in this namespace, or correct its name",
)
_OTHER_MODEL = Remedy("correct model.uri and model.revision", "correct the model and its revision")
_PULL = Remedy(
    "correct engine.image, or set engine.imagePullSecrets to a Secret with access to the registry",
    "correct the image, or set imagePullSecrets to a Secret with access to the registry",
)
_LOG = Remedy(
    "change what it names in the spec, or see kubectl logs -n {namespace} {name} --previous",
    "see kubectl logs -n {namespace} {name} --previous, or change what it names",
)
_DESCRIBE = Remedy(
    "change what it names in the spec, or see kubectl describe pod -n {namespace} {name}",
    "see kubectl describe pod -n {namespace} {name}, or change what it names",
)

# Messages of an engine or the kubelet, their Reason and the remedy; the first match counts.
_TELLING = (
    (re.compile(r"image unsupported:"), Reason.IMAGE_UNSUPPORTED, _OFFICIAL),
    (re.compile(r"engine unsupported:"), Reason.ENGINE_UNSUPPORTED, _UNSERVED),
    (re.compile(r'(secret ".*" not found|couldn\'t find key .* in Secret)'), Reason.SECRET_MISSING, _CREATE),
    (re.compile(r'persistentvolumeclaim ".*" not found'), Reason.VOLUME_MISSING, _CREATE),
    (re.compile(r"(\[Errno 28\]|No space left on device|Disk quota exceeded)"), Reason.DISK_FULL, _LARGER),
    (re.compile(r"(LocalEntryNotFoundError|OfflineModeIsEnabled|couldn't connect to 'https?://|"
                r"Temporary failure in name resolution|Name or service not known|Network is unreachable|"
                r"Max retries exceeded with url|cannot find the requested files in the local cache)", re.I),
     Reason.HUB_UNREACHABLE, _OFFLINE),
    (re.compile(r"(Repo id must|in repo_id:|Invalid repository ID|is not a local folder|RepositoryNotFound|"
                r"HFValidationError|is not a valid git identifier|does not appear to have a file named config|"
                r"Cannot find any model weights with)"), Reason.MODEL_NOT_FOUND, _OTHER_MODEL),
    (re.compile(r"(gated repo|Access to model .* is restricted|40[13] Client Error|Invalid user token|"
                r"Invalid credentials in Authorization)", re.I), Reason.MODEL_FORBIDDEN, _ACCESS),
    (re.compile(r"container has runAsNonRoot and image (will run as root|has non-numeric user)"),
     Reason.ENGINE_FAILING, _NUMBERED),
)  # fmt: skip


def explained(reason: str, words: str, meta: Mapping[str, Any], target: str = "") -> tuple[str, str]:
    """The Reason and the words of a failing pod, with the remedy; `meta` is the metadata of the pod.

    `target` names somebody else's Deployment that made the pod; empty if Holdfast's did.
    """
    if (found := told(words, target)) is not None:
        return found
    remedy = _PULL if reason in IMAGE_WORDS else _LOG if reason == "CrashLoopBackOff" else _DESCRIBE
    place = {"namespace": meta.get("namespace", "default"), "name": meta["name"]}
    return reason, "; ".join(filter(None, (end_of(words), remedy.of(target).format(**place))))


def told(words: str, target: str = "") -> tuple[str, str] | None:
    """Return the Reason of a message, and the message from the last matching line on with its remedy; None if none is.

    vLLM's message for a folder without a model is longer than a condition can hold, and names the folder first.
    """
    for pattern, reason, remedy in _TELLING:
        for found in reversed(list(pattern.finditer(words))):
            excerpt = words[words.rfind("\n", 0, found.start()) + 1 :].lstrip()
            to_do = remedy.of(target)
            most = MOST_WORDS - len(to_do) - 2
            excerpt = excerpt if len(excerpt) <= most else f"{excerpt[: most - 1]}…"
            return reason.value, f"{excerpt}; {to_do}"
    return None


def end_of(words: str) -> str:
    """The end of a long message: a traceback ends with the cause, and a condition holds 1024 characters."""
    return words if len(words) <= MOST_WORDS else f"…{words[-MOST_WORDS:]}"

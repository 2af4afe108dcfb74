"""What engines, the kubelet and the scheduler say of pods that fail: our Reason for it, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import IMAGE_WORDS

MOST_WORDS = 600
"""Characters of what is quoted."""

_ACCESS = "set model.tokenSecretRef to a Secret with a token that may read this model"
_OFFLINE = "let pods reach the hub, set HF_ENDPOINT in engine.env to a mirror, or use a pvc:// or oci:// model"
_NUMBERED = "name one in template.spec.securityContext.runAsUser, or start the operator without --platform-assigns-ids"
_LARGER = "use a larger volume for model.cache, or a node with a larger disk"

_OFFICIAL = "set engine.image to vllm/vllm-openai, or to an image based on it"
_UNSERVED = "remove what it names, or serve this model without Holdfast"
_CREATE = "create it in the namespace of the LLMService, or correct its name in the spec"
_OTHER_MODEL = "correct model.uri and model.revision"
_PULL = "correct engine.image, or set engine.imagePullSecrets to a Secret with access to the registry"
_LOG = "change what it names in the spec, or see kubectl logs -n {namespace} {name} --previous"
_DESCRIBE = "change what it names in the spec, or see kubectl describe pod -n {namespace} {name}"

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


def explained(reason: str, words: str, meta: Mapping[str, Any]) -> tuple[str, str]:
    """The Reason and the words of a failing pod, with the remedy; `meta` is the metadata of the pod."""
    if (found := told(words)) is not None:
        return found
    remedy = _PULL if reason in IMAGE_WORDS else _LOG if reason == "CrashLoopBackOff" else _DESCRIBE
    place = {"namespace": meta.get("namespace", "default"), "name": meta["name"]}
    return reason, "; ".join(filter(None, (end_of(words), remedy.format(**place))))


def told(words: str) -> tuple[str, str] | None:
    """Return the Reason of a message, and the message from the last matching line on with its remedy; None if none is.

    vLLM's message for a folder without a model is longer than a condition can hold, and names the folder first.
    """
    for pattern, reason, remedy in _TELLING:
        for found in reversed(list(pattern.finditer(words))):
            excerpt = words[words.rfind("\n", 0, found.start()) + 1 :].lstrip()
            most = MOST_WORDS - len(remedy) - 2
            excerpt = excerpt if len(excerpt) <= most else f"{excerpt[: most - 1]}…"
            return reason.value, f"{excerpt}; {remedy}"
    return None


def end_of(words: str) -> str:
    """The end of a long message: a traceback ends with the cause, and a condition holds 1024 characters."""
    return words if len(words) <= MOST_WORDS else f"…{words[-MOST_WORDS:]}"

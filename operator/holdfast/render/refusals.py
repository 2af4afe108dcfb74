"""What an API server says when it refuses a write, with what to do about it."""

from __future__ import annotations

import re

from holdfast.rendered.model import VOLUME

_MOST_WORDS = 700
# The first match counts. API servers before Kubernetes 1.31 do not know the field of an image volume.
_REMEDIES = (
    (rf'\.volumes\[name="{VOLUME}"\]\.image: field not declared in schema',
     "this cluster has no image volumes: use pvc:// or a Hugging Face id, or Kubernetes 1.35"),
    (r"quantities must match|unable to parse quantity",
     "write the amount as a number and a unit, such as 80Gi, 500m or 2"),
    (r"containers(\[[^]]*\])?\.image: Required value|containers\[\d+\]\.image",
     "name the container of the template vllm to change the engine, or give it an image of its own"),
    (r"exceeded quota", "raise the quota, or lower scaling.max"),
    (r'User ".*" cannot|cannot set blockOwnerDeletion|attempting to grant',
     "grant the operator this right (the role of the chart has it)"),
    (r"failed calling webhook", "mend that webhook, or set its failurePolicy to Ignore"),
    (r"admission webhook|ValidatingAdmissionPolicy|denied", "change the spec or this rule"),
    (r"NamespaceTerminating|being terminated", "wait until the namespace is deleted"),
    ("", "change what it names, in the LLMService or in the cluster"),
)  # fmt: skip


def refusal_told(message: str) -> str:
    """The words of the API server, cut so that the remedy stays readable, and the remedy."""
    shown = message if len(message) <= _MOST_WORDS else f"{message[: _MOST_WORDS - 1]}…"
    return f"{shown}; {next(remedy for words, remedy in _REMEDIES if re.search(words, message))}"

"""What engines, the kubelet and the scheduler say of pods that fail: our Reason for it, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import IMAGE_WORDS
from holdfast.observe.objects.root_cause import root_cause

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
_DOWN = Remedy(
    "the engine starts again by itself; if this lasts, set HF_ENDPOINT in engine.env to a mirror, or use a pvc:// or "
    "oci:// model",
    "the engine starts again by itself; if this lasts, set HF_ENDPOINT to a mirror",
)
_UNTRUSTED = Remedy(
    "mount the certificate of the authority that signed for the hub or its proxy (template.spec), and set "
    "SSL_CERT_FILE and REQUESTS_CA_BUNDLE in engine.env to its path",
    "mount the certificate of the authority that signed for the hub or its proxy, and set SSL_CERT_FILE and "
    "REQUESTS_CA_BUNDLE to its path",
)
_CLOCK = Remedy(
    "set the clock of the node (chronyc tracking), or renew the certificate of the hub, the registry or its proxy"
)
_PLATFORM = Remedy(
    "set engine.image to an image for the architecture of the node (kubectl get nodes -L kubernetes.io/arch), or "
    "select other nodes in accelerators[].nodeSelector",
    "change the image to one for the architecture of the node (kubectl get nodes -L kubernetes.io/arch)",
)
_REGISTRY_AWAY = Remedy("let the node reach the registry: check its DNS, proxy and firewall")
_BUCKET_AWAY = Remedy("let pods reach the bucket, or correct the address of its endpoint")
_BUCKET = Remedy(
    "give the pods credentials that may read the bucket: from a Secret in engine.env, or by their ServiceAccount",
    "give the pods credentials that may read the bucket: from a Secret, or by their ServiceAccount",
)
_SHORTER = Remedy(
    "lower model.maxModelLen, or use GPUs with more memory or a higher accelerators[].count",
    "lower --max-model-len, or use GPUs with more memory or more of them",
)
_OCCUPIED = Remedy(
    "find what else uses the GPU (nvidia-smi on its node; pods that get it without asking for it), or lower "
    "--gpu-memory-utilization in engine.args",
    "find what else uses the GPU (nvidia-smi on its node; pods that get it without asking for it), or lower "
    "--gpu-memory-utilization",
)
_SMALLER = Remedy(
    "lower --gpu-memory-utilization in engine.args or batching.maxNumSeqs, or use GPUs with more memory or a higher "
    "accelerators[].count",
    "lower --gpu-memory-utilization or --max-num-seqs, or use GPUs with more memory or more of them",
)
_NO_CACHE = Remedy(
    "raise --gpu-memory-utilization in engine.args, or use GPUs with more memory or a higher accelerators[].count",
    "raise --gpu-memory-utilization, or use GPUs with more memory or more of them",
)
_MORE_MEMORY = Remedy(
    "request more memory in engine.resources, or use nodes with more memory",
    "request more memory, or use nodes with more",
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
_UNKNOWN_FLAG = Remedy(
    "remove it from engine.args and accelerators[].args, or set engine.image to a vLLM that has it",
    "remove it from the arguments, or use an image of a vLLM that has it",
)
_UNSERVED = Remedy("remove what it names, or serve this model without Holdfast", "remove what it names")
_CREATE = Remedy(
    "create it in the namespace of the LLMService, or correct its name in the spec",
    "create it in this namespace, or correct its name",
)
_ADD_KEY = Remedy("add the key to that Secret, or correct it in the spec", "add the key to that Secret, or correct it")
_OTHER_MODEL = Remedy("correct model.uri and model.revision", "correct the model and its revision")
_OTHER_ADAPTER = Remedy(
    "correct its uri in model.lora.adapters, raise model.lora.maxRank, or set model.tokenSecretRef to a Secret with a "
    "token that may read it",
    "correct its path in --lora-modules, or raise --max-lora-rank",
)
_PULL = Remedy(
    "correct engine.image, or set engine.imagePullSecrets to a Secret with access to the registry",
    "correct the image, or set imagePullSecrets to a Secret with access to the registry",
)
_LOG = Remedy(
    "change what it names in the spec, or see kubectl logs -n {namespace} {name} --previous",
    "see kubectl logs -n {namespace} {name} --previous, or change what it names",
)
_KILLED = Remedy(
    "it was killed from outside, usually because its liveness or startup probe failed: see kubectl describe pod -n "
    "{namespace} {name}"
)
_DESCRIBE = Remedy(
    "change what it names in the spec, or see kubectl describe pod -n {namespace} {name}",
    "see kubectl describe pod -n {namespace} {name}, or change what it names",
)

# HTTP statuses as requests, httpx, urllib, reqwest, aiohttp and botocore write them.
_STATUS = (
    r"\b{0} (Client|Server) Error\b|\b(Client|Server) error '?\(?{0}\b|\bHTTP Error {0}\b|\bstatus(_?code)?[ =:]+{0}\b|"
    r"^[\w.]*(HTTP|Response|exceptions\.)\w*: {0}\b|\({0}\) when calling"
)
# Connections that fail, as libraries call them. Only of those for downloads: engines also talk to their own processes.
_HUBS = r"\b(requests|urllib3|httpx|httpcore|aiohttp|http\.client|huggingface_hub|modelscope|fsspec)\b[\w.]*\."
_CLOUDS = r"\b(botocore|aiobotocore|s3fs|google|gcsfs|azure)\b[\w.]*\."
_BROKEN = r"\w*(Connect|Endpoint|Timeout|Timed|Proxy|Protocol|Network|Transport|Incomplete|Chunked|Payload)\w*"

_UNBOUND = Remedy("create a volume for {claims}: see kubectl describe pvc -n {namespace}")
_ELSEWHERE = Remedy("use nodes in the zone of the volume of {claims}: see kubectl describe pvc -n {namespace}")
_TOLERATE = Remedy(
    "tolerate the taint in accelerators[].tolerations, or remove it from the nodes (kubectl taint)",
    "tolerate the taint in tolerations, or remove it from the nodes (kubectl taint)",
)
_ADD_NODE_OR_TOLERATE = Remedy(
    "free a GPU or add a node; if the tainted nodes have the GPUs, tolerate the taint in accelerators[].tolerations",
    "free a GPU or add a node; if the tainted nodes have the GPUs, tolerate the taint in tolerations",
)
_ADD_NODE = Remedy("free a GPU, add a node, or list another accelerator", "free a GPU, or add a node")
_ROOM = Remedy("lower engine.resources, or use larger nodes", "lower the requests, or use larger nodes")

_TAINTED = r"untolerated taint(\(s\))? \{(?!node-role\.kubernetes\.io/|node\.(cloudprovider\.)?kubernetes\.io/)"
"""Somebody's own taint: that of a control plane, and of a node in trouble, is nobody's to tolerate."""

_Row = tuple[re.Pattern[str], Reason | None, Remedy]


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE | re.MULTILINE)


def _status(numbers: str) -> str:
    return _STATUS.format(f"({numbers})")


# Messages of an engine or the kubelet, their Reason and the remedy; the first match counts.
_TELLING: tuple[_Row, ...] = (
    (re.compile(r"image unsupported:"), Reason.IMAGE_UNSUPPORTED, _OFFICIAL),
    (re.compile(r"engine unsupported:"), Reason.ENGINE_UNSUPPORTED, _UNSERVED),
    (re.compile(r": unrecognized arguments: "), Reason.ENGINE_FAILING, _UNKNOWN_FLAG),
    (re.compile(r'secret ".*" not found'), Reason.SECRET_MISSING, _CREATE),
    (re.compile(r"couldn't find key .* in Secret"), Reason.SECRET_MISSING, _ADD_KEY),
    (re.compile(r'persistentvolumeclaim ".*" not found'), Reason.VOLUME_MISSING, _CREATE),
    (_any(r"\[Errno 28\]", r"No space left on device", r"Disk quota exceeded"), Reason.DISK_FULL, _LARGER),
    (_any(r"exec format error"), Reason.IMAGE_UNSUPPORTED, _PLATFORM),
    (re.compile(r"container has runAsNonRoot and image (will run as root|has non-numeric user)"),
     Reason.ENGINE_FAILING, _NUMBERED),
)  # fmt: skip
# What the kubelet says of an image that it cannot pull; the first match counts.
_PULLING = (
    (_any(r"no match for platform", r"no matching manifest for", r"does not match the specified platform"), _PLATFORM),
    (_any(r"\bnot yet valid\b"), _CLOCK),
    (_any(r"\bdial tcp\b", r"\bno such host\b", r"i/o timeout", r"TLS handshake timeout", r"connection re(fused|set)"),
     _REGISTRY_AWAY),
)  # fmt: skip
# What the scheduler says of a pod without a node, a Reason in place of its own, and what to do; the first match counts.
# Nodes of the control plane, and nodes that are not ready, have taints that nobody should tolerate.
_UNPLACED: tuple[_Row, ...] = (
    (_any(r"unbound immediate PersistentVolumeClaims", r"find available persistent volumes to bind"),
     Reason.VOLUME_MISSING, _UNBOUND),
    (_any(r"volume node affinity conflict"), None, _ELSEWHERE),
    (_any(rf"{_TAINTED}[\s\S]*Insufficient [\w.-]+/"), None, _ADD_NODE_OR_TOLERATE),
    (_any(_TAINTED), None, _TOLERATE),
    (_any(r"Insufficient [\w.-]+/"), None, _ADD_NODE),
    (_any(r"untolerated taint"), None, _TOLERATE),
    (_any(r"Insufficient "), None, _ROOM),
)  # fmt: skip
# How a container ended that something else stopped: the kernel, or the kubelet after a failed probe (SIGTERM, SIGKILL).
_OOM: _Row = (re.compile(r"\(last exit: OOMKilled, code \d+\)$"), None, _MORE_MEMORY)
_STOPPED = re.compile(r"\(last exit: \w+, code (137|143)\)$")
# Messages of engines only. Without a Reason the next start may succeed, so one crash says nothing.
_MEMORY: tuple[_Row, ...] = (
    (_any(r"max[_ ](seq|model)[_ ]len\b.*\bKV cache", r"\bKV cache\b.*\bmax[_ ](seq|model)[_ ]len\b",
          r"auto-fit max_model_len"), None, _SHORTER),
    (_any(r"No available memory for the cache blocks"), None, _NO_CACHE),
    (_any(r"Free memory on device.*less than", r"Error in memory profiling",
          r"\bdevices?(\(s\))? (is/are|is|are) busy"),
     None, _OCCUPIED),
    (_any(r"\b(CUDA|HIP|XPU|GPU|NPU|HPU|Neuron|TPU)\b.{0,40}out of memory", r"\bOutOfMemoryError\b",
          r"not enough GPU memory", r"RESOURCE_EXHAUSTED", r"ALLOC_FAILED"), None, _SMALLER),
    (_any(r"DefaultCPUAllocator", r"\[Errno 12\]", r"\bMemoryError\b", r"core proc\(s\): \{.*: -9\b"),
     None, _MORE_MEMORY),
)  # fmt: skip
_WEIGHTS: tuple[_Row, ...] = (
    (_any(r"certificate is not yet valid"), Reason.HUB_UNREACHABLE, _CLOCK),
    (_any(r"CERTIFICATE_VERIFY_FAILED", r"certificate verify failed", r"\bSSL\w*Error\b", r"\[SSL[:\]]", r"\bx509:",
          r"self[- ]signed certificate", r"invalid peer certificate", r"certificate has expired"),
     Reason.HUB_UNREACHABLE, _UNTRUSTED),
    (_any(r"\w*Credentials?\w*(Error|Unavailable)\b", r"Unable to locate credentials", r"\bAccess ?Denied",
          r"ClientAuthenticationError", r"\b(Invalid|Expired|Unrecognized)(AccessKey|Token|Client)\w*",
          r"SignatureDoesNotMatch", r"\bAuthorization(Failure|Permission\w*)\b", r"UnauthorizedSSO",
          r"\((Forbidden|Unauthorized|40[13])\) when calling", r"does not have storage\.",
          _CLOUDS + r"(Forbidden|Unauth)"), Reason.MODEL_FORBIDDEN, _BUCKET),
    (_any(_status("403")), Reason.MODEL_FORBIDDEN, _ACCESS),
    (_any(_status(r"5\d\d|408|429"), r"Service (Temporarily )?Unavailable", r"Too Many Requests", r"Bad Gateway",
          r"\((SlowDown|ServiceUnavailable|InternalError|Throttl\w*|RequestTimeout)\) when calling"),
     Reason.HUB_UNREACHABLE, _DOWN),
    (_any(r"connect to the endpoint URL", r"on endpoint URL", _CLOUDS + _BROKEN), Reason.HUB_UNREACHABLE, _BUCKET_AWAY),
    (_any(r"LocalEntryNotFoundError", r"OfflineModeIsEnabled", r"couldn't connect to 'https?://",
          r"Max retries exceeded with url", r"cannot find the requested files in the local cache",
          r"Temporary failure in name resolution", r"Name or service not known", r"\bgaierror\b",
          r"NameResolutionError", r"No address associated with hostname", r"Could not (resolve host|contact DNS)",
          r"\bdns error", r"Network is unreachable", r"No route to host", r"Failed to establish a new connection",
          r"Cannot connect to (host|proxy)", r"All connection attempts failed", r"Tunnel connection failed",
          r"Remote end closed connection", r"peer closed connection", r"Connection broken", r"\burlopen error",
          r"error sending request for url", r"\b(Read|Write|Connect|Connection|Pool|Server|Socket)Timeout(Error)?\b",
          r"\b(read|connect|connection|handshake|request)( operation)? timed out", r"HTTPS?ConnectionPool",
          _HUBS + _BROKEN), Reason.HUB_UNREACHABLE, _OFFLINE),
    (re.compile(r"adapter \S+ cannot be loaded: |Loading lora \S+ failed|LoRA rank \d+ is greater than max_lora_rank"),
     Reason.ADAPTER_NOT_FOUND, _OTHER_ADAPTER),
    (re.compile(r"(Repo id must|in repo_id:|Invalid repository ID|is not a local folder|RepositoryNotFound|"
                r"RevisionNotFound|HFValidationError|is not a valid git identifier|NoSuchBucket|NoSuchKey|"
                r"does not appear to have a file named config|Cannot find any model weights with)"),
     Reason.MODEL_NOT_FOUND, _OTHER_MODEL),
    (_any(r"gated repo", r"Access to model .* is restricted", r"Invalid user token",
          r"Invalid credentials in Authorization", _status("401")), Reason.MODEL_FORBIDDEN, _ACCESS),
    (_any(_status("404|410")), Reason.MODEL_NOT_FOUND, _OTHER_MODEL),
)  # fmt: skip
_ALL = (_OOM, *_TELLING, *_MEMORY, *_WEIGHTS)


def explained(reason: str, words: str, meta: Mapping[str, Any], target: str = "") -> tuple[str, str]:
    """The Reason and the words of a failing pod, with the remedy; `meta` is the metadata of the pod.

    `target` names somebody else's Deployment that made the pod; empty if Holdfast's did.
    """
    if (found := _found(words, _TELLING if reason in IMAGE_WORDS else _ALL)) is not None:
        known, excerpt, remedy = found
        return known.value if known else reason, _with_remedy(excerpt, remedy, target)
    place = {"namespace": meta.get("namespace", "default"), "name": meta["name"]}
    return reason, "; ".join(filter(None, (_cause(words), _otherwise(reason, words).of(target).format(**place))))


def _otherwise(reason: str, words: str) -> Remedy:
    """What to do where the words name no cause that is known."""
    if reason in IMAGE_WORDS:
        return next((remedy for pattern, remedy in _PULLING if pattern.search(words)), _PULL)
    if reason == "CrashLoopBackOff":
        return _KILLED if _STOPPED.search(words) else _LOG
    return _DESCRIBE


def unplaced(reason: str, words: str, namespace: str, claims: Sequence[str], target: str = "") -> tuple[str, str]:
    """The Reason and the words of a pod without a node, with the remedy where one is known.

    `claims` are the PersistentVolumeClaims of the pod.
    """
    cut = words if len(words) <= MOST_WORDS else f"{words[:MOST_WORDS]}…"  # the scheduler's reasons come first
    found = next((row for row in _UNPLACED if row[0].search(words)), None)
    if found is None:
        return reason, cut
    _, known, remedy = found
    to_do = remedy.of(target).format(namespace=namespace, claims=", ".join(claims) or "its claim")
    return known or reason, f"{cut.rstrip('.')}; {to_do}"


def told(words: str, target: str = "") -> tuple[str, str] | None:
    """Return the Reason of a message and its telling part with the remedy; None where the next start may succeed."""
    found = _found(words, _ALL)
    if found is None or found[0] is None:
        return None
    return found[0].value, _with_remedy(*found[1:], target)


def _found(words: str, rows: tuple[_Row, ...]) -> tuple[Reason | None, str, Remedy] | None:
    """The first row that matches the root cause or other words, and the words from the last matching line on.

    vLLM's message for a folder without a model is longer than a condition can hold, and names the folder first.
    """
    cause = root_cause(words)
    texts = ["\n".join(cause.exceptions), words] if cause else [words]
    is_log = cause is not None or "\n" in words or "(last exit: " in words
    for pattern, reason, remedy in rows:
        for text in texts if reason or is_log else ():
            for found in reversed(list(pattern.finditer(text))):
                return reason, text[text.rfind("\n", 0, found.start()) + 1 :].lstrip(), remedy
    return None


def _with_remedy(excerpt: str, remedy: Remedy, target: str) -> str:
    to_do = remedy.of(target)
    most = MOST_WORDS - len(to_do) - 2
    return f"{excerpt if len(excerpt) <= most else f'{excerpt[: most - 1]}…'}; {to_do}"


def _cause(words: str) -> str:
    """The root cause in a log that ends with another exception, else its end."""
    cause = root_cause(words)
    return end_of(words) if cause is None or cause.is_last else cause.exceptions[-1][:MOST_WORDS]


def end_of(words: str) -> str:
    """The end of a long message: a traceback ends with the cause, and a condition holds 1024 characters."""
    return words if len(words) <= MOST_WORDS else f"…{words[-MOST_WORDS:]}"

"""Where an engine with a read-only root may read and write."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.api.llmservice import LLMServiceSpec
from holdfast.render.arguments import TLS_FOLDER
from holdfast.rendered.model import locate_adapter, locate_model
from holdfast.rendered.names import Manifest, short_hash

POD_FILES_FOLDER = "/holdfast"
CACHE_FOLDER = "/cache"
_READ_ONLY_FILES = 0o444


def volumes(spec: LLMServiceSpec, pod_files_name: str) -> list[Manifest]:
    """The pod's volumes."""
    tls = spec.engine.tls_secret_ref
    return [
        {"name": "holdfast", "configMap": {"name": pod_files_name, "defaultMode": _READ_ONLY_FILES}},
        {"name": "cache", **_cache_source(spec)},
        {"name": "tmp", "emptyDir": {}},
        # Tensor-parallel processes pass tensors through it; the container runtime's default is 64 MiB.
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        *(volume for volume, _ in _weights(spec) if volume is not None),
        *([{"name": "tls", "secret": {"secretName": tls.name}}] if tls else []),
    ]


def mounts(spec: LLMServiceSpec) -> list[Manifest]:
    """The engine's mounts."""
    return [
        {"name": "holdfast", "mountPath": POD_FILES_FOLDER, "readOnly": True},
        {"name": "cache", "mountPath": CACHE_FOLDER},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        *(mount for _, mount in _weights(spec)),
        *([{"name": "tls", "mountPath": TLS_FOLDER, "readOnly": True}] if spec.engine.tls_secret_ref else []),
    ]


def _weights(spec: LLMServiceSpec) -> Iterator[tuple[Manifest | None, Manifest]]:
    """Volumes and mounts of the weights of model and adapters; None where a volume is there already.

    A claim is one volume: some kubelets wait forever for a claim that two volumes of a pod name
    (kubernetes/kubernetes#122140).
    """
    lora, cache = spec.model.lora, spec.model.cache.pvc
    found = [locate_model(spec.model.uri), *(locate_adapter(each.uri) for each in (lora.adapters if lora else ()))]
    names = {cache: "cache"} if cache else {}
    pairs = [(each.volume, each.mount) for each in found if each.volume is not None and each.mount is not None]
    for volume, mount in {mount["mountPath"]: (volume, mount) for volume, mount in pairs}.values():
        own = volume["name"]
        name = names.setdefault(volume.get("persistentVolumeClaim", {}).get("claimName", own), own)
        yield (volume if name == own else None), {**mount, "name": name}


def cache_environment(spec: LLMServiceSpec, image: str) -> dict[str, str]:
    """Variables that send everything an engine writes to the cache volume."""
    folders = {
        "HOME": f"{CACHE_FOLDER}/home",
        "HF_HOME": f"{CACHE_FOLDER}/huggingface",
        "VLLM_CACHE_ROOT": f"{CACHE_FOLDER}/vllm",
    }
    # Importing vLLM compiles thousands of files where the image brings no bytecode: 30 to 50 s that a cache saves.
    # Not for a cache that starts empty: bytecode the image does bring would be ignored.
    if spec.model.cache.pvc or spec.model.cache.host_path:
        folders["PYTHONPYCACHEPREFIX"] = f"{CACHE_FOLDER}/pycache/{short_hash(image)}"
    return folders


def _cache_source(spec: LLMServiceSpec) -> Manifest:
    cache = spec.model.cache
    if cache.pvc:
        return {"persistentVolumeClaim": {"claimName": cache.pvc}}
    if cache.host_path:
        # It must exist: one that the kubelet makes belongs to root, and the engine could not write to it.
        return {"hostPath": {"path": cache.host_path, "type": "Directory"}}
    limit = cache.empty_dir.size_limit if cache.empty_dir else None
    return {"emptyDir": {"sizeLimit": limit} if limit else {}}

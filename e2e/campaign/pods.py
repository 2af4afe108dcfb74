"""The pods of one replica as the operator renders them, and the command that each of them is on this machine."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from holdfast.api import group_set
from holdfast.api.llmservice import LLMService
from holdfast.render import RenderContext, RenderSettings, render
from holdfast.render.podfiles import load_plugin, load_pod_files
from holdfast.rendered.names import CONTAINER, Manifest

MODEL = "tiny"
_SERVICE: Manifest = yaml.safe_load("""
metadata: {name: chat, namespace: default, uid: 0a1b2c3d-0000-4000-8000-000000000001}
spec:
  model: {uri: pvc://weights/tiny, servedName: tiny, maxModelLen: 1024, dtype: float32}
  slo: {ttft: 20s, tpot: 5s}
  batching: {maxNumSeqs: 32, maxNumBatchedTokens: 1024}
  engine:
    args:
      - --seed=0
      # With --enforce-eager, a CPU rank behind the first one has no buffer for what the first one sends.
      - '--compilation-config={"mode":2,"backend":"eager","cudagraph_mode":"NONE"}'
    env:
      - {name: VLLM_CPU_KVCACHE_SPACE, value: "1"}
      - {name: GLOO_SOCKET_IFNAME, value: eth0}
""")
_REFERENCE = re.compile(r"\$(?:\$|\((\w+)\))")


@dataclass(frozen=True, slots=True)
class Start:
    """A process in place of a container."""

    command: tuple[str, ...]
    variables: Mapping[str, str]


def tiny(nodes: int = 1, **parallelism: int) -> LLMService:
    """A service of the tiny model without GPUs."""
    accelerator = {"name": "cpu", "resource": "None", "nodes": nodes, "parallelism": parallelism}
    return LLMService.parse({**_SERVICE, "spec": {**_SERVICE["spec"], "accelerators": [accelerator]}})


def engines(service: LLMService) -> list[Manifest]:
    """The engine's container in each pod of a replica, the leader's first."""
    settings = RenderSettings(load_pod_files(), load_plugin())
    *_, workload = render(service, [service.spec.accelerators[0].name], settings, RenderContext(group_sets=True))
    if workload["kind"] == group_set.KIND:
        group = workload["spec"]["leaderWorkerTemplate"]
        pods = [group["leaderTemplate"], *[group["workerTemplate"]] * (group["size"] - 1)]
    else:
        pods = [workload["spec"]["template"]]
    return [each for pod in pods for each in pod["spec"]["containers"] if each["name"] == CONTAINER]


def started(container: Manifest, address: str, given: Mapping[str, str], folders: Mapping[str, str]) -> Start:
    """What a kubelet starts in a pod of this address, with folders of this machine in place of the mounts.

    `given` are variables that others set in the pod, as LeaderWorkerSet does.
    """
    variables = {**given, **{each["name"]: _value(each, address) for each in container["env"]}}

    def local(text: str) -> str:
        filled = _REFERENCE.sub(lambda found: variables[found[1]] if found[1] else "$", text)
        mount = next((each for each in folders if filled == each or filled.startswith(each + os.sep)), None)
        return filled if mount is None else folders[mount] + filled[len(mount) :]

    program, *rest = container["command"]
    assert program == "python3"
    command = (sys.executable, *map(local, (*rest, *container["args"])))
    return Start(command, {name: local(value) for name, value in variables.items()})


def _value(variable: Manifest, address: str) -> str:
    if "value" in variable:
        return str(variable["value"])
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}, variable
    return address

"""The LeaderWorkerSet of an accelerator whose replicas are groups of pods: a leader that answers, and its followers.

vLLM divides one engine among the pods by itself, without Ray: the leader has the scheduler and the API server, each
follower runs workers only (`--headless`). Source: vLLM 0.32, "Parallelism and Scaling", multi-node with the backend mp.
"""

from __future__ import annotations

import copy
import json

from holdfast.api import group_set
from holdfast.api.llmservice import Accelerator, LLMService
from holdfast.rendered import names
from holdfast.rendered.context import Deployed, as_text
from holdfast.rendered.names import Manifest

_OF_THE_LEADER = ("ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
_SCRAPING = "prometheus.io/"
# From SIGTERM to SIGKILL. A process that has just started does not hear SIGTERM, and the group waits for its end.
_FOLLOWER_SECONDS = 10


def leader_worker_set(
    service: LLMService, accelerator: Accelerator, deployment: Manifest, deployed: Deployed | None
) -> Manifest:
    """The set in place of a Deployment of single pods: the leaders' template is that of the Deployment.

    A group whose pod ends is made anew as a whole, because the engine ends with any of its parts. Followers that are
    deployed stay as they are while their leader does.
    """
    spec, metadata = deployment["spec"], copy.deepcopy(deployment["metadata"])
    leader = spec["template"]
    rendered = metadata["annotations"][names.INPUTS_ANNOTATION], as_text(leader)
    kept = deployed.follower_json if deployed and rendered == (deployed.inputs, deployed.template_json) else ""
    follower = json.loads(kept) if kept else follower_template(service, leader)
    metadata["annotations"][names.FOLLOWER_ANNOTATION] = as_text(follower)
    return {
        "apiVersion": group_set.API_VERSION,
        "kind": group_set.KIND,
        "metadata": metadata,
        "spec": {
            "leaderWorkerTemplate": {
                "size": accelerator.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": leader,
                "workerTemplate": follower,
            },
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": dict(spec["strategy"]["rollingUpdate"]),
            },
        },
    }


def follower_template(service: LLMService, leader: Manifest) -> Manifest:
    """The pods of a group that answer nobody: the same engine without a server, scrapes and probes.

    Their label leads no client, scrape or disruption budget to them: these count groups, by the leaders. An autoscaler
    must not evict them, because the whole group would end. They drain nothing, so they end soon. They keep the
    arguments of the leader, whose configuration they must share; no scheduler runs in them.
    """
    pod = copy.deepcopy(leader)
    metadata = pod.setdefault("metadata", {})
    dropped = {*names.METRIC_LABELS, names.FRONT_END_LABEL}
    labels = {name: text for name, text in metadata["labels"].items() if name not in dropped}
    metadata["labels"] = {**labels, names.SERVICE_LABEL: names.followers_label(service.metadata.name)}
    given = (metadata.get("annotations") or {}).items()
    kept = {name: text for name, text in given if not name.startswith(_SCRAPING)}
    metadata["annotations"] = {**kept, **names.PROTECTIONS}
    pod["spec"]["terminationGracePeriodSeconds"] = _FOLLOWER_SECONDS
    (engine,) = [each for each in pod["spec"]["containers"] if each["name"] == names.CONTAINER]
    engine["args"] = [*engine["args"], "--headless"]
    for part in _OF_THE_LEADER:
        engine.pop(part, None)
    return pod

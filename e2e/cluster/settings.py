"""Configuration files of the embedded cluster's parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e.cluster.certificates import KeyPair
from e2e.cluster.layout import (
    BRIDGE,
    CLUSTER_DOMAIN,
    CONTAINERD_SOCKET,
    FIRST_POD_ADDRESS,
    NODE_ADDRESS,
    POD_NETWORK,
    Layout,
)


def containerd_settings(layout: Layout, pause_image: str, cni_programs: Path) -> str:
    """Containerd's configuration file: all of its state in the run's own folders."""
    return f"""\
version = 3
root = "{layout.work}/containerd"
state = "/run/containerd"

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.internal.v1.opt"]
path = "{layout.work}/opt"

[plugins."io.containerd.nri.v1.nri"]
disable = true

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause_image}"

[plugins."io.containerd.cri.v1.runtime"]
# Without CAP_SYS_RESOURCE runc cannot lower the score, and no container would start.
restrict_oom_score_adj = true
disable_apparmor = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni_programs}"]
conf_dir = "{layout.configuration}/cni"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def network_settings(layout: Layout) -> str:
    """The pods' network: one bridge, addresses handed out from a file."""
    addresses = {"subnet": POD_NETWORK, "rangeStart": FIRST_POD_ADDRESS, "gateway": NODE_ADDRESS}
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "dataDir": f"{layout.work}/addresses",
            "ranges": [[addresses]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
    return json.dumps({"cniVersion": "1.0.0", "name": "holdfast", "plugins": plugins})


def kubelet_settings(layout: Layout, authority: Path, serving: KeyPair) -> str:
    """The kubelet's configuration: no systemd, no evictions, nothing outside the run's folders."""
    settings: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "clusterDNS": [NODE_ADDRESS],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": "",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": layout.control_group,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "5s",
        "maxPods": 200,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "eventRecordQPS": 0,
        "serializeImagePulls": False,
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        # An image that a test pulls under another name would have to be pulled again under its own.
        "imagePullCredentialsVerificationPolicy": "NeverVerify",
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "podLogsDir": str(layout.pod_logs),
        "volumePluginDir": f"{layout.work}/volume-plugins",
    }
    return json.dumps(settings, indent=1)


def dns_settings(layout: Layout) -> str:
    """CoreDNS answers for the cluster's own names only: nothing else can be reached from inside."""
    return f"""\
.:53 {{
    bind {NODE_ADDRESS}
    errors
    ready {NODE_ADDRESS}:8181
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {layout.kubeconfig}
        ttl 5
    }}
    cache 5
}}
"""


def audit_policy() -> str:
    """Record who wrote what, without bodies; reads and the parts' own chatter stay out."""
    rules = [
        {"level": "None", "userGroups": ["system:nodes"]},
        {
            "level": "None",
            "users": ["system:kube-scheduler", "system:kube-controller-manager", "system:apiserver"],
        },
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    ]
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": rules,
    }
    return json.dumps(policy)

"""Command lines of the embedded cluster's parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.certificates import Authority, KeyPair, write_kubeconfig, write_signing_key
from e2e.cluster.layout import (
    API_SERVER,
    API_SERVICE_ADDRESS,
    CLUSTER_DOMAIN,
    NODE_ADDRESS,
    NODE_NAME,
    POD_NETWORK,
    SERVICE_NETWORK,
    Layout,
)
from e2e.cluster.toolset import CONTAINERD, COREDNS, ETCD, KUBERNETES

_CLIENT_RATE = ["--kube-api-qps=500", "--kube-api-burst=1000"]
_ETCD_ADDRESS = "http://127.0.0.1:2379"


@dataclass(frozen=True, slots=True)
class Identities:
    """Certificates and kubeconfigs of all parts."""

    authority: Path
    signing_key: Path
    api_server: KeyPair
    api_server_to_kubelet: KeyPair
    kubelet: KeyPair
    kubeconfigs: dict[str, Path]


def make_identities(layout: Layout) -> Identities:
    """Create the cluster's authority and everything it signs."""
    authority = Authority(layout.certificates)
    signing_key = layout.certificates / "service-accounts.key"
    write_signing_key(signing_key)
    service_names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    names = [*service_names, f"kubernetes.default.svc.{CLUSTER_DOMAIN}", "localhost"]
    clients = {
        "admin": ("holdfast-admin", "system:masters"),
        "controller-manager": ("system:kube-controller-manager",),
        "scheduler": ("system:kube-scheduler",),
        "proxy": ("system:kube-proxy",),
        "kubelet": (f"system:node:{NODE_NAME}", "system:nodes"),
        "dns": ("holdfast-dns", "system:masters"),
    }
    pairs = {name: authority.client(name, user, *groups) for name, (user, *groups) in clients.items()}
    kubeconfigs = {
        name: write_kubeconfig(
            layout.kubeconfig if name == "admin" else layout.certificates / f"{name}.kubeconfig",
            API_SERVER,
            authority.certificate,
            pair,
        )
        for name, pair in pairs.items()
    }
    return Identities(
        authority.certificate,
        signing_key,
        authority.server("api-server", "kube-apiserver", names, [NODE_ADDRESS, API_SERVICE_ADDRESS, "127.0.0.1"]),
        authority.client("api-server-to-kubelet", "kube-apiserver", "system:masters"),
        authority.server("kubelet-serving", NODE_NAME, [NODE_NAME], [NODE_ADDRESS]),
        kubeconfigs,
    )


def etcd(layout: Layout) -> list[str]:
    return [
        str(ETCD.program("etcd")),
        f"--data-dir={layout.work}/etcd",
        f"--listen-client-urls={_ETCD_ADDRESS}",
        f"--advertise-client-urls={_ETCD_ADDRESS}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--log-level=warn",
        # The cluster's content does not outlive its processes, so it need not outlive the power either.
        "--unsafe-no-fsync",
    ]


def containerd(layout: Layout) -> list[str]:
    return [str(CONTAINERD.program("containerd")), "--config", f"{layout.configuration}/containerd.toml"]


def api_server(layout: Layout, identities: Identities) -> list[str]:
    return [
        str(KUBERNETES.program("kube-apiserver")),
        f"--etcd-servers={_ETCD_ADDRESS}",
        f"--bind-address={NODE_ADDRESS}",
        f"--advertise-address={NODE_ADDRESS}",
        f"--client-ca-file={identities.authority}",
        f"--tls-cert-file={identities.api_server.certificate}",
        f"--tls-private-key-file={identities.api_server.key}",
        f"--kubelet-certificate-authority={identities.authority}",
        f"--kubelet-client-certificate={identities.api_server_to_kubelet.certificate}",
        f"--kubelet-client-key={identities.api_server_to_kubelet.key}",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        # Pods that ask for GPUs tolerate the GPU taint, as managed clusters arrange it.
        "--enable-admission-plugins=NodeRestriction,ExtendedResourceToleration",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        f"--service-account-key-file={identities.signing_key}",
        f"--service-account-signing-key-file={identities.signing_key}",
        "--allow-privileged=true",
        "--max-requests-inflight=800",
        "--max-mutating-requests-inflight=400",
        f"--audit-policy-file={layout.configuration}/audit-policy.json",
        f"--audit-log-path={layout.audit_log}",
        "--audit-log-maxsize=1000",
        f"--cert-dir={layout.certificates}",
    ]


def controller_manager(layout: Layout, identities: Identities) -> list[str]:
    return [
        str(KUBERNETES.program("kube-controller-manager")),
        *_kubeconfig_flags(identities, "controller-manager"),
        f"--root-ca-file={identities.authority}",
        f"--service-account-private-key-file={identities.signing_key}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--cert-dir={layout.certificates}",
        "--concurrent-deployment-syncs=10",
        "--concurrent-replicaset-syncs=10",
        *_CLIENT_RATE,
    ]


def scheduler(layout: Layout, identities: Identities) -> list[str]:
    return [
        str(KUBERNETES.program("kube-scheduler")),
        *_kubeconfig_flags(identities, "scheduler"),
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--cert-dir={layout.certificates}",
        *_CLIENT_RATE,
    ]


def kubelet(layout: Layout, identities: Identities) -> list[str]:
    return [
        str(KUBERNETES.program("kubelet")),
        f"--config={layout.configuration}/kubelet.json",
        f"--kubeconfig={identities.kubeconfigs['kubelet']}",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={NODE_ADDRESS}",
        "--root-dir=/var/lib/kubelet",
        f"--cert-dir={layout.certificates}",
    ]


def proxy(layout: Layout, identities: Identities) -> list[str]:
    return [
        str(KUBERNETES.program("kube-proxy")),
        f"--kubeconfig={identities.kubeconfigs['proxy']}",
        f"--hostname-override={NODE_NAME}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={POD_NETWORK}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--oom-score-adj=0",
        "--nodeport-addresses=127.0.0.0/8",
    ]


def dns(layout: Layout) -> list[str]:
    return [str(COREDNS.program("coredns")), "-conf", f"{layout.configuration}/Corefile"]


def _kubeconfig_flags(identities: Identities, name: str) -> list[str]:
    path = identities.kubeconfigs[name]
    flags = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return [f"--{flag}={path}" for flag in flags]

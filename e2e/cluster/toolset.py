"""The programs the cluster is made of: which Go packages, built how."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.cache import cache_folder, digest_of

TOOLS_FOLDER = Path(__file__).parent / "tools"


@dataclass(frozen=True, slots=True)
class Tool:
    """Programs of one module that the go.mod of `source` pins; tools of one `source` are built together."""

    name: str
    module: str
    programs: dict[str, str]
    """Name of the built file, which is the last part of its Go package, to that package."""
    cold_seconds: int
    """About how long the first build takes on two cores, downloads included."""
    tags: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    """Go variables set by the linker; ``{version}`` stands for the pinned version without its v."""
    files: tuple[str, ...] = ()
    """Folders with YAML of the module, such as CRDs, that are kept next to the programs; each under its last name."""
    source: Path = TOOLS_FOLDER
    """The folder of the go.mod. All programs of a cluster share one, so that each library is compiled once."""

    @property
    def version(self) -> str:
        """The version of `module` pinned in the folder's go.mod, without the leading v."""
        if self.module.startswith("holdfast.local"):
            return "local"
        found = re.search(rf"^(?:require)?\s*{re.escape(self.module)} v(\S+)", self._go_mod(), re.MULTILINE)
        if found is None:
            raise LookupError(f"{self.source}/go.mod does not require {self.module}")
        return found.group(1)

    @property
    def go_directive(self) -> tuple[int, ...]:
        """The lowest Go version the folder accepts, as numbers."""
        found = re.search(r"^go (\S+)", self._go_mod(), re.MULTILINE)
        return tuple(int(part) for part in found.group(1).split(".")) if found else (1,)

    @property
    def folder(self) -> Path:
        """Where the built files lie: one folder per version and build recipe, so a bump builds anew."""
        own = [package for package in self.programs.values() if package.startswith("./")]
        sources = [self.source / "go.mod", *(path for package in own for path in (self.source / package).glob("*.go"))]
        recipe = (*self.tags, *(f"{key}={value}" for key, value in sorted(self.variables.items())))
        return cache_folder() / "bin" / f"{self.name}-{self.version}-{digest_of(sources, *recipe)}"

    def program(self, name: str) -> Path:
        return self.folder / name

    def built_program(self, name: str) -> str:
        """The path of a program, to run it; FileNotFoundError with the remedy where it is not built."""
        if not self.is_built():
            raise FileNotFoundError(f"{self.name} is not built: python -m e2e.cluster build")
        return str(self.program(name))

    def is_built(self) -> bool:
        kept = (path.rpartition("/")[2] for path in self.files)
        return all(self.program(name).exists() for name in (*self.programs, *kept))

    def _go_mod(self) -> str:
        return (self.source / "go.mod").read_text()


def _kubernetes_variables() -> dict[str, str]:
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return {f"{package}.gitVersion": "v{version}" for package in packages}


PAUSE = Tool("pause", "holdfast.local/tools", {"pause": "./pause"}, 5)
ETCD = Tool("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "./etcd"}, 60)
KUBERNETES = Tool(
    "kubernetes",
    "k8s.io/kubernetes",
    {
        program: f"k8s.io/kubernetes/cmd/{program}"
        for program in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
            "kubectl",
        )
    },
    420,
    variables=_kubernetes_variables(),
)
CONTAINERD = Tool(
    "containerd",
    "github.com/containerd/containerd/v2",
    {
        program: f"github.com/containerd/containerd/v2/cmd/{program}"
        for program in ("containerd", "containerd-shim-runc-v2", "ctr")
    },
    90,
    tags=("no_aufs", "no_btrfs", "no_devmapper", "no_zfs"),
    variables={"github.com/containerd/containerd/v2/version.Version": "v{version}"},
)
COREDNS = Tool("coredns", "github.com/coredns/coredns", {"coredns": "./coredns"}, 75)
PROMETHEUS = Tool(
    "prometheus",
    "github.com/prometheus/prometheus",
    {program: f"github.com/prometheus/prometheus/cmd/{program}" for program in ("prometheus", "promtool")},
    180,
    # Of all service discoveries only these two are used; the clouds' libraries would double the build.
    tags=("netgo", "remove_all_sd", "enable_kubernetes_sd", "enable_dns_sd"),
    variables={"github.com/prometheus/common/version.Version": "{version}"},
)
HELM = Tool(
    "helm",
    "helm.sh/helm/v4",
    {"helm": "helm.sh/helm/v4/cmd/helm"},
    150,
    variables={"helm.sh/helm/v4/internal/version.version": "v{version}"},
)
KWOK = Tool("kwok", "sigs.k8s.io/kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, 90, source=TOOLS_FOLDER / "kwok")
VICTORIA_METRICS = Tool(
    "victoriametrics",
    "github.com/VictoriaMetrics/VictoriaMetrics",
    {"victoria-metrics": "github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-metrics"},
    40,
    source=TOOLS_FOLDER / "victoriametrics",
)
KSTATUS = Tool("kstatus", "github.com/fluxcd/cli-utils", {"kstatus": "./"}, 60, source=TOOLS_FOLDER / "kstatus")
CRDCHECK = Tool("crdcheck", "k8s.io/apiextensions-apiserver", {"crdcheck": "./"}, 75, source=TOOLS_FOLDER / "crdcheck")
LWS = Tool(
    "lws",
    "sigs.k8s.io/lws",
    {"cmd": "sigs.k8s.io/lws/cmd"},
    120,
    files=("config/crd/bases", "config/webhook"),
    source=TOOLS_FOLDER / "lws",
)
PICKER = Tool(
    "picker",
    "sigs.k8s.io/gateway-api-inference-extension",
    {"epp": "sigs.k8s.io/gateway-api-inference-extension/cmd/epp", "ask": "./ask"},
    150,
    files=("config/crd/bases",),
    source=TOOLS_FOLDER / "picker",
)
KIND = Tool("kind", "sigs.k8s.io/kind", {"kind": "sigs.k8s.io/kind"}, 40, source=TOOLS_FOLDER / "kind")

TEST_TOOLS = (KWOK, VICTORIA_METRICS, KSTATUS, CRDCHECK, LWS)
"""Programs of tests and benchmarks, built before these run: the namespace of a cluster has no way to the internet."""

CAMPAIGN_TOOLS = (PICKER,)
"""Programs that no test runs: `python -m e2e.cluster build --campaigns`."""

EMBEDDED_TOOLS = (PAUSE, ETCD, KUBERNETES, CONTAINERD, COREDNS, PROMETHEUS, HELM)

"""Finished runs, one JSON line each, so that an interrupted comparison goes on where it stopped.

A folder of them, one file for each scenario on each cluster: what was added to one is seen by its name, and none grows
too large to keep under version control.
"""

from __future__ import annotations

import hashlib
import json
import re
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import holdfast
from benchmarks.autoscaling.fixed_limits import Limits
from benchmarks.autoscaling.scarcity import Recovery, Scarcity
from benchmarks.lines import Lines
from holdfast.twin.policies import make_policy

SEARCH = "twin/runs/oracle.py"
SHARED = ("domain", "enginemodel", "twin", "render/admission.py", "render/engine_limits.py")
JUDGED = tuple(str(Path(__file__).with_name(name)) for name in ("fixed_limits.py", "played.py", "scarcity.py"))
FAST_LOOP = tuple(f"twin/arrays/{name}.py" for name in ("batch", "fast_loop", "fast_loop_arrays", "queue_lanes"))
"""What only engines with the plugin go through."""

IN_PODS = (
    "../holdfast_engine/apiserver/admission.py",
    "../holdfast_engine/stats/classfiles.py",
    "../holdfast_engine/stats/left_open.py",
    "../holdfast_engine/apiserver/frontend.py",
    "../holdfast_engine/stats/metrics.py",
    "../holdfast_engine/middleware.py",
    "../holdfast_engine/stats/page.py",
    "../holdfast_engine/scheduler.py",
    "../holdfast_engine/statlogger.py",
    "../holdfast_engine/stats/statsfile.py",
)
"""What ties the plugin to vLLM and its pod: the twin plays none of it."""

BESIDES = {
    "holdfast": ("policy", "maths", "../holdfast_engine", *FAST_LOOP, SEARCH, *JUDGED),
    "holdfast-slow": ("policy", "maths", SEARCH, *JUDGED),
    "holdfast-apart": ("policy", "maths", SEARCH, *JUDGED),
    "static": (),
    "oracle": (SEARCH,),
}
"""Code that every run comes from but the oracle's search (which weighs requests, too) and the fast loop, and what some
come from besides; a peer comes from `PEERS` and from its own module.

How losses are judged counts for Holdfast alone, for nobody else's are.
"""


PEERS = ("twin/peers/behavior.py", "twin/peers/peer.py")
ASKED = ("twin/replica/saturation.py",)
"""What asks for runs of its own."""

MANIFEST = "code.json"
"""In a folder of runs: which code plays the runs of each kind of policy, and which makes the requests of a scenario."""

_SAYS_NOTHING = frozenset({tokenize.ENCODING, tokenize.COMMENT, tokenize.NL})
_LAYOUT = frozenset({tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})


@dataclass(frozen=True, slots=True)
class Key:
    """What tells one run from all others: `case_digest` is the label of the scenario, `code` that of the code.

    A label never changes once a run is written down: the manifest says which scenario or code it stands for.
    `limits` are fixed ones, None for vLLM's defaults.
    """

    case: str
    case_digest: str
    policy: str
    knob: float | None
    seed: int
    code: str
    limits: Limits | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """What one run was worth.

    `window_goodput_rps` only where the scenario has a window, `scarcity` only of Holdfast where loss is unavoidable,
    `by_service` attainments only of several; their latencies are the worst, their goodput is the sum.
    """

    attainment: float
    gpu_hours: float
    cost_dollars: float
    goodput_rps: float
    ttft_p99_seconds: float
    tpot_p99_seconds: float
    scale_actions: int
    wall_seconds: float
    label: str
    window_goodput_rps: float | None = None
    scarcity: Scarcity | None = None
    by_service: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """The code or scenario with this digest plays the runs with this label."""

    label: str
    digest: str


class Journal:
    """The runs of one folder, and its manifest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._manifest = folder / MANIFEST
        self.codes = _read_codes(self._manifest)
        self._files = {path: Lines(path) for path in sorted(folder.glob("*.jsonl"))}
        self._rows = dict(_read(line) for file in self._files.values() for line in file.found)

    def label(self, policy: str) -> str:
        """The label of the present code of a policy: its own digest where the manifest does not know it."""
        return self._label(kind_of(policy), code_digest(policy))

    def case_label(self, title: str, digest: str) -> str:
        """The label of the present scenario of that title, likewise."""
        return self._label(title, digest)

    def _label(self, name: str, digest: str) -> str:
        found = self.codes.get(name)
        return found.label if found is not None and found.digest == digest else digest

    def write_codes(self, codes: Mapping[str, Code]) -> None:
        """Replace the manifest."""
        self.codes = dict(codes)
        content = {kind: asdict(each) for kind, each in sorted(codes.items())}
        self._manifest.write_text(json.dumps(content, indent=2) + "\n")

    def get(self, key: Key) -> Row | None:
        """A finished run."""
        return self._rows.get(key)

    def add(self, key: Key, row: Row) -> None:
        """Write a run down."""
        self._rows[key] = row
        self._file(key.case).add(json.dumps({"key": asdict(key), "row": asdict(row)}))

    def rows(self) -> Iterable[tuple[Key, Row]]:
        """All of them."""
        return self._rows.items()

    def _file(self, case: str) -> Lines:
        path = self._folder / f"{'-'.join(re.findall('[a-z0-9]+', case.lower()))}.jsonl"
        if path not in self._files:
            self._files[path] = Lines(path)
        return self._files[path]


def _read_codes(manifest: Path) -> dict[str, Code]:
    if not manifest.exists():
        return {}
    return {kind: Code(**each) for kind, each in json.loads(manifest.read_text()).items()}


def _read(line: bytes) -> tuple[Key, Row]:
    content = json.loads(line)
    limits = content["key"].pop("limits", None)
    judged = content["row"].pop("scarcity", None)
    key = Key(**content["key"], limits=None if limits is None else Limits(*limits))
    return key, Row(**content["row"], scarcity=None if judged is None else _scarcity(judged))


def _scarcity(content: Mapping[str, Any]) -> Scarcity:
    recovery = content["recovery"]
    return Scarcity(**{**content, "recovery": None if recovery is None else Recovery(**recovery)})


def kind_of(policy: str) -> str:
    """What a policy is, whatever its size: `static` of `static:5`."""
    return policy.partition(":")[0]


@cache
def code_digest(policy: str) -> str:
    """Of the code that a policy's runs come from: a run of other code is another run."""
    root = Path(holdfast.__file__).resolve().parent
    kind = kind_of(policy)
    besides = BESIDES[kind] if kind in BESIDES else _of_peer(policy)
    apart = {root / name for name in (SEARCH, *FAST_LOOP, *IN_PODS, *ASKED, *_peers(root)) if name not in besides}
    digest = hashlib.sha256()
    for name in (*SHARED, *besides):
        place = root / name
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            if file not in apart:
                digest.update(code(file).encode())
    return digest.hexdigest()[:12]


def _of_peer(policy: str) -> tuple[str, ...]:
    """What a peer's runs come from."""
    module = type(make_policy(policy, {})).__module__.rpartition(".")[2]
    return (*PEERS, f"twin/peers/{module}.py")


def _peers(root: Path) -> list[str]:
    return [str(file.relative_to(root)) for file in (root / "twin" / "peers").glob("*.py")]


@cache
def code(file: Path) -> str:
    """What a file does: its words without comments and without strings that are statements of their own."""
    lines: list[str] = []
    with file.open("rb") as content:
        words: list[tokenize.TokenInfo] = []
        for token in tokenize.tokenize(content.readline):
            if token.type not in _SAYS_NOTHING:
                words.append(token)
            if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
                lines += _said(words)
                words = []
    return "\n".join(lines)


def _said(words: Sequence[tokenize.TokenInfo]) -> list[str]:
    """The words of one statement after its indentation, which is named, however wide; none of a docstring."""
    layout = [tokenize.tok_name[word.type] for word in words if word.type in _LAYOUT - {tokenize.NEWLINE}]
    told = [word for word in words if word.type not in _LAYOUT]
    is_docstring = [word.type for word in told] == [tokenize.STRING]
    return layout + ([] if is_docstring else [" ".join(word.string for word in told)])

"""Every place at which the plugin may fail, read from its source, and a way to make it fail there."""

from __future__ import annotations

import ast
import importlib
import math
import sys
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

PACKAGE = Path(__file__).resolve().parents[2] / "operator" / "holdfast_engine"
_OPERATORS = frozenset({"__init__", "__len__", "__bool__", "__iter__", "__contains__"})
_WITHOUT_CODE = frozenset({"Protocol", "NamedTuple", "Enum", "IntEnum", "StrEnum"})

ENTRANCES = {
    "scheduler": ("HoldfastScheduler",),
    "waiting": ("DeadlineQueue",),
    "statlogger": ("HoldfastStatLogger",),
    "metrics": ("EngineCollector",),
    "middleware": ("AdmissionMiddleware",),
}
"""The classes whose methods vLLM calls: a fault behind any of them must stop there."""


UNTRIED = {
    "order.DeadlineOrder.by_arrival": "what the queue falls back on",
    "order.DeadlineOrder.__contains__": "for tests",
    "ledger.Ledger.__len__": "for tests",
    "tpot_slack.Pace.__len__": "for tests",
    "statsfile.StatsWriter.close": "for tests",
    "written_file.WrittenWriter.close": "the last thing that a middleware does that fails",
    "steplaw.StepLawFit.confident": "for tests",
    "fastloop.FastLoop.too_old": "for the emulator",
    "fastloop.FastLoop.hand_over": "for a prefill engine: tests/holdfast_engine/test_engine_scheduler.py",
    "handover.goes_on": "for a prefill engine",
    "handover.handover_of": "for a decode engine",
    "handover.forget_blocks": "for a decode engine",
    "order.DeadlineOrder.older_than": "for the emulator",
    "rules.Limits.to_json": "for the operator",
    "model_figures.ModelFigures.read": "for the operator",
    "door.Door.opens": "for an API server that is behind",
    "frontend.Frontend.give_back": "for a pod that drains",
    "ledger.Ledger.rename": "for an API server that is behind",
    "classfiles.at_door": "for requests that claim a class",
    "classfiles.claimed_in": "for requests that claim a class",
    "engine_info.Identity.from_json": "for a front end in another language",
    "page.CountersPage.__init__": "for a front end in another language",
    "page.CountersPage.text": "for a front end in another language",
    "stats_fields.identity_paths": "for a front end in another language",
    "written_file.begun_since": "for an engine after one that was killed",
    "leastsquares.stretch": "for an engine that becomes slower or faster",
}
"""Not called inside vLLM, or all that is left when everything else fails: held by tests of their own."""


def entrances() -> list[str]:
    """`Class.method` of everything public that vLLM may call."""
    return [
        f"{node.name}.{method.name}"
        for stem, classes in ENTRANCES.items()
        for node in _classes(stem)
        if node.name in classes
        for method in _methods(node)
    ]


def hooks() -> list[str]:
    """`module.function` and `module.Class.method` of everything public in the plugin, but the entrances."""
    found = []
    for stem in sorted(_paths()):
        found += [f"{stem}.{node.name}" for node in _tree(stem).body if _is_public_function(node)]
        for node in _classes(stem):
            if node.name not in ENTRANCES.get(stem, ()):
                found += [f"{stem}.{node.name}.{method.name}" for method in _methods(node)]
    return found


@dataclass
class Fault:
    """Makes one hook fail while it is entered: when vLLM has come by `entrance`, from that many calls on.

    `calls` counts the calls by entrance in any case.
    """

    hook: str
    entrance: str = ""
    fails_at: float = math.inf
    calls: Counter[str] = field(default_factory=Counter)
    _places: list[tuple[Any, str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What the exception says."""
        return f"a fault in {self.hook}"

    @property
    def reached(self) -> bool:
        """Whether it has failed."""
        return self.calls[self.entrance] >= self.fails_at

    def __enter__(self) -> Self:
        for place, name in _places(self.hook):
            working = vars(place)[name]
            self._places.append((place, name, working))
            setattr(place, name, self._failing(working))
        return self

    def __exit__(self, *_: object) -> None:
        for place, name, working in self._places:
            setattr(place, name, working)
        self._places.clear()

    def _failing(self, working: Any) -> Any:
        if isinstance(working, property):
            return property(self._failing(working.fget))

        def called(*given: Any, **named: Any) -> Any:
            entrance = _entrance(sys._getframe(1))
            self.calls[entrance] += 1
            if entrance == self.entrance and self.reached:
                raise RuntimeError(self.text)
            return working(*given, **named)

        return called


def chosen(calls: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """One entrance for each hook, and more of them where it takes that to come by every entrance."""
    found: dict[tuple[str, str], int] = {}
    by_entrance: Counter[str] = Counter()
    for hook in dict.fromkeys(hook for hook, _ in calls):
        pair = min((pair for pair in calls if pair[0] == hook), key=lambda pair: by_entrance[pair[1]])
        found[pair] = calls[pair]
        by_entrance[pair[1]] += 1
    for pair, count in calls.items():
        if not by_entrance[pair[1]]:
            found[pair] = count
            by_entrance[pair[1]] += 1
    return found


def _entrance(frame: types.FrameType | None) -> str:
    """The method of ours that vLLM has called last, as `Class.method`; empty where none is on the stack."""
    known = {name for classes in ENTRANCES.values() for name in classes}
    while frame is not None:
        name = frame.f_code.co_qualname.split(".")
        if name[0] in known and _is_ours(frame) and not _is_ours(frame.f_back):
            return ".".join(name[:2])
        frame = frame.f_back
    return ""


def _is_ours(frame: types.FrameType | None) -> bool:
    """Whether this is the plugin's code, or a fault's in between."""
    module = "" if frame is None else frame.f_globals.get("__name__", "")
    return module.startswith("holdfast_engine.") or module == __name__


def _places(hook: str) -> Iterator[tuple[Any, str]]:
    """Where the hook is looked up: its class, or every module that has the function by name."""
    stem, *owner, name = hook.split(".")
    module = importlib.import_module(_module(_paths()[stem]))
    if owner:
        yield getattr(module, owner[0]), name
        return
    function = getattr(module, name)
    for each in [module for key, module in sys.modules.items() if key.startswith("holdfast_engine")]:
        if vars(each).get(name) is function:
            yield each, name


def import_all() -> None:
    """Import every module of the plugin, so that a function is replaced wherever it is used."""
    for path in _paths().values():
        importlib.import_module(_module(path))


def _paths() -> dict[str, Path]:
    """The file of each module, by its last name: no two share one."""
    return {path.stem: path for path in sorted(PACKAGE.rglob("*.py")) if path.stem != "__init__"}


def _module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def _tree(stem: str) -> ast.Module:
    return ast.parse(_paths()[stem].read_text())


def _classes(stem: str) -> list[ast.ClassDef]:
    found = [node for node in _tree(stem).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return [node for node in found if not any(_last_name(base) in _WITHOUT_CODE for base in node.bases)]


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    found = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [each for each in found if not each.name.startswith("_") or each.name in _OPERATORS | {"__call__"}]


def _is_public_function(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")


def _last_name(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")

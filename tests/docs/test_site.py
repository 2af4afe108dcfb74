"""The docs site, as far as it can be checked without mkdocs: `make site` builds it, and fails at a dead link."""

from __future__ import annotations

import importlib.util
from argparse import SUPPRESS
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from holdfast.api.reasons import Reason
from holdfast.cli.main import COMMANDS, build_parser
from holdfast.runtime.telemetry import Telemetry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_reference", ROOT / "scripts" / "docs_reference.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(nav: list[dict[str, Any]]) -> Iterator[str]:
    """What the navigation names: pages, and folders with a slash at the end."""
    for entry in nav:
        for value in entry.values():
            yield from entries(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_navigation_and_every_entry_exists(reference: ModuleType) -> None:
    pages = {str(file.relative_to(DOCS)) for file in DOCS.rglob("*.md")} | set(reference.pages())
    named = list(entries(SITE["nav"]))
    folders = [entry for entry in named if entry.endswith("/")]
    assert all((DOCS / folder).is_dir() for folder in folders)
    assert {entry for entry in named if not entry.endswith("/")} <= pages
    assert {page for page in pages if page not in named and f"{Path(page).parent}/" not in folders} == set()
    assert len(named) == len(set(named))


def test_no_page_that_the_code_tells_lies_in_the_docs_as_well(reference: ModuleType) -> None:
    assert not [path for path in reference.pages() if (DOCS / path).exists()]


def test_the_site_loads_neither_fonts_nor_scripts_from_foreign_hosts() -> None:
    assert SITE["theme"]["font"] is False
    assert not {"extra_javascript", "repo_url", "extra"} & SITE.keys()
    for style in SITE["extra_css"]:
        text = (DOCS / style).read_text()
        assert not any(word in text for word in ("url(", "@import", "//")), f"{style} loads something"
    assert SITE["plugins"] == ["search"]


def test_a_dead_link_or_anchor_ends_the_build_and_what_it_makes_is_ignored_by_git() -> None:
    assert SITE["strict"] is True
    assert SITE["validation"]["anchors"] == "warn"
    assert SITE["site_dir"].split("/")[0] + "/" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_command_line_page_has_every_command_and_option(reference: ModuleType) -> None:
    text = reference.cli()
    found = reference.commands(build_parser())
    assert set(COMMANDS) == found.keys()
    for command, (parser, summary) in found.items():
        section = text.partition(f"## {command}\n")[2].partition("\n## ")[0]
        assert (parser.description or summary).split()[0] in section
        shown = {name for action in parser._actions if action.help != SUPPRESS for name in action.option_strings}
        assert {name for name in shown - {"-h", "--help"} if name not in section} == set(), command
        assert "%(" not in section


def test_the_reference_has_every_reason_and_every_metric(reference: ModuleType) -> None:
    text = reference.reasons()
    assert [reason for reason in Reason if f"| `{reason}` |" not in text] == []
    told = reference.metrics()
    ours = [metric for metric in Telemetry().registry.collect() if metric.name.startswith("holdfast_")]
    names = [f"{metric.name}_total" if metric.type == "counter" else metric.name for metric in ours]
    assert [name for name in names if f"| `{name}` |" not in told] == []


def test_text_of_a_help_cuts_no_table(reference: ModuleType) -> None:
    assert reference._table(("a",), [(reference._plain("x | <y>\n *z*"),)]).splitlines()[2] == r"| x \| \<y\> \*z\* |"

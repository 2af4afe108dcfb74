"""Hooks of `make site`: mkdocs builds docs/ as it lies in the repository, where GitHub shows the same pages.

Links out of docs/ (examples, README) become links to copies below `source/`, so that the site is complete by itself.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

from scripts import docs_reference  # noqa: E402

SOURCE = "source"
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_FOREIGN = re.compile(
    r"<(?:script|img|iframe|link(?! rel=\"canonical\"))\b[^>]*\b(?:src|href)=\"?((?:https?:)?//[^\s\">]+)"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors as GitHub makes them, and a folder in `nav` as the pages in it."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    config.nav = expanded(config.nav or [])
    return config


def expanded(nav: list[Any]) -> list[Any]:
    """A navigation whose entries that end with a slash list the pages of that folder."""
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, str):
            found.append(entry)
            continue
        ((title, value),) = entry.items()
        if isinstance(value, list):
            found.append({title: expanded(value)})
        elif value.endswith("/"):
            pages = sorted((ROOT / "docs" / value).glob("*.md"))
            found.append({title: [f"{value}{page.name}" for page in pages]})
        else:
            found.append(entry)
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that the code tells, and what pages link to outside docs/."""
    for path, text in docs_reference.pages().items():
        files.append(File.generated(config, path, content=text))
    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages() if file.abs_src_path]
    for path in sorted(outside(pages)):
        files.append(File.generated(config, f"{SOURCE}/{path}", abs_src_path=str(ROOT / path)))
    return files


def outside(pages: list[str]) -> set[str]:
    """Every file outside docs/ that these pages of the repository link to, or a page found in this way."""
    found: set[str] = set()
    while pages:
        page = pages.pop()
        for target in targets(page, (ROOT / page).read_text(encoding="utf-8")):
            if not target.startswith(("docs/", "..")) and target not in found and (ROOT / target).is_file():
                found.add(target)
                pages += [target] if target.endswith(".md") else []
    return found


def targets(page: str, text: str) -> Iterator[str]:
    """The repository's paths that a page of the repository links to."""
    for prose in _FENCED.split(text)[::2]:
        for link in _LINK.finditer(prose):
            if not re.match(r"\w+:", link[2]):
                yield posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links into and out of docs/ to where the site has these files."""
    at = page.file.src_uri
    source = at.removeprefix(f"{SOURCE}/") if at.startswith(f"{SOURCE}/") else f"docs/{at}"

    def turned(link: re.Match[str]) -> str:
        if re.match(r"\w+:", link[2]):
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        site = target.removeprefix("docs/") if target.startswith("docs/") else f"{SOURCE}/{target}"
        return f"{link[1]}{posixpath.relpath(site, posixpath.dirname(at))}{link[3]}"

    parts = _FENCED.split(markdown)
    return "".join(part if n % 2 else _LINK.sub(turned, part) for n, part in enumerate(parts))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would load anything from a foreign host; a link that people follow is none of these."""
    if found := _FOREIGN.findall(output):
        raise PluginError(f"{page.file.src_uri} loads {found[0]}: pages of this site load from the site alone")
    return output

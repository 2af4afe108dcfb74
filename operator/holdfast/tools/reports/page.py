"""What reports share: colours, pictures, and one self-contained page."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Iterable, Sequence
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast.twin.scenarios.inputs import EXTRA, BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, FigureBase

GOOD, MISSED, STARTING, DRAINING = "#2f9e77", "#d1495b", "#b9d8ec", "#e8a33d"
INK, MUTED, GRID = "#1f2933", "#697586", "#e4e7eb"
BOUND = (0, (5, 3))
"""Dashes of a line that is a bound and no measurement."""

Style = dict[str, Any]
"""Properties of a line or an area, by matplotlib's names."""

LINES: tuple[Style, ...] = (
    {"color": INK, "marker": "o", "linestyle": "-"},
    {"color": "#3566a8", "marker": "s", "linestyle": (0, (7, 2))},
    {"color": MISSED, "marker": "^", "linestyle": "-."},
    {"color": GOOD, "marker": "D", "linestyle": (0, (2, 1.5))},
)
"""Lines of one panel: they differ by colour, marker and dash, because not everybody sees red and green."""

_STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; color: #1f2933; background: #fff; max-width: 1180px; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.9rem; margin: 0 0 .3rem; } h2 { margin: 2.4rem 0 .6rem; font-size: 1.25rem; }
.lead { color: #52606d; font-size: 1.05rem; max-width: 46rem; }
img { width: 100%; height: auto; } .wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .95rem; }
th { text-align: left; color: #697586; font-weight: 600; } th, td { padding: .4rem .9rem .4rem 0; vertical-align: top; }
tr { border-bottom: 1px solid #e4e7eb; } .held { color: #2f9e77; font-weight: 600; } .missed { color: #d1495b; }
details { margin: .4rem 0; } summary { cursor: pointer; color: #52606d; }
.held::before { content: "✓ "; } .missed::before { content: "✕ "; } img { background: #fff; border-radius: 4px; }
@media (prefers-color-scheme: dark) {
  :root { color-scheme: dark; } body { color: #e4e9ee; background: #14191f; } tr { border-color: #2b343d; }
  .lead, th, summary { color: #a3b0bd; } .held { color: #4cc79a; } .missed { color: #ff7f8f; }
}
"""


def require() -> None:
    """Tell what is missing before anything runs."""
    if util.find_spec("matplotlib") is None:
        raise BadInput(f"--plot needs the package matplotlib: {EXTRA}")


def document(title: str, parts: Iterable[str]) -> str:
    """One HTML file that needs no other; `title` is plain text, `parts` are HTML."""
    body = "\n".join([f"<h1>{html.escape(title)}</h1>", *parts])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n{body}\n'
        "</body></html>\n"
    )


def write(paths: Iterable[Path], document: str, png: bytes) -> None:
    """The page, or the picture alone where a name ends with .png; OSError as it comes."""
    for path in paths:
        path.write_bytes(png if path.suffix == ".png" else document.encode())


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As HTML."""
    head = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def image(png: bytes, description: str, least_width_px: int = 0) -> str:
    """The picture inside the page; `description` is plain text. The picture is scrolled where it is wider."""
    data = base64.b64encode(png).decode()
    style = f"min-width: {least_width_px}px"
    alt = html.escape(description)
    return f'<div class="wide"><img style="{style}" alt="{alt}" src="data:image/png;base64,{data}"></div>'


def picture(width: float, height: float, draw: Callable[[Figure], None], dots_per_inch: int = 110) -> bytes:
    """A PNG of so many inches that `draw` fills; the same figures give the same bytes."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 9, "axes.edgecolor": GRID, "text.color": INK}):
        figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=dots_per_inch)
    return drawn.getvalue()


def whole(axis: Axis) -> None:
    """Whole numbers alone: there is no half of a GPU or of a request."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def title(figure: FigureBase, text: str, held: bool | None = None) -> None:
    """What was found, above all panels; whether it holds is a sign, too."""
    sign, colour = {True: ("✓ ", GOOD), False: ("✕ ", MISSED), None: ("", INK)}[held]
    figure.suptitle(f"{sign}{text}", fontsize=11, weight="bold", color=colour, x=0.01, ha="left")


def plain(panel: Axes, grid: Literal["x", "y", "both"] = "y") -> None:
    """Few lines: no frame above and to the right, a pale grid behind what is drawn."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(colors=MUTED)
    panel.grid(axis=grid, color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)

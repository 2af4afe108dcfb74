"""What reports share: colours, pictures, and one self-contained page."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Iterable
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from holdfast.twin.inputs import EXTRA, BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GOOD, MISSED, STARTING, DRAINING = "#2f9e77", "#d1495b", "#b9d8ec", "#e8a33d"
INK, MUTED, GRID = "#1f2933", "#697586", "#e4e7eb"

_STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; color: #1f2933; max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.9rem; margin: 0 0 .3rem; } h2 { margin: 2.4rem 0 .6rem; font-size: 1.25rem; }
.lead { color: #52606d; font-size: 1.05rem; max-width: 46rem; }
img { width: 100%; height: auto; } .wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .95rem; }
th { text-align: left; color: #697586; font-weight: 600; } th, td { padding: .4rem .9rem .4rem 0; vertical-align: top; }
tr { border-bottom: 1px solid #e4e7eb; } .held { color: #2f9e77; font-weight: 600; } .missed { color: #d1495b; }
details { margin: .4rem 0; } summary { cursor: pointer; color: #52606d; }
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


def image(png: bytes, told: str, least_width_px: int = 0) -> str:
    """The picture inside the page; `told` says what is on it, in plain text. It is scrolled where it is wider."""
    data = base64.b64encode(png).decode()
    style = f"min-width: {least_width_px}px"
    return f'<div class="wide"><img style="{style}" alt="{html.escape(told)}" src="data:image/png;base64,{data}"></div>'


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


def plain(panel: Axes, grid: Literal["x", "y", "both"] = "y") -> None:
    """Few lines: no frame above and to the right, a pale grid behind what is drawn."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(colors=MUTED)
    panel.grid(axis=grid, color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)

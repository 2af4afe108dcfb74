"""Panels of Grafana as data, and the JSON that Grafana (10 or newer) imports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

COLUMNS = 24
SCHEMA_VERSION = 39
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_DNS_NAMES = "/^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/"
"""What a variable offers: names as Kubernetes has them, so that none of them can be more than a name in a query."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; `unit` is Grafana's word, `steps` are (from, colour) of its thresholds.

    `colors` paints series by their legend's pattern, `dashed` draws those as dashed lines: what is wanted, not
    measured. Of a table, `columns` are the labels shown, `units` those of the values by legend, `link` where a column
    leads.
    """

    title: str
    kind: str
    targets: tuple[Target, ...]
    about: str = ""
    unit: str = "short"
    width: int = 8
    height: int = 8
    steps: tuple[tuple[float | None, str], ...] = ()
    stacked: bool = False
    least: float | None = None
    most: float | None = None
    by_name: bool = False
    colors: tuple[tuple[str, str], ...] = ()
    dashed: str = ""
    columns: tuple[str, ...] = ()
    units: tuple[tuple[str, str], ...] = ()
    link: tuple[str, str] | None = None


def lines(title: str, *targets: Target, least: float | None = 0.0, **looks: Any) -> Panel:
    """Return a panel of series over time; from zero by default."""
    return Panel(title, "timeseries", targets, least=least, **looks)


def stat(title: str, *targets: Target, width: int = 4, height: int = 5, **looks: Any) -> Panel:
    """Return a panel of numbers as they are now."""
    return Panel(title, "stat", targets, width=width, height=height, **looks)


def bars(title: str, *targets: Target, height: int = 5, **looks: Any) -> Panel:
    """Return a panel of numbers as they are now, next to each other."""
    return Panel(title, "bargauge", targets, height=height, least=0.0, **looks)


def table(title: str, *targets: Target, **looks: Any) -> Panel:
    """Return a panel with a line per set of labels."""
    return Panel(title, "table", targets, **looks)


@dataclass(frozen=True, slots=True)
class Row:
    """A question, and the panels that answer it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice of label values; `several` may be taken at once, all of them at first."""

    name: str
    label: str
    query: str
    several: bool = False


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks on the time axis: the value of the expression is the time, in milliseconds."""

    name: str
    expr: str
    title: str
    text: str
    color: str = "purple"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Rows from the most urgent question down."""

    uid: str
    title: str
    about: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    span: str = "now-3h"

    def targets(self) -> Iterable[tuple[Panel, Target]]:
        """Return every query with its panel."""
        return ((panel, target) for row in self.rows for panel in row.panels for target in panel.targets)


def grafana(dashboard: Dashboard) -> Json:
    """Return the dashboard as Grafana's JSON model."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["holdfast"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": dashboard.span, "to": "now"},
        "timezone": "browser",
        "links": [_dashboards_link()],
        "templating": {"list": [_source_variable(), *map(_variable, dashboard.variables)]},
        "annotations": {"list": [_annotation(annotation) for annotation in dashboard.annotations]},
        "panels": _placed(dashboard.rows),
    }


def _placed(rows: Sequence[Row]) -> list[Json]:
    """Rows below each other, panels from left to right; a panel that does not fit into a line begins the next."""
    placed: list[Json] = []
    y = 0
    for row in rows:
        grid = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        header = {"type": "row", "title": row.title, "collapsed": False, "panels": []}
        placed.append({"id": len(placed) + 1, "gridPos": grid, **header})
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            grid = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            placed.append({"id": len(placed) + 1, "gridPos": grid, **_panel(panel)})
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return placed


def _panel(panel: Panel) -> Json:
    instant = panel.kind in ("stat", "table", "bargauge")
    told: Json = {
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "targets": [_target(index, target, panel, instant) for index, target in enumerate(panel.targets)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _OPTIONS[panel.kind](panel),
    }
    if panel.about:
        told["description"] = panel.about
    if panel.kind == "table":
        told["transformations"] = _transformations(panel)
    return told


def _target(index: int, target: Target, panel: Panel, instant: bool) -> Json:
    return {
        "refId": chr(ord("A") + index),
        "datasource": _SOURCE,
        "editorMode": "code",
        "expr": target.expr,
        "legendFormat": target.legend or "__auto",
        "instant": instant,
        "range": not instant,
        "format": "table" if panel.kind == "table" else "time_series",
    }


def _defaults(panel: Panel) -> Json:
    steps = [{"value": value, "color": color} for value, color in panel.steps or ((None, "blue"),)]
    defaults: Json = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    bounds = {"min": panel.least, "max": panel.most}
    defaults |= {name: value for name, value in bounds.items() if value is not None}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        fill = 30 if panel.stacked else 0
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": fill, "showPoints": "never", "stacking": stacking}
        defaults["color"] = {"mode": "palette-classic"}
    elif panel.steps:
        defaults["color"] = {"mode": "thresholds"}
    return defaults


def _overrides(panel: Panel) -> list[Json]:
    painted = [_override(pattern, "color", {"mode": "fixed", "fixedColor": color}) for pattern, color in panel.colors]
    if panel.dashed:
        dash = {"fill": "dash", "dash": [8, 6]}
        painted.append(_override(panel.dashed, "custom.lineStyle", dash))
        painted.append(_override(panel.dashed, "custom.stacking", {"mode": "none", "group": "B"}))
        painted.append(_override(panel.dashed, "custom.fillOpacity", 0))
    painted += [_override(f"^{column}$", "unit", unit) for column, unit in panel.units]
    if panel.link:
        column, url = panel.link
        painted.append(_override(f"^{column}$", "links", [{"title": "Open", "url": url}]))
    return painted


def _override(pattern: str, name: str, value: object) -> Json:
    return {"matcher": {"id": "byRegexp", "options": f"/{pattern}/"}, "properties": [{"id": name, "value": value}]}


def _timeseries(_: Panel) -> Json:
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _stat(panel: Panel) -> Json:
    return {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "name" if panel.by_name else "auto",
        "colorMode": "background" if panel.by_name else "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
    }


def _bargauge(_: Panel) -> Json:
    return {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "displayMode": "basic",
        "orientation": "horizontal",
        "showUnfilled": True,
    }


def _table(_: Panel) -> Json:
    return {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}}


_OPTIONS = {"timeseries": _timeseries, "stat": _stat, "bargauge": _bargauge, "table": _table}


def _transformations(panel: Panel) -> list[Json]:
    """One line per set of labels; the columns named, in this order, and the queries' values under their legends."""
    values = {f"Value #{chr(ord('A') + index)}": target.legend for index, target in enumerate(panel.targets)}
    if len(panel.targets) == 1:
        values = {"Value": panel.targets[0].legend}
    shown = [*panel.columns, *(name for name, title in values.items() if title)]
    merged = [{"id": "merge", "options": {}}] if len(panel.targets) > 1 else []
    renamed = {name: title for name, title in values.items() if title}
    order = {name: index for index, name in enumerate(shown)}
    return [
        *merged,
        {"id": "filterFieldsByName", "options": {"include": {"names": shown}}},
        {"id": "organize", "options": {"indexByName": order, "renameByName": renamed}},
    ]


def _source_variable() -> Json:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(variable: Variable) -> Json:
    told: Json = {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "definition": variable.query,
        "regex": _DNS_NAMES,
        "refresh": 2,
        "sort": 1,
        "multi": variable.several,
        "includeAll": variable.several,
    }
    everything: Json = {"allValue": ".+", "current": {"selected": True, "text": ["All"], "value": ["$__all"]}}
    return told | everything if variable.several else told


def _annotation(annotation: Annotation) -> Json:
    return {
        "name": annotation.name,
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": annotation.color,
        "target": {"refId": "Anno", "expr": annotation.expr, "interval": "30s"},
        "titleFormat": annotation.title,
        "textFormat": annotation.text,
        "useValueForTime": True,
    }


def _dashboards_link() -> Json:
    kept = {"includeVars": True, "keepTime": True}
    return {"type": "dashboards", "title": "Holdfast", "tags": ["holdfast"], "asDropdown": False, **kept}

"""All dashboards. They read what the rules record: see docs/monitoring.md."""

from __future__ import annotations

from holdfast.monitoring.fleet_dashboard import fleet_dashboard
from holdfast.monitoring.panels import Dashboard
from holdfast.monitoring.service_dashboard import service_dashboard


def dashboards() -> tuple[Dashboard, ...]:
    """Return all dashboards."""
    return (fleet_dashboard(), service_dashboard())

"""Where Prometheus is, from the settings."""

from __future__ import annotations

from holdfast.observe.series.client import PrometheusAddress
from holdfast.runtime.settings import Settings


def prometheus_address(settings: Settings) -> PrometheusAddress:
    """The address, and the credentials for it."""
    return PrometheusAddress(
        settings.prometheus_url,
        bearer_token_file=settings.prometheus_token_file,
        ca_file=settings.prometheus_ca_file,
        headers=settings.headers,
        matchers=settings.matchers,
        insecure=settings.prometheus_insecure,
    )

"""LLMService + what is known of the cluster -> manifests. Pure: no I/O, no clock."""

from holdfast.render.deployment import with_replicas
from holdfast.render.render import remarks, render
from holdfast.render.settings import RenderSettings
from holdfast.rendered.context import AcceleratorFacts, Deployed, Objectives, RenderContext
from holdfast.rendered.names import deployment_name, service_url

__all__ = [
    "AcceleratorFacts",
    "Deployed",
    "Objectives",
    "RenderContext",
    "RenderSettings",
    "deployment_name",
    "remarks",
    "render",
    "service_url",
    "with_replicas",
]

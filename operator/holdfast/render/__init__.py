"""LLMService + what is known of the cluster -> manifests. Pure: no I/O, no clock."""

from holdfast.render.context import AcceleratorFacts, Deployed, Objectives, RenderContext
from holdfast.render.deployment import with_replicas
from holdfast.render.names import deployment_name, service_url
from holdfast.render.render import remarks, render
from holdfast.render.settings import RenderSettings

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

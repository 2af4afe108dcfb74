"""How far the GPUs of a service are from their roofs, by phase, from what its engines counted of their steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from holdfast.domain.engine import EngineFacts, StepSums
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.signals import AcceleratorTraffic, Traffic
from holdfast.enginemodel.catalog import NOTHING_REPORTED, find_model
from holdfast.enginemodel.phases import Roofs, StepMix, measured_law, phases, roofs
from holdfast.enginemodel.prior import option_prior, option_shape
from holdfast.enginemodel.roofline import roofline_law

NO_TRAFFIC = AcceleratorTraffic()


def measured_roofs(
    spec: ServiceSpec, traffic: Traffic, facts: dict[str, EngineFacts]
) -> Iterator[tuple[str, str, Roofs]]:
    """Accelerator, phase and position; nothing of an unknown model or GPU, and without the plugin's step sums."""
    sums, counted = dict(traffic.steps), dict(traffic.by_accelerator)
    for option in spec.accelerators:
        if option.name in sums:
            known = replace(option, facts=facts.get(option.name, NOTHING_REPORTED))
            seen = counted.get(option.name, NO_TRAFFIC)
            yield from ((option.name, *found) for found in _of_option(spec, known, sums[option.name], seen))


def _of_option(
    spec: ServiceSpec, option: AcceleratorOption, sums: StepSums, seen: AcceleratorTraffic
) -> Iterator[tuple[str, Roofs]]:
    model = find_model(spec.model_uri, option.quantization or spec.quantization, option.kv_cache_dtype, option.facts)
    shape = option_shape(option)
    if model is None or shape is None:
        return
    gpus = option.tensor
    law = measured_law(roofline_law(model, shape, gpus), sums)
    if law is None:
        return
    prior = option_prior(spec.model_uri, option, spec.quantization)
    limits = prior.limits(spec.batching.max_num_seqs, spec.batching.max_num_batched_tokens)
    mix = StepMix.of(sums, _computed_tokens(seen), limits.max_num_batched_tokens)
    for name, work in phases(model, law, gpus, mix).of_stage(option.pipeline).by_name().items():
        position = None if work is None else roofs(work, shape)
        if position is not None:
            yield name, position


def _computed_tokens(seen: AcceleratorTraffic) -> float:
    """Prompt tokens of the mean request that were in no cache; 0 where no request ended."""
    if seen.length_samples <= 0.0:
        return 0.0
    cached = seen.cached_prompt_tokens / seen.prompt_tokens if seen.prompt_tokens > 0.0 else 0.0
    return seen.prompt_length_sum / seen.length_samples * max(0.0, 1.0 - cached)

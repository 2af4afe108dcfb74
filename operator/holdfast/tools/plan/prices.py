"""Prices that a plan is given, as `h100=2.95`: dollars per GPU and hour, in place of the manifest's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.twin.scenarios.inputs import BadInput

MOST_DOLLARS = 1e6
"""As costPerHour in an LLMService."""


def with_prices(spec: ServiceSpec, given: Sequence[str]) -> ServiceSpec:
    """The service with these prices. BadInput where one is no price, or of an accelerator that it does not list."""
    prices: dict[str, float] = {}
    for text in given:
        name, dollars = _price(text)
        if name in prices:
            raise BadInput(f"--cost {name}: given twice: give one price for each accelerator")
        prices[name] = dollars
    listed = [option.name for option in spec.accelerators]
    unknown = [name for name in prices if name not in listed]
    if unknown:
        raise BadInput(f"--cost {unknown[0]}: no such accelerator in this plan: give one of {', '.join(listed)}")
    return replace(spec, accelerators=tuple(_priced(option, prices) for option in spec.accelerators))


def _priced(option: AcceleratorOption, prices: dict[str, float]) -> AcceleratorOption:
    return replace(option, cost_per_gpu_hour=prices.get(option.name, option.cost_per_gpu_hour))


def _price(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        dollars = float(number)
    except ValueError:
        dollars = math.nan
    if not name or not 0.0 < dollars <= MOST_DOLLARS:
        raise BadInput(f"--cost {text}: give dollars per GPU and hour above 0, such as h100=2.95")
    return name, dollars

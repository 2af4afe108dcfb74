"""What an LLMService makes of a plan's sizes: how few and how many replicas, what they cost, and where none serves."""

from __future__ import annotations

import math

from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.prior import EnginePrior
from holdfast.policy.placement.on_demand_pair import Pair, affordable, is_barred, keepers
from holdfast.twin.replica.capacity import LengthPairs


def floor(spec: ServiceSpec, option: AcceleratorOption) -> int:
    """Replicas below which the operator never goes while requests come, as far as the accelerator may have them."""
    least = max(1, spec.min_replicas, spec.min_on_demand)
    return least if option.max_replicas is None or option.spot else min(least, option.max_replicas)


def least_size(spec: ServiceSpec, option: AcceleratorOption, rate_rps: float, carried_rps: float) -> int:
    """Replicas that carry the rate where each carries so much, and no fewer than the floor."""
    return max(floor(spec, option), math.ceil(rate_rps / carried_rps - 1e-9))


def dollars(spec: ServiceSpec, option: AcceleratorOption, replicas: int) -> float | None:
    """What so many replicas cost in an hour, including the on-demand ones of scaling.minOnDemand."""
    price, pair = option.cost_per_replica_hour, on_demand_pair(spec, option)
    if price is None or pair is None:
        return None if price is None else price * replicas
    regular = pair.share(replicas)
    return regular * (pair.cost_per_hour or 0.0) + (replicas - regular) * price


def on_demand_pair(spec: ServiceSpec, option: AcceleratorOption) -> Pair | None:
    """The cheapest on-demand accelerator for scaling.minOnDemand next to a spot one, None where none is needed."""
    if not (option.spot and spec.min_on_demand) or is_barred(spec, option):
        return None
    regular = min(keepers(spec, option), key=lambda each: each.cost_per_replica_hour or 0.0)
    return Pair(regular.name, spec.min_on_demand, 0, regular.cost_per_replica_hour)


def most_replicas(spec: ServiceSpec, accelerator: str) -> tuple[int, str]:
    """How many replicas the spec allows there, and which of its fields says so."""
    option = next(each for each in spec.accelerators if each.name == accelerator)
    pair = on_demand_pair(spec, option)
    bounds = [(spec.max_replicas, "scaling.max")]
    if option.max_replicas is not None:
        most = option.max_replicas if pair is None else pair.total(option.max_replicas)
        bounds.append((most, f"accelerators[{spec.accelerators.index(option)}].max"))
    paid = None if spec.max_cost_per_hour is None else affordable(option, pair, spec.max_cost_per_hour)
    if paid is not None:
        bounds.append((paid, "budget.maxCostPerHour"))
    return min(bounds)


def ruled_out(spec: ServiceSpec, option: AcceleratorOption, room: int) -> str:
    """Why no replica would ever serve there, if that is so."""
    if is_barred(spec, option):
        return f"{option.name}: no on-demand accelerator can run scaling.minOnDemand next to it, so it is never chosen"
    if spec.max_model_len is not None and room < spec.max_model_len:
        return (
            f"{option.name}: model.maxModelLen is {spec.max_model_len}, and its KV cache holds {room} tokens: vLLM "
            "does not start there: lower it, or give a replica more GPUs (accelerators[].count)"
        )
    return ""


def too_many(option: AcceleratorOption, limits: BatchLimits) -> str:
    """Why vLLM does not start with these limits; nothing where it does."""
    if limits.max_num_seqs <= limits.max_num_batched_tokens:
        return ""
    return (
        f"{option.name}: {limits.max_num_seqs} sequences are more than {limits.max_num_batched_tokens} tokens per "
        "step: vLLM does not start so: lower --max-num-seqs, or raise batching.maxNumBatchedTokens"
    )


def too_long(option: AcceleratorOption, most: int, refused: float) -> str:
    """Most requests are refused for their length."""
    return (
        f"{option.name}: {100.0 * refused:.3g} % of these requests are longer than model.maxModelLen, {most} tokens, "
        "so that it refuses them: raise it"
    )


def no_room(option: AcceleratorOption, prior: EnginePrior, lengths: LengthPairs, refused: float) -> str:
    """Most requests are refused for want of KV cache."""
    shortest = int((lengths.prompt_tokens + lengths.output_tokens).min())
    which = f"the shortest of these requests takes {shortest}"
    if refused < 1.0:
        which = f"{100.0 * refused:.3g} % of these requests take more, so that it refuses them"
    return (
        f"{option.name}: its memory has room for {prior.kv_tokens} tokens of KV cache next to the model's weights, and "
        f"{which}: give a replica more GPUs (accelerators[].count, now {option.gpus_per_replica}), or quantize the "
        "model"
    )

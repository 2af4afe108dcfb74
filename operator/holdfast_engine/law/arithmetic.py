"""What the fast loop works out, from plain numbers to plain numbers.

The simulator compiles these functions as they stand here, so they use nothing but arithmetic, `math` and each other:
no keyword-only arguments, no enums, no containers but tuples of numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# Tokens come in uneven steps: what is planned for must stay a little below what was promised.
MARGIN = 0.9
# Prefill never stops, however slow the decoding sequences are.
LEAST_PREFILL_TOKENS = 64
# While some sequences decode, the next ones compute their prompts.
PREFILLING_SEQUENCES = 2
# Steps of a kind that the law has not seen may take longer than it says: what the latest ones took is believed.
SLOWNESS_RATE, SLOWEST = 1.0 / 32.0, 4.0
# Means are over all values at first, then over about so many.
MEAN_COUNT = 64

KEPT, LATE, SLOW, LONG = range(4)
"""What `breach` finds: no bound broken, or TTFT, TPOT, E2E."""


class Law(NamedTuple):
    """Seconds of one engine step: the GPU's c0 + c1 prefill + c2 decodes + c3 kv + c4 pairs, but no less than the
    engine's thread needs to launch it; every coefficient >= 0.

    `prefill` prompt tokens computed, `decodes` decoding sequences, `kv` tokens in their KV caches, `pairs` the sum of
    chunk x (tokens before it + chunk / 2) over the prompt chunks. A launch takes `launch_decodes` seconds for decodes
    alone, `launch_mixed` with prompt tokens, and `launch_large` for more than `edge_tokens` tokens, for which no CUDA
    graph was captured; 0 where it is not known.
    """

    c0: float
    c1: float
    c2: float
    c3: float
    c4: float
    launch_decodes: float = 0.0
    launch_mixed: float = 0.0
    launch_large: float = 0.0
    edge_tokens: float = math.inf

    def seconds(self, prefill: float, decodes: float, kv: float, pairs: float) -> float:
        """How long such a step takes."""
        return step_seconds(self, prefill, decodes, kv, pairs)


class Mix(NamedTuple):
    """What steps were made of lately: ratios of their sums."""

    prefill_per_decode: float
    kv_per_decode: float
    pairs_per_prefill: float


def step_seconds(law: Law, prefill: float, decodes: float, kv: float, pairs: float) -> float:
    """How long a step takes by a law, among steps like it."""
    return max(linear_seconds(law, prefill, decodes, kv, pairs), launch_seconds(law, prefill, decodes))


def linear_seconds(law: Law, prefill: float, decodes: float, kv: float, pairs: float) -> float:
    """How long the GPU works on a step."""
    return law.c0 + law.c1 * prefill + law.c2 * decodes + law.c3 * kv + law.c4 * pairs


def launch_seconds(law: Law, prefill: float, decodes: float) -> float:
    """How long the engine's thread takes to launch a step."""
    if prefill + decodes > law.edge_tokens:
        return law.launch_large
    return law.launch_mixed if prefill > 0.0 else law.launch_decodes


def tokens_per_step(
    law: Law,
    tpot_seconds: float,
    decodes: int,
    kv_tokens: float,
    pairs_per_prefill: float,
    most: int,
    spare_seconds: float = 0.0,
) -> int:
    """Tokens of the next step, decodes included: the largest prefill that keeps the decoding sequences within TPOT.

    The step may take `spare_seconds` longer than the objective: so far are they all ahead of it. Negative: shorter.
    Up to `most` where nothing decodes and nobody waits for the step, and where not even one sequence could keep the
    objective: then the step may at least be efficient.
    """
    if decodes <= 0 or decodes >= most:
        return most
    planned = MARGIN * tpot_seconds
    if law.c0 + law.c2 + law.c3 * (kv_tokens / decodes) > planned:
        return most
    # A step with prompt tokens takes no less than its launch: what the GPU computes meanwhile costs nobody anything.
    allowed = max(planned + MARGIN * spare_seconds, launch_seconds(law, LEAST_PREFILL_TOKENS, decodes))
    room = allowed - (law.c0 + law.c2 * decodes + law.c3 * kv_tokens)
    prefill = ratio(room, law.c1 + law.c4 * pairs_per_prefill)
    prefill = min(max(prefill, LEAST_PREFILL_TOKENS), most - decodes)
    return decodes + int(within_graphs(law, prefill, decodes, kv_tokens, pairs_per_prefill, allowed))


def moved_slowness(
    slowness: float, law: Law, prefill: float, decodes: float, kv: float, pairs: float, seconds: float
) -> float:
    """How many times as long as by the law the latest steps took, with one more of them.

    A step counts up to SLOWEST times the law's own, so that one stall says little.
    """
    expected = step_seconds(law, prefill, decodes, kv, pairs)
    if not (expected > 0.0 and seconds > 0.0):
        return slowness
    return slowness + SLOWNESS_RATE * (min(seconds / expected, SLOWEST) - slowness)


def is_late_cut(
    law: Law,
    prompt_tokens: int,
    left_seconds: float,
    decodes: int,
    kv_tokens: float,
    pairs_per_prefill: float,
    paced_tokens: int,
    paced_seconds: float,
) -> bool:
    """Whether so many prompt tokens take too long at a pace (tokens in the seconds of a step), but not in one step."""
    whole = step_seconds(law, prompt_tokens, decodes, kv_tokens, prompt_tokens * pairs_per_prefill)
    return whole <= MARGIN * left_seconds and paced_seconds * prompt_tokens > MARGIN * left_seconds * paced_tokens


def within_graphs(
    law: Law, prefill: float, decodes: int, kv_tokens: float, pairs_per_prefill: float, allowed_seconds: float
) -> float:
    """Prompt tokens of a step: not more than the largest CUDA graph holds, where launching more kernels takes longer
    than allowed, or where the graph computes more of them per second.
    """
    at_edge = law.edge_tokens - decodes
    if at_edge < LEAST_PREFILL_TOKENS or prefill <= at_edge:
        return prefill
    # Where both are launched alike, as without graphs for prompts, the edge means nothing.
    if law.launch_large > allowed_seconds and MARGIN * law.launch_large > law.launch_mixed:
        return at_edge
    beyond = max(linear_seconds(law, prefill, decodes, kv_tokens, prefill * pairs_per_prefill), law.launch_large)
    within = max(linear_seconds(law, at_edge, decodes, kv_tokens, at_edge * pairs_per_prefill), law.launch_mixed)
    return at_edge if at_edge * beyond > prefill * within else prefill


def balanced_sequences(law: Law, tpot_seconds: float, mix: Mix, most: int) -> int:
    """Sequences, 1 to `most`, at which steps take as long as the TPOT objective: each sequence brings its share of
    prefill, and a few compute their prompts. `most` where not even one sequence could keep the objective.
    """
    room = MARGIN * (tpot_seconds - law.c0)
    decode_seconds = law.c2 + law.c3 * mix.kv_per_decode
    if room < decode_seconds:
        return most
    each = decode_seconds + (law.c1 + law.c4 * mix.pairs_per_prefill) * mix.prefill_per_decode
    return int(min(ratio(room, each) + PREFILLING_SEQUENCES, most))


def active_sequences(law: Law, tpot_seconds: float, mix: Mix, most: int) -> int:
    """Sequences, 1 to `most`, that an engine may have: as many as keep TPOT while prefill is at its least.

    What prompts bring comes unevenly, and `tokens_per_step` holds it back where it must. Never fewer than are balanced:
    where prompts bring less than the least, that is what counts.
    """
    prefill_seconds = LEAST_PREFILL_TOKENS * (law.c1 + law.c4 * mix.pairs_per_prefill)
    room = MARGIN * (tpot_seconds - law.c0) - prefill_seconds
    decoding = ratio(room, law.c2 + law.c3 * mix.kv_per_decode)
    return int(max(balanced_sequences(law, tpot_seconds, mix, most), min(decoding + PREFILLING_SEQUENCES, most)))


def full_prefill_tps(law: Law, mix: Mix, active: int) -> float:
    """Prompt tokens per second of an engine with so many sequences; NaN where steps take no time."""
    prefill = active * mix.prefill_per_decode
    return tps(prefill, step_seconds(law, prefill, active, active * mix.kv_per_decode, prefill * mix.pairs_per_prefill))


def peak_prefill_tps(law: Law, mix: Mix, tokens: int) -> float:
    """Prompt tokens per second of steps with so many and nothing else; NaN where steps take no time."""
    return tps(tokens, step_seconds(law, tokens, 0.0, 0.0, tokens * mix.pairs_per_prefill))


def first_token_seconds(prompt_tokens: float, prefill_tokens: float, seconds: float) -> float:
    """Seconds until the first token of a request that starts now: the step under way, and those with its chunks."""
    return seconds * (1.0 + max(1.0, ratio(prompt_tokens, prefill_tokens)))


def most_in_time(longest_wait_seconds: float, peak_tps: float, tokens_per_prompt: float) -> float:
    """How many prompts could start within the longest wait; infinite while the rate is not known."""
    if not 0.0 < peak_tps < math.inf or not 0.0 < tokens_per_prompt < math.inf:
        return math.inf
    return max(1.0, math.floor(longest_wait_seconds * peak_tps / tokens_per_prompt))


def expected_seconds(
    prompt_tokens: float, room_tokens: float, burst_tps: float, prefill_tps: float, seconds: float
) -> float:
    """TTFT behind so many prompt tokens, its own included: what has room at one rate, the others at another one."""
    at_once = min(prompt_tokens, room_tokens)
    return seconds + work_seconds(at_once, burst_tps) + work_seconds(prompt_tokens - at_once, prefill_tps)


def work_seconds(tokens: float, rate_tps: float) -> float:
    """How long so many tokens take; NaN where the rate is not known."""
    if not tokens > 0.0:
        return 0.0
    return tokens / rate_tps if 0.0 < rate_tps < math.inf else math.nan


def breach(
    ttft_bound: float, tpot_bound: float, e2e_bound: float, ttft_seconds: float, e2e_seconds: float, tokens: int
) -> int:
    """The first bound that an answer broke, KEPT where it broke none. NaN breaks every bound."""
    if not ttft_seconds <= ttft_bound:
        return LATE
    tpot_seconds = (e2e_seconds - ttft_seconds) / (tokens - 1) if tokens > 1 else 0.0
    if not tpot_seconds <= tpot_bound:
        return SLOW
    return KEPT if e2e_seconds <= e2e_bound else LONG


def moved_mean(mean: float, count: int, value: float) -> float:
    """The mean with one more value, the `count`-th, which counts as one of MEAN_COUNT at least."""
    return value if count == 1 else mean + (value - mean) / count


def ahead_seconds(tpot_seconds: float, steps: int, moment: float) -> float:
    """The difference of two of these is how far a sequence from the first on is ahead at the second."""
    return moment - tpot_seconds * steps


def spare_seconds(least: float, youngest: float, steps_to_come: int, gain: float, here: float) -> float:
    """How much longer than the objective a step may take. One bound is `least`, the smallest lead of the sequences
    whose later steps are not counted on. The other is the `youngest` one's, which gains `gain` in each step to come.

    Negative where the youngest must get back what it lent while steps still come: later it may have ended. What old
    ones are behind by is not asked of the prompts that wait: after an overload it may be more than can be made up.
    """
    return min(max(0.0, least - here), youngest + steps_to_come * gain - here)


def tps(tokens: float, seconds: float) -> float:
    """Tokens per second, NaN where it took no time."""
    return tokens / seconds if seconds > 0.0 else math.nan


def ratio(amount: float, each: float) -> float:
    """How often `each` fits into `amount`: infinity for what costs nothing, 0 for no room."""
    if amount <= 0.0:
        return 0.0
    return amount / each if each > 0.0 else math.inf

"""What the plugin does before and after every engine step, on arrays: `holdfast_engine.fastloop.FastLoop`.

Its rules are the plugin's own functions, compiled as they stand there. Its state machines (order, pace, ledger) are
written down again for arrays; the tests hold the two to the same times and counts, to the last bit. `loop` and `fits`
are what one engine has of `fast_loop_arrays`.
"""

from __future__ import annotations

import math

from holdfast.twin.arrays import queue_lanes, token_share
from holdfast.twin.arrays.compiled import compile_with, inner
from holdfast.twin.arrays.state_arrays import LOST, NOBODY, WAITING, Plugin, Record, Records, World
from holdfast.twin.arrays.timers import Floats, Integers
from holdfast_engine.fastloop import FIT_SECONDS, FIT_STEPS, LONGEST_TRANSIT_SECONDS
from holdfast_engine.law import arithmetic, leastsquares, steplaw, steptimes
from holdfast_engine.law.arithmetic import KEPT, LATE, LONG, MEAN_COUNT, SLOW
from holdfast_engine.law.steplaw import PENDING, RECENT, STATE, TIMES
from holdfast_engine.law.steptimes import DECODES, MIXED
from holdfast_engine.queue import batch
from holdfast_engine.queue.tpot_slack import ANSWERS, LEARN_EVERY, MOST_STEPS, SHORT_SHARE, SMOOTHING

compile_with(arithmetic)
compile_with(batch)
compile_with(leastsquares)
compile_with(steplaw)
compile_with(steptimes)


@inner
def sends_away(loop: Record, engine: Record, lanes: Records, classes: Records, fits: Floats) -> bool:
    """Whether answers of now end their connections."""
    expected = _expected_seconds(loop, fits, queue_lanes.fresh_tokens(lanes), 0.0)
    ahead_seconds = _ahead_seconds(loop, fits, _in_flight_besides(loop))
    return bool(engine["waiting_late"] > 0.0 or expected > classes[0]["ttft"] - ahead_seconds)


@inner
def refuses(
    loop: Record, engine: Record, lanes: Records, classes: Records, own: Record, fits: Floats, prompt: int
) -> bool:
    """Whether a request of a class is turned away at the door."""
    part, most = _computed_share(loop), loop["most_queued"]
    if math.isnan(most):
        most = arithmetic.most_in_time(loop["longest_wait"], loop["peak_tps"], loop["arrived_tokens"] * part)
    if queue_lanes.count_from(engine, lanes, classes, own) >= most:
        return True
    tokens = queue_lanes.tokens_from(lanes, own)
    if not loop["rejects"] or not tokens * part > 0.0:
        return False
    expected = _expected_seconds(loop, fits, tokens, prompt * part)
    return bool(expected > own["ttft"] - _ahead_seconds(loop, fits, _in_flight_besides(loop)))


@inner
def _ahead_seconds(loop: Record, fits: Floats, steps: int) -> float:
    """What so many steps take that were launched before the next one."""
    if not steplaw.has_law(fits) or steps < 1:
        return 0.0
    law, kv = steplaw.law_of(fits), loop["last_kv"]
    return float(
        steps * arithmetic.step_seconds(law, loop["last_prefill"], loop["last_decodes"], kv, loop["last_pairs"])
    )


@inner
def _in_flight_besides(loop: Record) -> int:
    """Steps that are in flight next, without the one that `expected_seconds` counts."""
    return int(loop["depth"] - 1 if loop["pending"] else 0)


@inner
def _expected_seconds(loop: Record, fits: Floats, waiting_tokens: int, tokens: float) -> float:
    """TTFT of a request that comes now, with so many tokens to compute, behind prompts with so many."""
    _foresee(loop, fits)
    part, room = _computed_share(loop), 0.0
    if loop["free_sequences"]:
        room = loop["free_sequences"] * (loop["arrived_tokens"] * part)
    burst_tps = arithmetic.tps(loop["next_prefill"], loop["next_seconds"])
    tokens += max(waiting_tokens * part, 0.0)
    return float(arithmetic.expected_seconds(tokens, room, burst_tps, loop["full_tps"], loop["next_seconds"]))


@inner
def arrive(world: World, plugin: Plugin, where: int, number: int, now: float) -> None:
    """Count a request that was let in, and let it wait in its place."""
    loop, place, request = plugin.loops[where], plugin.places[number], world.requests[number]
    engine = world.engines[where]
    if loop["has_max_shares"]:
        _keep_within_share(plugin, where, place, request, now)
    own = plugin.classes[where, place["of_class"]]
    # Clocks of two processes are compared once, as the plugin does.
    request["read_at"] = now - min(max(now - request["read_at"], 0.0), LONGEST_TRANSIT_SECONDS)
    if own["batch"]:
        loop["batch"] += 1
        own["unfinished"] += 1.0
        wait_as_batch(place, request)
    else:
        loop["arrived_count"] = min(loop["arrived_count"] + 1, MEAN_COUNT)
        loop["arrived_tokens"] = arithmetic.moved_mean(loop["arrived_tokens"], loop["arrived_count"], request["prompt"])
        engine["judged_arrived"] += 1
        _follow(own, world.requests, number)
        _foresee(loop, plugin.fits[where])
        computed = request["prompt"] * _computed_share(loop)
        needed = arithmetic.first_token_seconds(computed, loop["next_prefill"], loop["next_seconds"])
        deadline = request["read_at"] + own["ttft"]
        place["rank"], place["start_by"] = deadline + needed, deadline - needed
    queue_lanes.put(loop, engine, plugin.lanes[where], plugin.classes[where], plugin.places, number, request["prompt"])


@inner
def _keep_within_share(plugin: Plugin, where: int, place: Record, request: Record, now: float) -> None:
    """Give a request the service's own class where its class has had its share of the tokens."""
    loop, classes, had = plugin.loops[where], plugin.classes[where], plugin.had[where]
    if not token_share.has_room(loop, classes, had, place["of_class"], now):
        place["of_class"] = 0
    token_share.add(loop, classes, had, place["of_class"], request["prompt"], now)


@inner
def wait_as_batch(place: Record, request: Record) -> None:
    """Batch is never late, and waits in the order in which it came."""
    place["rank"], place["start_by"] = request["read_at"], math.inf


@inner
def _follow(own: Record, requests: Records, number: int) -> None:
    """Add a request to those of its class in order of arrival."""
    if own["newest"] != NOBODY:
        requests[own["newest"]]["after"] = number
    own["newest"] = number
    if own["next_due"] == NOBODY:
        own["next_due"] = number
    if own["oldest"] == NOBODY:
        own["oldest"] = number


@inner
def before_step(
    loop: Record,
    engine: Record,
    lanes: Records,
    classes: Records,
    fits: Floats,
    row: Integers,
    places: Records,
    requests: Records,
    now: float,
) -> None:
    """Judge what is overdue, fix the time of the order, set the limits of a step with which those in `row` go on."""
    for own in classes:
        _expire(own, engine, places, requests, now)
    loop["now"] = now + _ahead_seconds(loop, fits, int(loop["pending"]))
    queue_lanes.settle(loop, engine, lanes, classes, places, requests)
    loop["ran"], loop["foreseen"] = engine["running"], 0
    loop["decoding"] = max(0, engine["running"] - loop["starting"])
    engine["active"], engine["tokens"] = loop["active"], loop["most_tokens"]
    if loop["adapts"] and steplaw.has_law(fits):
        ahead = int(loop["pending"])
        spare_seconds = _binding(loop, classes, row, places, requests, now, ahead)
        spare_seconds += ahead * loop["tpot"] - _ahead_seconds(loop, fits, ahead)
        engine["tokens"] = _tokens(loop, fits, spare_seconds)
        if loop["starting"] and loop["ran"] <= loop["balanced"] and _bear_long_steps(classes):
            engine["tokens"] = max(engine["tokens"], _whole_prompts(loop, classes, fits, row, places, requests))
        if loop["batch"] > 0:
            most = _tokens_beside_batch(loop, lanes, classes, fits, row, places, requests)
            engine["tokens"] = int(min(float(engine["tokens"]), most))


@inner
def _bear_long_steps(classes: Records) -> bool:
    """Whether one long step weighs little in the mean of nearly every answer; not denied before any have ended."""
    short = 0
    for own in classes:
        short += own["ended"] >= LEARN_EVERY and own["surest_steps"] != MOST_STEPS
    return short == 0


@inner
def _expire(own: Record, engine: Record, places: Records, requests: Records, now: float) -> None:
    """Judge what should have its first token by now and has none."""
    number = int(own["next_due"])
    while number != NOBODY:
        request, place = requests[number], places[number]
        if not request["read_at"] + own["ttft"] < now:
            break
        if request["generated"] == 0 and not place["judged"]:
            place["judged"] = 1
            engine["judged_bad_ttft"] += 1
            own["bad"] += 1.0
        number = int(request["after"])
    own["next_due"] = number


@inner
def _binding(
    loop: Record, classes: Records, row: Integers, places: Records, requests: Records, now: float, ahead: int
) -> float:
    """Find the TPOT of the class that bears least after `ahead` more steps, the tightest one where nothing runs, and
    how much longer the next step may take for it."""
    if len(classes) == 1:
        return _spare_seconds(loop, classes, 0, row, places, requests, now)
    least, found = math.inf, math.inf
    loop["tpot"] = loop["tightest_tpot"]
    for of_class in range(len(classes)):
        own = classes[of_class]
        if own["paced"] > 0:
            spare = _spare_seconds(loop, classes, of_class, row, places, requests, now)
            bears = (1 + ahead) * own["tpot"] + spare
            if bears < least or (bears == least and (own["tpot"], spare) < (loop["tpot"], found)):
                least, found, loop["tpot"] = bears, spare, own["tpot"]
    return found


@inner
def _spare_seconds(
    loop: Record, classes: Records, of_class: int, row: Integers, places: Records, requests: Records, now: float
) -> float:
    """How much longer than the objective the step may take for the sequence of a class that can bear least."""
    own = classes[of_class]
    gain = max(0.0, own["tpot"] - own["usual_seconds"])
    least = youngest = math.inf
    for number in row:
        if places[number]["of_class"] == of_class:
            least, youngest = _bears(own, places[number], requests[number], gain, least, youngest)
    # Preempted sequences still count.
    waiting = int(loop["front"])
    while waiting != NOBODY:
        if places[waiting]["of_class"] == of_class:
            least, youngest = _bears(own, places[waiting], requests[waiting], gain, least, youngest)
        waiting = int(places[waiting]["left"])
    to_come = own["surest_steps"] - own["steps"] - 1
    here = arithmetic.ahead_seconds(own["tpot"], own["steps"], now)
    return float(arithmetic.spare_seconds(least, youngest, to_come, gain, here))


@inner
def _bears(
    own: Record, place: Record, request: Record, gain: float, least: float, youngest: float
) -> tuple[float, float]:
    """How far the least old sequence and the least young one are ahead, with one more of them."""
    if request["generated"] == 0:
        return least, youngest
    if own["steps"] - place["first_step"] >= own["surest_steps"]:
        place["old"] = 1
    if place["old"]:
        ahead = arithmetic.ahead_seconds(own["tpot"], place["first_step"], request["began_at"])
        return min(least, ahead), youngest
    return least, min(youngest, request["began_at"] + (gain - own["tpot"]) * place["first_step"])


@inner
def _tokens(loop: Record, fits: Floats, spare_seconds: float) -> int:
    """Tokens of a step that may take so much longer than the objective."""
    most, decodes = int(loop["most_tokens"]), int(loop["decoding"])
    if not steplaw.has_law(fits) or not loop["adapts"]:
        return most
    kv_tokens, pairs = float(loop["last_kv"] + decodes), loop["pairs_per_prefill"]
    law = steplaw.law_of(fits)
    slowness = max(1.0, loop["slowness"])
    tpot_seconds, spare = loop["tpot"] / slowness, spare_seconds / slowness
    tokens = arithmetic.tokens_per_step(law, tpot_seconds, decodes, kv_tokens, pairs, most, spare)
    return min(most, tokens)


@inner
def _whole_prompts(
    loop: Record, classes: Records, fits: Floats, row: Integers, places: Records, requests: Records
) -> int:
    """Tokens of a step that ends those prompts which would be late at the pace of TPOT, and are not so; else 0."""
    decodes, tokens, whole = int(loop["decoding"]), 0, 0
    kv_tokens, pairs = float(loop["last_kv"] + decodes), loop["pairs_per_prefill"]
    law = steplaw.law_of(fits)
    _foresee(loop, fits)
    paced, seconds = loop["next_prefill"], loop["next_seconds"]
    for number in row:
        request = requests[number]
        own = classes[places[number]["of_class"]]
        if request["generated"] > 0 or request["preemptions"] > 0 or own["batch"]:
            continue
        tokens += request["prompt"] - request["computed"]
        left_seconds = request["read_at"] + own["ttft"] - loop["now"]
        if arithmetic.is_late_cut(law, tokens, left_seconds, decodes, kv_tokens, pairs, paced, seconds):
            whole = tokens
    return min(int(loop["most_tokens"]), decodes + whole) if whole > 0 else 0


@inner
def _tokens_beside_batch(
    loop: Record, lanes: Records, classes: Records, fits: Floats, row: Integers, places: Records, requests: Records
) -> float:
    """Most tokens of a step, so that a request that comes meanwhile is not late because of batch."""
    urgent, decodes = queue_lanes.fresh_tokens(lanes), int(loop["decoding"])
    for number in row:
        urgent += _prompt_to_come(classes, places[number], requests[number])
    waiting = int(loop["front"])
    while waiting != NOBODY:
        urgent += _prompt_to_come(classes, places[waiting], requests[waiting])
        waiting = int(places[waiting]["left"])
    kv_tokens, pairs = float(loop["last_kv"] + decodes), loop["pairs_per_prefill"]
    law = steplaw.law_of(fits)
    return float(batch.step_tokens(law, loop["tightest_ttft"], decodes, kv_tokens, pairs, urgent))


@inner
def is_pressed(loop: Record, fits: Floats, fresh_tokens: int) -> bool:
    """Whether requests wait so long for their prompts that batch had better take no time of a step."""
    _foresee(loop, fits)
    backlog_seconds = arithmetic.ratio(fresh_tokens * _computed_share(loop), loop["next_prefill"])
    backlog_seconds *= loop["next_seconds"]
    return bool(backlog_seconds > batch.WAIT_SHARE * loop["tightest_ttft"])


@inner
def lacking(loop: Record, engine: Record, urgent: int, fresh_tokens: int) -> tuple[int, float]:
    """Sequences and tokens of KV cache that those of the waiting requests lack which could start in this step."""
    prompt_tokens, could_start = loop["arrived_tokens"] * _computed_share(loop), 1.0
    if prompt_tokens > 0.0:
        could_start = engine["tokens"] / prompt_tokens
    sequences = min(urgent, max(1, int(could_start))) - max(0, engine["active"] - engine["running"])
    if not loop["lacks_memory"]:
        return sequences, 0.0
    return sequences, float(max(1, min(fresh_tokens, engine["tokens"])))


@inner
def _prompt_to_come(classes: Records, place: Record, request: Record) -> int:
    if request["generated"] > 0 or classes[place["of_class"]]["batch"]:
        return 0
    return int(request["prompt"] - request["computed"])


@inner
def _foresee(loop: Record, fits: Floats) -> None:
    """What is expected of the steps to come; worked out when it is asked for, not in every step."""
    if loop["foreseen"]:
        return
    loop["foreseen"], loop["next_prefill"], loop["next_seconds"] = 1, 1, 0.0
    if steplaw.has_law(fits):
        decodes = int(loop["decoding"])
        prefill = max(1, _tokens(loop, fits, 0.0) - decodes)
        pairs = prefill * loop["pairs_per_prefill"]
        loop["next_prefill"] = prefill
        law = steplaw.law_of(fits)
        loop["next_seconds"] = arithmetic.step_seconds(law, prefill, decodes, loop["last_kv"] + decodes, pairs)


@inner
def admitted(loop: Record, engine: Record, own: Record, place: Record, request: Record) -> None:
    """A request starts."""
    if request["preemptions"] > 0:
        # One that left before its first token is expected again.
        loop["starting"] += place["interrupted"]
        place["interrupted"] = 0
        return
    prompt, cached = request["prompt"], request["computed"]
    loop["starting"] += 1
    if own["batch"]:
        engine["batch_cached_prompt_tokens"] += cached
        return
    loop["started_count"] = min(loop["started_count"] + 1, MEAN_COUNT)
    count = loop["started_count"]
    loop["started_tokens"] = arithmetic.moved_mean(loop["started_tokens"], count, prompt)
    loop["computed_tokens"] = arithmetic.moved_mean(loop["computed_tokens"], count, prompt - min(cached, prompt))


@inner
def scheduled(
    loop: Record, engine: Record, flight: Record, fits: Floats, chunks: Integers, plan: Record, now: float
) -> None:
    """A step was planned: chunks, first the ones of requests that ran before, and decodes with their tokens."""
    going_on, count, decodes, kv_tokens = plan["going_on"], plan["chunks"], plan["decodes"], plan["kv_tokens"]
    tokens, prefill, pairs = decodes, 0, 0.0
    for each in range(count):
        chunk, before = chunks[each, 0], chunks[each, 1]
        tokens += chunk
        if each < going_on and chunk == 1:
            # One token of a running request looks like a decode, whatever it is.
            decodes += 1
            kv_tokens += before + 1
        else:
            prefill += chunk
            pairs += chunk * (before + 0.5 * chunk)
    if tokens == 0:
        return
    flight["computes"], loop["last_kv"], loop["last_pairs"] = 1, kv_tokens, pairs
    loop["last_prefill"], loop["last_decodes"] = prefill, decodes
    flight["prefill"], flight["decodes"], flight["kv"], flight["pairs"] = prefill, decodes, kv_tokens, pairs
    started = loop["ran"] - int(engine["batch_running"]) + (count - going_on)
    loop["free_sequences"] = max(0, engine["active"] - started)
    if engine["waiting"] > engine["batch_waiting"] and tokens < engine["tokens"]:
        loop["free_sequences"] = 0
    if loop["batch"] > 0:
        lacks_sequences = loop["ran"] + (count - going_on) >= engine["active"]
        loop["lacks_memory"] = not loop["free_sequences"] and not lacks_sequences
    flight["begun"], flight["alone"] = now, loop["pending"] == 0
    if not loop["ran"] and not loop["pending"]:
        loop["updated"] = now
        steptimes.begin(fits[TIMES], now)
    loop["pending"] += 1
    loop["depth"] = loop["pending"]


@inner
def _count(engine: Record, flight: Record, seconds: float) -> None:
    """Add a step to what the engine reports of its steps."""
    engine["steps"] += 1
    engine["step_prefill"] += flight["prefill"]
    engine["step_decodes"] += flight["decodes"]
    engine["step_kv"] += flight["kv"]
    engine["step_pairs"] += flight["pairs"]
    engine["step_seconds"] += seconds


@inner
def _replays(loop: Record, kind: int) -> bool:
    """Whether one CUDA graph holds a step of this kind."""
    return bool((kind == DECODES and loop["whole_decodes"]) or (kind == MIXED and loop["whole_mixed"]))


@inner
def step_ended(
    loop: Record, engine: Record, classes: Records, flight: Record, newest: Record, fits: Floats, now: float
) -> None:
    """Time a step whose results have come."""
    if not flight["computes"]:
        return
    prefill, decodes, kv, pairs = flight["prefill"], flight["decodes"], flight["kv"], flight["pairs"]
    seconds = now - loop["updated"]
    if steplaw.observe(fits, prefill, decodes, kv, pairs, seconds):
        _count(engine, flight, seconds)
    if steplaw.has_law(fits):
        law = steplaw.law_of(fits)
        loop["slowness"] = arithmetic.moved_slowness(loop["slowness"], law, prefill, decodes, kv, pairs, seconds)
    loop["updated"] = now
    loop["pending"] -= 1
    ahead, replayed, launched_at, edge_tokens = -1, True, flight["begun"], steplaw.law_of(fits).edge_tokens
    if loop["pending"]:
        ahead = steptimes.kind_of(newest["prefill"], newest["decodes"], edge_tokens)
        replayed, launched_at = _replays(loop, ahead), newest["begun"]
    own = steptimes.kind_of(prefill, decodes, edge_tokens)
    lone = own if flight["alone"] and not _replays(loop, own) else -1
    steplaw.came(fits, prefill, decodes, kv, pairs, ahead, replayed, launched_at, now, lone)
    for own in classes:
        if own["known"]:
            _pace_step(own, now)


@inner
def _pace_step(own: Record, now: float) -> None:
    own["steps"] += 1
    seconds, known = now - own["last_step"], own["usual_seconds"]
    own["last_step"] = now
    if own["paced"]:
        own["usual_seconds"] = known + SMOOTHING * (seconds - known) if math.isfinite(known) else seconds


@inner
def answers_began(
    loop: Record, engine: Record, classes: Records, places: Records, requests: Records, began: Integers
) -> None:
    """These requests got their first token."""
    for number in began:
        place = places[number]
        own = classes[place["of_class"]]
        loop["starting"] -= 1 - place["interrupted"]
        place["interrupted"] = 0
        if own["batch"]:
            engine["batch_started"] += 1.0
            engine["batch_started_prompt_tokens"] += requests[number]["prompt"]
        else:
            own["known"] = 1
            own["paced"] += 1
            place["first_step"] = own["steps"]


@inner
def answers_ended(
    loop: Record,
    engine: Record,
    classes: Records,
    answers: Integers,
    had: Integers,
    places: Records,
    requests: Records,
    ended: Integers,
    now: float,
) -> None:
    """These requests got their last token; `answers` are the steps that the last ones of each class took."""
    for number in ended:
        place, request = places[number], requests[number]
        own = classes[place["of_class"]]
        if loop["has_max_shares"]:
            token_share.add(loop, classes, had, place["of_class"], request["generated"], now)
        if own["batch"]:
            _count_batch(loop, engine, own, request)
            continue
        own["paced"] -= 1
        _learn(own, answers[place["of_class"]], place)
        if not place["judged"]:
            place["judged"] = 1
            _judge(own, engine, request, now)


@inner
def _count_batch(loop: Record, engine: Record, own: Record, request: Record) -> None:
    """A batch request is done."""
    loop["batch"] -= 1
    engine["batch_running"] = min(engine["batch_running"], float(loop["batch"]))
    engine["batch_done"] += 1.0
    engine["batch_prompt_tokens"] += request["prompt"]
    engine["batch_output_tokens"] += request["generated"]
    own["good"] += 1.0
    own["unfinished"] -= 1.0


@inner
def _learn(own: Record, answers: Integers, place: Record) -> None:
    """How many steps answers surely take."""
    answers[own["ended"] % ANSWERS] = own["steps"] - place["first_step"]
    own["ended"] += 1
    if own["ended"] % LEARN_EVERY == 0:
        own["surest_steps"] = _surest_steps(answers[: min(own["ended"], ANSWERS)])


@inner
def _surest_steps(answers: Integers) -> int:
    """All but the share of short answers took at least so many steps; more than MOST_STEPS are not asked for."""
    for steps in range(MOST_STEPS):
        shorter = 0
        for answer in answers:
            shorter += answer <= steps
        if shorter > int(SHORT_SHARE * len(answers)):
            return steps
    return MOST_STEPS


@inner
def _judge(own: Record, engine: Record, request: Record, now: float) -> None:
    ttft, e2e = request["began_at"] - request["read_at"], now - request["read_at"]
    found = arithmetic.breach(own["ttft"], own["tpot"], own["e2e"], ttft, e2e, request["generated"])
    engine["judged_bad_ttft"] += found == LATE
    engine["judged_bad_tpot"] += found == SLOW
    engine["judged_bad_e2e"] += found == LONG
    if found != KEPT:
        own["bad"] += 1.0
    else:
        own["good"] += 1.0
        engine["judged_good"] += 1
        engine["judged_good_tokens"] += request["generated"]


@inner
def updated(
    loop: Record,
    engine: Record,
    lanes: Records,
    classes: Records,
    fits: Floats,
    places: Records,
    requests: Records,
    now: float,
) -> None:
    """After what a step brought: find the law anew where it is time, end who has waited for too long."""
    if fits[STATE][PENDING] >= FIT_STEPS and now >= loop["next_fit"]:
        loop["next_fit"] = now + FIT_SECONDS
        steplaw.update(fits)
        _plan(loop, fits)
    before = now - loop["longest_wait"]
    for own in classes:
        number = int(own["oldest"])
        while number != NOBODY:
            request = requests[number]
            if request["state"] == WAITING and request["preemptions"] == 0:
                if not request["read_at"] < before:
                    break
                _end_waiting(engine, lanes, classes, places[number], request, now)
            number = int(request["after"])
        own["oldest"] = number


@inner
def _plan(loop: Record, fits: Floats) -> None:
    """What changes with the law only, not with every step."""
    loop["active"] = loop["balanced"] = loop["most_active"]
    if not steplaw.has_law(fits) or not leastsquares.has_mix(fits[RECENT]):
        return
    law, mix = steplaw.law_of(fits), leastsquares.mix_of(fits[RECENT])
    loop["pairs_per_prefill"] = mix.pairs_per_prefill
    if loop["adapts"]:
        loop["balanced"] = arithmetic.balanced_sequences(law, loop["tightest_tpot"], mix, loop["most_active"])
        loop["active"] = arithmetic.active_sequences(law, loop["tightest_tpot"], mix, loop["most_active"])
    loop["full_tps"] = arithmetic.full_prefill_tps(law, mix, int(loop["balanced"]))
    loop["peak_tps"] = arithmetic.peak_prefill_tps(law, mix, loop["stock_tokens"])


@inner
def _end_waiting(engine: Record, lanes: Records, classes: Records, place: Record, request: Record, now: float) -> None:
    """End a request that has not started, and judge it by that."""
    queue_lanes.leave(engine, lanes, classes, place, request["prompt"])
    request["state"] = LOST
    engine["waiting"] -= 1
    engine["queued_tokens"] -= request["prompt"]
    engine["outstanding_tokens"] -= request["prompt"]
    if not place["judged"]:
        place["judged"] = 1
        own = classes[place["of_class"]]
        in_time = now - request["read_at"] <= own["ttft"]
        engine["judged_withdrawn"] += in_time
        engine["judged_bad_ttft"] += not in_time
        own["bad"] += not in_time


@inner
def _computed_share(loop: Record) -> float:
    """Share of the prompt tokens that the prefix cache did not hold."""
    return float(loop["computed_tokens"] / loop["started_tokens"] if loop["started_tokens"] > 0.0 else 1.0)

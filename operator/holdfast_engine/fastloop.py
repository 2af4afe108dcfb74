"""The fast loop: what happens before and after every engine step, without vLLM.

The scheduler calls these methods between two operations of vLLM, one at a time.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from holdfast_engine.clients.clienttimes import ClientTimes, Reports
from holdfast_engine.clients.ledger import Ledger
from holdfast_engine.law import arithmetic
from holdfast_engine.law.captured_graphs import UNKNOWN_GRAPHS, CapturedGraphs
from holdfast_engine.law.features import Features, Output, step_features
from holdfast_engine.law.steplaw import StepLawFit
from holdfast_engine.law.steptimes import KINDS, kind_of
from holdfast_engine.objectives import rules
from holdfast_engine.objectives.claims import class_of, header_key
from holdfast_engine.objectives.handover import KEY, Handover, forget_blocks, handover_of
from holdfast_engine.objectives.limits import LimitsFiles
from holdfast_engine.objectives.request import Queued, Request, ending_of, is_notice, is_own
from holdfast_engine.objectives.rules import SERVICE_CLASS, Ending, Limits, Overload, RequestClass, Role
from holdfast_engine.queue import batch
from holdfast_engine.queue.batch import BatchRequests
from holdfast_engine.queue.frontendpace import FrontEndPace
from holdfast_engine.queue.order import Place
from holdfast_engine.queue.prompts import PromptAverages
from holdfast_engine.queue.tokenshare import TokenShares
from holdfast_engine.queue.tpot_slack import Paces
from holdfast_engine.queue.waiting import DeadlineQueue
from holdfast_engine.stats.stats_fields import LAW, RECORD_SECONDS, ROLES, Mode

# Clocks of two processes are compared once, when a request arrives: no more than this is believed to have passed.
LONGEST_TRANSIT_SECONDS = 10.0
# Prometheus counts what a counter gains from one scrape to the next: it must see this engine's counters at zero first.
SEEN_SECONDS = 120.0
FIT_SECONDS = 1.0
FIT_STEPS = 16
_NONE = math.nan
_NO_LAW = (_NONE,) * len(LAW)


@dataclass(frozen=True, slots=True)
class StartLimits:
    """What the engine was started with: no limit goes above it.

    `chunks` is whether prompts may be cut anywhere, so that tokens per step can be limited at all. `keeps_prefixes` is
    whether a preempted request finds again what it has computed.
    """

    active_sequences: int
    tokens_per_step: int
    chunks: bool = True
    drafts: int = 0
    graphs: CapturedGraphs = UNKNOWN_GRAPHS
    keeps_prefixes: bool = True


class StepLimits(NamedTuple):
    """The limits of the next step."""

    active_sequences: int
    tokens_per_step: int


class Outlook(NamedTuple):
    """Prompt tokens that a step computes, and how long it takes."""

    prefill_tokens: int
    step_seconds: float


class _Pending(NamedTuple):
    output: Output
    launched_at: float
    features: Features
    alone: bool


class FastLoop:
    """Orders, limits, measures and counts for one engine."""

    def __init__(
        self,
        capacity: StartLimits,
        files: LimitsFiles,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        written: Reports | None = None,
        own_name: str = "",
    ) -> None:
        self.queue: DeadlineQueue[Request] = DeadlineQueue(self._place)
        self.others: Sized = ()
        """Requests in a queue of vLLM's own: where its policy is another one, the order is left alone."""
        self.batch, self._tokens_had = BatchRequests(), TokenShares()
        self.ledger = Ledger()
        self.client_times = ClientTimes(self.ledger, written, clock)
        self.fit = StepLawFit(edge_tokens=capacity.graphs.assumed_edge_tokens)
        self.limits: Limits | None = None
        self.failure: Exception | None = None
        self.step_limits = StepLimits(capacity.active_sequences, capacity.tokens_per_step)
        self._capacity = capacity
        self._files = files
        self._clock, self._wall_clock = clock, wall_clock
        self._own_name, self._claim_key = own_name, header_key(own_name)
        self._known: dict[str, Request] = {}
        self._starting: dict[str, Request] = {}
        self._pending: deque[_Pending] = deque()
        graphs = capacity.graphs
        self._edge_tokens, self._replays = graphs.assumed_edge_tokens, tuple(map(graphs.replays, range(KINDS)))
        self._depth = 0
        self._pace = Paces()
        self._tpot_seconds = _NONE
        self._front_end = FrontEndPace()
        self._prompts = PromptAverages()
        self._last = Features(0, 0, 0, 0.0)
        self._last_update = clock()
        self._results_at: float | None = None
        self._next_fit, self._next_record, self._lose_at = -math.inf, -math.inf, math.inf
        self._emptied = False
        self._told_of_waiting = False
        self._told, self._reports_taken = (0, False, 0), self.client_times.taken
        self._active = self._balanced = capacity.active_sequences
        self._most_tokens = capacity.tokens_per_step
        self._pairs_per_prefill = 0.0
        self._prefill_tps = self._peak_tps = _NONE
        self._decodes = 0
        self._slowness = 1.0
        self._outlook: Outlook | None = None
        self._running = 0
        self._free_sequences = 0

    @property
    def mode(self) -> Mode:
        """What the loop does now."""
        return Mode.WAITING if self.limits is None else Mode.ACTIVE

    @property
    def has_steps_in_flight(self) -> bool:
        """Whether results of a step are to come."""
        return bool(self._pending)

    def arrive(self, request: Request) -> None:
        """A request reached the engine; without objectives nothing can be said about it."""
        if self.limits is None or is_own(request, self._own_name) or is_notice(request):
            return
        transit = min(max(self._wall_clock() - request.arrival_time, 0.0), LONGEST_TRANSIT_SECONDS)
        now = self._clock()
        request_class = class_of(request, self.limits, self._claim_key)
        if self.limits.has_max_shares:
            request_class = self._within_share(request_class, request.num_prompt_tokens, now)
        handover = handover_of(request) if self.limits.role is Role.DECODE else None
        if handover is not None:
            transit += handover.seconds_before(request.arrival_time, LONGEST_TRANSIT_SECONDS)
        self.client_times.arrive(request.request_id, now - transit, now, request_class)
        if handover is not None:
            self._receive(request, handover)
        if request_class.is_batch:
            self.batch.names.add(request.request_id)
        else:
            self._prompts.arrive(request.num_prompt_tokens)
        # A further part of a session comes as a request of the same name: the first one stays.
        self._known.setdefault(request.request_id, request)

    def inherit(self, left: Mapping[str, int]) -> None:
        """An engine that was killed in this container left requests without a verdict, by class: they are bad."""
        self.ledger.inherit(left)
        self._lose_at = self._clock() + SEEN_SECONDS

    def _receive(self, request: Request, handover: Handover) -> None:
        """Count a request that a prefill engine handed over, before vLLM reads the KV cache that this one keeps."""
        entry = self.ledger.entry(request.request_id)
        if entry is not None and request.request_id not in self._known:
            entry.tally.received += 1
            entry.tally.kv_expired += handover.is_over(self._wall_clock()) and forget_blocks(request)

    def hand_over(self, request: Request, params: dict[str, Any] | None, lease_seconds: float) -> dict[str, Any] | None:
        """What the answer to a request tells its decode engine: `params` of vLLM's and, of one that goes on, when it
        came. To be called before it is finished here."""
        entry = self.ledger.entry(request.request_id)
        if entry is None or ending_of(request, hands_over=self.ledger.hands_over) is not Ending.HANDED_OVER:
            return params
        now = self._wall_clock()
        told = Handover(now - (self._clock() - entry.arrived), now, lease_seconds)
        return {**(params or {}), KEY: told._asdict()}

    def _within_share(self, request_class: RequestClass, prompt_tokens: int, now: float) -> RequestClass:
        """The class of a request, or the service's own where the class has had its share of the tokens."""
        if self.limits is not None and not self._tokens_had.has_room(request_class, now):
            request_class = self.limits.by_name[SERVICE_CLASS]
        self._tokens_had.add(request_class.name, prompt_tokens, now)
        return request_class

    def look(self) -> bool:
        """Take new limits and reports of written answers, judge what is overdue; returns whether to publish.

        A step that finds nothing to compute may be the one that finds a change: then nobody has published since.
        """
        is_new = self._hear(self._clock())
        return is_new or (self.ledger.judged, self.client_times.are_known, self.client_times.held) != self._told

    def _hear(self, now: float) -> bool:
        """Take what is new; returns whether that is news for who reads the record."""
        found = self._files.poll(now)
        if found is not None:
            self._take(found)
        self.client_times.poll(now)
        for name in self.ledger.expire(now):
            self.client_times.leave(name)
        loses = now >= self._lose_at
        if loses:
            self.ledger.lose()
            self._lose_at = math.inf
        return found is not None or loses

    def catch_up(self, now: float | None = None) -> None:
        """Take what is new between two steps: of what was reported, only the newest requests may not have come yet."""
        self._hear(self._clock() if now is None else now)
        self._reports_taken = self.client_times.taken

    def before_step(self, running: int) -> StepLimits:
        """Look, and fix the time of the order; returns the limits for `running` sequences."""
        failure = self.failure or self.queue.failure
        if failure is not None:
            raise failure
        now = self._clock()
        self.catch_up(now)
        if self.limits is not None and self._front_end.is_due(now):
            times = self.client_times
            lag_seconds = times.reading.recent(now) + times.lag.recent(now)
            self._front_end.adjust(now, lag_seconds, self.limits.tightest.ttft_seconds)
        # Who would be late for its client is late: the front end and the steps in flight take their time as well.
        # `first_token_seconds` counts one step under way, too: without one to spare, any longer step makes it late.
        ahead_seconds = self._ahead_seconds(len(self._pending))
        client_now = now + self._lag_seconds + ahead_seconds
        self.queue.advance(client_now)
        self._running = running
        self.step_limits = self._limits_for(max(0, running - len(self._starting)), now, client_now, ahead_seconds)
        return self.step_limits

    def give_way(self, running: list[Queued], deferred: int, kv_usage: float, lacks_slot: bool = False) -> list[Queued]:
        """Which running batch requests are to be preempted before this step, newest first; puts all of them behind the
        others, for vLLM preempts the last ones first. To be called before `before_step` while there are any.

        `deferred` other requests wait for something else than their turn, such as a grammar. Where one of them
        `lacks_slot`, a LoRA slot, batch requests with adapters leave, and none starts.
        """
        order, found, leaving = self.queue.order, self.batch.put_last(running), []
        waiting = order.urgent_count - deferred
        if waiting > 0 and found:
            lacking = self._lacking(len(running), waiting)
            leaving = found[::-1] if self._is_pressed() else batch.leaving(found, *lacking, self._kept_tokens())
        if lacks_slot:
            leaving += [each for each in found[::-1] if each.lora_request is not None and each not in leaving]
        for each in leaving:
            if self._starting.pop(each.request_id, None) is not None:
                self.batch.interrupted[each.request_id] = each
        self.batch.running, self.batch.deferred = len(found) - len(leaving), deferred
        # What has just left would start again in this step.
        room = batch.room(self._balanced, len(running), order.urgent_count, kv_usage)
        order.batch_room = 0 if leaving or lacks_slot else room
        return leaving

    def _is_pressed(self) -> bool:
        """Whether requests wait so long for their prompts that batch had better take no time of a step."""
        tokens = self.queue.order.fresh_tokens * self._prompts.computed_share
        limits, ahead = self.limits, self._look_ahead()
        if limits is None:
            return False
        backlog_seconds = arithmetic.ratio(tokens, ahead.prefill_tokens) * ahead.step_seconds
        return backlog_seconds > batch.WAIT_SHARE * limits.tightest.ttft_seconds

    def _kept_tokens(self) -> float:
        """Prompt tokens that batch may compute before waiting requests, so that all of it takes no longer than a share
        of TTFT. None with a prefix cache: without it, a prompt that leaves again and again would never end."""
        limits, ahead = self.limits, self._look_ahead()
        if self._capacity.keeps_prefixes or limits is None or self.fit.law is None:
            return 0.0
        steps = arithmetic.ratio(batch.WAIT_SHARE * limits.tightest.ttft_seconds, ahead.step_seconds)
        return steps * ahead.prefill_tokens - self.queue.order.fresh_tokens * self._prompts.computed_share

    def _lacking(self, running: int, waiting: int) -> tuple[int, float]:
        """Sequences and tokens of KV cache that the waiting requests lack which could start in this step."""
        step, prompt_tokens = self.step_limits, self._prompts.computed_tokens
        could_start = step.tokens_per_step / prompt_tokens if prompt_tokens > 0.0 else 1.0
        sequences = min(waiting, max(1, int(could_start))) - max(0, step.active_sequences - running)
        if not self.batch.lacks_memory:
            return sequences, 0.0
        return sequences, max(1.0, min(self.queue.order.fresh_tokens, step.tokens_per_step))

    def scheduled(self, output: Output) -> bool:
        """Remember what the step that vLLM has scheduled computes, and which requests get a first token from it.

        Returns whether the engine was idle before. Then no record has these requests yet, and one may end the engine.
        """
        if not output.total_num_scheduled_tokens:
            return False
        self._last = step_features(output, self._capacity.drafts)
        self._front_end.computed(self._last.prefill)
        self._free_sequences = self._free_after(output)
        if self.batch.names:
            starts = self._running + len(output.scheduled_new_reqs)
            self.batch.lacks_memory = not self._free_sequences and starts < self.step_limits.active_sequences
            for name in self.batch.interrupted.keys() & output.num_scheduled_tokens.keys():
                self._starting[name] = self.batch.interrupted.pop(name)
        now = self._clock()
        # Decoding requests wait from one step to the next, even while the engine does something else in between.
        was_idle = not self._running and not self._pending
        if was_idle:
            self._last_update = now
            self.fit.begin(now)
        self._pending.append(_Pending(output, now, self._last, not self._pending))
        self._depth = len(self._pending)
        for new in output.scheduled_new_reqs:
            request = self._known.get(new.req_id)
            if request is not None and not request.num_output_tokens:
                self._starting[new.req_id] = request
                if request.num_preemptions:
                    continue  # it has been counted
                if new.req_id in self.batch.names:
                    self.batch.schedule(new.num_computed_tokens)
                else:
                    self._prompts.start(request.num_prompt_tokens, new.num_computed_tokens)
        return was_idle

    def came(self) -> None:
        """The engine has the results of a step, and begins to take them."""
        self._results_at = self._clock()

    def updated(self, output: Output, finished: Iterable[str]) -> None:
        """The results of a step came: time it, note first tokens, judge what has finished.

        An engine that schedules ahead also hands in steps without a token, between others that are under way.
        """
        now = self._clock()
        if output.total_num_scheduled_tokens:
            self._time_step(output, now)
            self._pace.step(now)
        if self._starting or self.batch.interrupted:
            self._note_first_tokens(now)
        self.finish(finished, now)
        if now >= self._next_fit and self.fit.pending_steps >= FIT_STEPS:
            self._next_fit = now + FIT_SECONDS
            self.fit.update()
            self._plan()

    def _note_first_tokens(self, now: float) -> None:
        starting = (*self._starting.items(), *self.batch.interrupted.items())
        for name, request in [each for each in starting if each[1].num_output_tokens]:
            self._starting.pop(name, None)
            entry = self.ledger.first_token(name, now)
            if name in self.batch.names:
                self.batch.start(request)
                continue  # its tokens may come at any pace
            self._pace.start(name, now, SERVICE_CLASS if entry is None else entry.request_class.name)

    def finish(self, names: Iterable[str], now: float | None = None) -> None:
        """Judge requests that have left the engine; names that are unknown or judged already are passed over."""
        for name in names:
            request = self._known.pop(name, None)
            if request is not None:
                self._emptied = not self._known
                if name in self.batch.names:
                    self.batch.end(request)
                self._starting.pop(name, None)
                self._pace.end(name)
                moment = self._clock() if now is None else now
                if self.limits is not None and self.limits.has_max_shares:
                    entry = self.ledger.entry(name)
                    of_class = SERVICE_CLASS if entry is None else entry.request_class.name
                    self._tokens_had.add(of_class, request.num_output_tokens, moment)
                ending = ending_of(request, hands_over=self.ledger.hands_over)
                self.ledger.end(name, ending, moment, request.num_output_tokens)
                self.client_times.leave(name)

    def too_old(self) -> list[Request]:
        """Requests that have waited for longer than any may."""
        if self.limits is None:
            return []
        return self.queue.order.older_than(self._clock() - self.limits.longest_wait_seconds)

    def is_record_due(self) -> bool:
        """Whether to publish now: some time has passed, or the last published request has left or started."""
        if self._last_update < self._next_record:
            settled = self._emptied or (self._told_of_waiting and not self._any_waits)
            if not settled:
                return False
        self._emptied = False
        self._next_record = self._last_update + RECORD_SECONDS
        return True

    def record(self) -> list[float]:
        """The numbers of record.FIELDS after those of the plugin's own cost."""
        ledger, law, ahead = self.ledger, self.fit.law, self._look_ahead()
        times = self.client_times
        self._told_of_waiting, self._told = self._any_waits, (ledger.judged, times.are_known, times.held)
        return [
            self.mode,
            ledger.own.open,
            *self._waiting(),
            self._prefill_tps,
            ahead.step_seconds,
            self._free_sequences * self._prompts.computed_tokens if self._free_sequences else 0.0,
            arithmetic.tps(ahead.prefill_tokens, ahead.step_seconds),
            self._prompts.mean_tokens,
            self._prompts.computed_share,
            *(_NO_LAW if law is None else law),
            self.fit.error,
            self._lag_seconds,
            # Published between two steps: as many are in flight next as the last time, unless the engine ran empty.
            # `expected_seconds` counts one of them.
            self._ahead_seconds(self._depth - 1 if self._pending else 0),
            float(self.client_times.are_known),
            float(self._reports_taken),
            *self.client_times.first.numbers,
            *self.client_times.last.numbers,
            *self._limits_record(),
            *self.fit.sums,
            self.batch.running,
            *self.batch.sums,
        ]

    def counts(self) -> list[float]:
        """The first numbers of record.COUNTS, of the service's own class."""
        return self.ledger.own.numbers

    def class_numbers(self) -> dict[str, list[float]]:
        """The numbers of CLASS_FIELDS by class; nothing where no class is declared."""
        limits, tallies = self.limits, self.ledger.classes
        if limits is None or not tallies:
            return {}
        found, order, others = {}, self.queue.order, self._waiting() if self.others else ()
        for name, each in limits.by_name.items():
            tally = tallies.get(name, self.ledger.own)
            bound = each.objectives.ttft_seconds if limits.may_claim(each) else _NONE
            rank = each.priority, each.is_batch
            before = order.count_from(*rank), order.fresh_tokens_from(*rank)
            # In another order than ours, all stand before a new one.
            waiting = (sum(others[:-1]), others[-1]) if others else before
            found[name] = [*tally.numbers, tally.open, float(each.is_batch), bound, *waiting]
        return found

    @property
    def _any_waits(self) -> bool:
        """Whether requests wait that are not batch, nor deferred."""
        deferred = self.batch.deferred if self.batch.names else 0
        return self.queue.order.urgent_count > deferred or len(self.others) > 0

    @property
    def _lag_seconds(self) -> float:
        """What decisions set aside of TTFT for the front end."""
        return 0.0 if self.limits is None else self.client_times.lag.within(self.limits.tightest.ttft_seconds)

    def _ahead_seconds(self, steps: int) -> float:
        """What so many steps take that were launched before the next one."""
        law = self.fit.law
        return 0.0 if law is None or steps < 1 else steps * law.seconds(*self._last)

    def _waiting(self) -> tuple[float, ...]:
        """Requests at the front, in time, late and batch, and prompt tokens of those in time.

        In another order than ours nobody is known to be late, and a prompt counts as long as prompts are.
        """
        order, others = self.queue.order, len(self.others)
        if not others:
            return (*order.sizes, order.batch_count, order.fresh_tokens)
        return 0, others, 0, 0, others * self._prompts.mean_tokens

    def _limits_record(self) -> list[float]:
        limits, step = self.limits, self.step_limits
        if limits is None:
            return [_NONE] * 4 + [step.active_sequences, step.tokens_per_step] + [_NONE] * 4
        bounds = limits.objectives
        return [
            limits.version,
            bounds.ttft_seconds,
            bounds.tpot_seconds,
            bounds.e2e_seconds or _NONE,
            step.active_sequences,
            step.tokens_per_step,
            rules.most_queued_requests(limits, self._peak_tps, self._prompts.computed_tokens),
            limits.longest_wait_seconds,
            float(limits.overload is Overload.REJECT),
            ROLES.get(limits.role, _NONE),
        ]

    def _place(self, request: Request) -> Place | None:
        """Where a request waits: preempted ones and those without objectives come first."""
        if request.request_id in self.batch.names:
            return self._batch_place(request)
        entry = None if request.num_preemptions else self.ledger.entry(request.request_id)
        if entry is None:
            return None
        tokens = request.num_prompt_tokens
        computed = tokens * self._prompts.computed_share
        needed = arithmetic.first_token_seconds(computed, *self._look_ahead())
        # Deadlines, and with equal ones the shorter first: it is soon through, and the longer one waits little for it.
        priority = entry.request_class.priority
        return Place(entry.deadline + needed, entry.deadline - needed, entry.arrived, tokens, priority)

    def _batch_place(self, request: Request) -> Place | None:
        """Behind all others, first come first served."""
        entry = self.ledger.entry(request.request_id)
        if entry is None:
            return None
        priority = entry.request_class.priority
        return Place(entry.arrived, math.inf, entry.arrived, request.num_prompt_tokens, priority, batch=True)

    def _take(self, limits: Limits) -> None:
        self.ledger.hands_over = limits.role is Role.PREFILL
        if self.ledger.hands_over:
            limits = replace(limits, adapt=False)  # nobody decodes here whose TPOT a long step could break
        self.limits = limits
        self.client_times.take(limits)
        self.ledger.declare(limits.classes)
        self._pace.keep(limits.by_name)
        self.queue.order.shares = rules.shares(limits)
        self._tpot_seconds = limits.tightest.tpot_seconds
        self.fit.take_prior(limits.prior)
        self._plan()
        now = self._clock()
        self.step_limits = self._limits_for(0, now, now, self._ahead_seconds(len(self._pending)))

    def _plan(self) -> None:
        """What changes with limits and law only, not with every step."""
        limits, law, mix = self.limits, self.fit.law, self.fit.mix()
        self._active = self._capacity.active_sequences
        self._most_tokens = self._capacity.tokens_per_step
        if limits is None:
            return
        if limits.active_sequences is not None:
            self._active = min(self._active, limits.active_sequences)
        if limits.tokens_per_step is not None and self._capacity.chunks:
            self._most_tokens = min(self._most_tokens, limits.tokens_per_step)
        self._balanced = self._active
        if law is None or mix is None:
            return
        tpot_seconds = limits.tightest.tpot_seconds
        self._pairs_per_prefill = mix.pairs_per_prefill
        if limits.adapt:
            self._balanced = arithmetic.balanced_sequences(law, tpot_seconds, mix, self._active)
            self._active = arithmetic.active_sequences(law, tpot_seconds, mix, self._active)
        self._prefill_tps = arithmetic.full_prefill_tps(law, mix, self._balanced)
        self._peak_tps = arithmetic.peak_prefill_tps(law, mix, self._capacity.tokens_per_step)

    def _limits_for(self, decodes: int, now: float, client_now: float, ahead_seconds: float) -> StepLimits:
        """The limits of a step that begins now, after steps in flight that take so long."""
        limits = self.limits
        self._decodes, self._outlook = decodes, None
        if limits is None or not limits.adapt or self.fit.law is None:
            return StepLimits(self._active, self._most_tokens)
        ahead = len(self._pending)
        self._tpot_seconds, spare_seconds = self._pace.binding(limits, now, ahead)
        # The slack is that of the moment at which the steps in flight have ended.
        spare_seconds = spare_seconds + ahead * self._tpot_seconds - ahead_seconds
        prefill = max(arithmetic.LEAST_PREFILL_TOKENS, self._front_end.tokens(now))
        most = self._decodes * (1 + self._capacity.drafts) + prefill
        tokens = self._tokens(spare_seconds)
        if self._starting and self._running <= self._balanced and self._pace.bears_long_steps:
            tokens = max(tokens, self._whole_prompts(client_now))
        if self.batch.names and self._capacity.chunks:
            most = min(most, self._tokens_beside_batch(limits, self.fit.law))
        return StepLimits(self._active, int(min(tokens, most)))

    def _tokens_beside_batch(self, limits: Limits, law: arithmetic.Law) -> float:
        """Most tokens of a step, so that a request that comes meanwhile is not late because of batch."""
        starting = (each for name, each in self._starting.items() if name not in self.batch.names)
        urgent = sum(each.num_prompt_tokens - each.num_computed_tokens for each in starting)
        urgent += self.queue.order.fresh_tokens
        ttft_seconds, kv_tokens = limits.tightest.ttft_seconds, self._last.kv + self._decodes
        most = batch.step_tokens(law, ttft_seconds, self._decodes, kv_tokens, self._pairs_per_prefill, urgent)
        return most + self._decodes * self._capacity.drafts

    def _tokens(self, spare_seconds: float) -> int:
        """Tokens of a step that may take so much longer than the objective."""
        limits, law, most = self.limits, self.fit.law, self._most_tokens
        if limits is None or law is None or not limits.adapt or not self._capacity.chunks:
            return most
        slowness = max(1.0, self._slowness)
        tokens = arithmetic.tokens_per_step(
            law,
            self._tpot_seconds / slowness,
            self._decodes,
            self._last.kv + self._decodes,
            self._pairs_per_prefill,
            most,
            spare_seconds / slowness,
        )
        # Drafted tokens are computed too.
        return min(most, tokens + self._decodes * self._capacity.drafts)

    def _whole_prompts(self, client_now: float) -> int:
        """Tokens of a step that ends those prompts which would be late at the pace of TPOT, and are not so; else 0.

        TPOT is a mean over an answer. While no more sequences run than keep it with all that their prompts bring, most
        answers can bear a long step; a late first token is late for good.
        """
        law, pace, tokens, whole = self.fit.law, self._look_ahead(), 0, 0
        if law is None:
            return 0
        kv_tokens, pairs = self._last.kv + self._decodes, self._pairs_per_prefill
        for name, request in self._starting.items():
            entry = self.ledger.entry(name)
            if entry is None or request.num_preemptions or name in self.batch.names:
                continue
            tokens += request.num_prompt_tokens - request.num_computed_tokens
            left_seconds = entry.deadline - client_now
            if arithmetic.is_late_cut(law, tokens, left_seconds, self._decodes, kv_tokens, pairs, *pace):
                whole = tokens
        decodes = self._decodes * (1 + self._capacity.drafts)
        return min(self._most_tokens, decodes + whole) if whole else 0

    def _look_ahead(self) -> Outlook:
        """What is expected of the steps to come; worked out when it is asked for, not in every step."""
        found = self._outlook
        if found is None:
            # New limits that another thread takes meanwhile forget it again.
            found = self._outlook = self._looked_ahead()
        return found

    def _looked_ahead(self) -> Outlook:
        law, decodes = self.fit.law, self._decodes
        if law is None or self.limits is None:
            return Outlook(1, 0.0)
        # What is spare is used up by one step.
        prefill = max(1, self._tokens(spare_seconds=0.0) - decodes)
        pairs = prefill * self._pairs_per_prefill
        return Outlook(prefill, law.seconds(prefill, decodes, self._last.kv + decodes, pairs))

    def _free_after(self, output: Output) -> int:
        """Sequences that may start next, those of batch among them; none where requests wait although the step had
        tokens left: memory lacks."""
        if output.total_num_scheduled_tokens < self.step_limits.tokens_per_step and self._any_waits:
            return 0
        running = self._running - self.batch.running + len(output.scheduled_new_reqs)
        return max(0, self.step_limits.active_sequences - running)

    def _time_step(self, output: Output, now: float) -> None:
        """Count the time since the step before, and find what it says of this step and of those launched ahead."""
        came_at, self._results_at = now if self._results_at is None else self._results_at, None
        pending = self._pending
        if not pending or (pending[0].output is not output and all(step.output is not output for step in pending)):
            return
        while (step := pending.popleft()).output is not output:
            pass  # vLLM gave it up: results come in the order of steps
        seconds = now - self._last_update
        self.fit.observe(*step.features, seconds)
        if self.fit.law is not None:
            self._slowness = arithmetic.moved_slowness(self._slowness, self.fit.law, *step.features, seconds)
        self._last_update = now
        ahead, launched_at = -1, step.launched_at
        if pending:
            newest = pending[-1]
            ahead, launched_at = self._kind(newest.features), newest.launched_at
        own, replayed = self._kind(step.features), ahead < 0 or self._replays[ahead]
        lone = own if step.alone and not self._replays[own] else -1
        self.fit.came(step.features, ahead, replayed, launched_at, came_at, lone)

    def _kind(self, step: Features) -> int:
        """How a step is launched."""
        return kind_of(step.prefill, step.decodes, self._edge_tokens)

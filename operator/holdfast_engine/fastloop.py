"""The fast loop: what happens before and after every engine step, without vLLM.

The scheduler calls these methods between two operations of vLLM, one at a time.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from typing import NamedTuple

from holdfast_engine import arithmetic, rules, steptimes
from holdfast_engine.captured_graphs import UNKNOWN_GRAPHS, CapturedGraphs
from holdfast_engine.clienttimes import ClientTimes, Reports
from holdfast_engine.features import Features, Output, step_features
from holdfast_engine.frontendpace import FrontEndPace
from holdfast_engine.ledger import Ledger
from holdfast_engine.limits import LimitsFiles
from holdfast_engine.order import Place
from holdfast_engine.prompts import PromptAverages
from holdfast_engine.request import Request, ending_of, is_own
from holdfast_engine.rules import Limits, Overload
from holdfast_engine.stats_fields import LAW, RECORD_SECONDS, Mode
from holdfast_engine.steplaw import StepLawFit
from holdfast_engine.tpot_slack import Pace
from holdfast_engine.waiting import DeadlineQueue

# Clocks of two processes are compared once, when a request arrives: no more than this is believed to have passed.
LONGEST_TRANSIT_SECONDS = 10.0
FIT_SECONDS = 1.0
FIT_STEPS = 16
_NONE = math.nan


@dataclass(frozen=True, slots=True)
class StartLimits:
    """What the engine was started with: no limit goes above it.

    `chunks` is whether prompts may be cut anywhere, so that tokens per step can be limited at all.
    """

    active_sequences: int
    tokens_per_step: int
    chunks: bool = True
    drafts: int = 0
    graphs: CapturedGraphs = UNKNOWN_GRAPHS


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
        """Those that wait in a queue of vLLM's own: where its policy is another one, the order is left alone."""
        self.ledger = Ledger()
        self.client_times = ClientTimes(self.ledger, written, clock)
        self.fit = StepLawFit(edge_tokens=capacity.graphs.edge_tokens)
        self.limits: Limits | None = None
        self.failure: Exception | None = None
        self.step_limits = StepLimits(capacity.active_sequences, capacity.tokens_per_step)
        self._capacity = capacity
        self._files = files
        self._clock = clock
        self._wall_clock = wall_clock
        self._own_name = own_name
        self._known: dict[str, Request] = {}
        self._starting: dict[str, Request] = {}
        self._pending: deque[_Pending] = deque()
        self._depth = 0
        self._pace = Pace()
        self._front_end = FrontEndPace()
        self._prompts = PromptAverages()
        self._last = Features(0, 0, 0, 0.0)
        self._last_update = clock()
        self._results_at: float | None = None
        self._next_fit = float("-inf")
        self._next_record = float("-inf")
        self._emptied = False
        self._told_of_waiting = False
        self._told = (0, False)
        self._active = self._balanced = capacity.active_sequences
        self._most_tokens = capacity.tokens_per_step
        self._pairs_per_prefill = 0.0
        self._prefill_tps = _NONE
        self._peak_tps = _NONE
        self._decodes = 0
        self._outlook: Outlook | None = None
        self._running = 0
        self._free_sequences = 0

    @property
    def mode(self) -> Mode:
        """What the loop does now."""
        return Mode.WAITING if self.limits is None else Mode.ACTIVE

    def arrive(self, request: Request) -> None:
        """A request reached the engine; without objectives nothing can be said about it."""
        if self.limits is None or is_own(request, self._own_name):
            return
        self._prompts.arrive(request.num_prompt_tokens)
        transit = min(max(self._wall_clock() - request.arrival_time, 0.0), LONGEST_TRANSIT_SECONDS)
        now = self._clock()
        self.client_times.arrive(request.request_id, now - transit, now, self.limits.objectives)
        # A further part of a session comes as a request of the same name: the first one stays.
        self._known.setdefault(request.request_id, request)

    def look(self) -> bool:
        """Take new limits and reports of written answers, judge what is overdue; returns whether to publish.

        A step that finds nothing to compute may be the one that finds a change: then nobody has published since.
        """
        now = self._clock()
        found = self._files.poll(now)
        if found is not None:
            self._take(found)
        self.client_times.poll(now)
        self.ledger.expire(now)
        return found is not None or (self.ledger.judged, self.client_times.are_known) != self._told

    def before_step(self, running: int) -> StepLimits:
        """Look, and fix the time of the order; returns the limits for `running` sequences."""
        failure = self.failure or self.queue.failure
        if failure is not None:
            raise failure
        self.look()
        now = self._clock()
        if self.limits is not None and self._front_end.is_due(now):
            times = self.client_times
            lag_seconds = times.reading.recent(now) + times.lag.recent(now)
            self._front_end.adjust(now, lag_seconds, self.limits.objectives.ttft_seconds)
        # Who would be late for its client is late: the front end and the steps in flight take their time as well.
        # `first_token_seconds` counts one step under way, too: without one to spare, any longer step makes it late.
        client_now = now + self._lag_seconds + self._ahead_seconds(len(self._pending))
        self.queue.advance(client_now)
        self._running = running
        self.step_limits = self._limits_for(max(0, running - len(self._starting)), now, client_now)
        return self.step_limits

    def scheduled(self, output: Output) -> None:
        """A step was scheduled: remember what it computes, and who waits for a first token from it."""
        if not output.total_num_scheduled_tokens:
            return
        self._last = step_features(output, self._capacity.drafts)
        self._front_end.computed(self._last.prefill)
        self._free_sequences = self._free_after(output)
        now = self._clock()
        # Whoever decodes waits from one step to the next, whatever the engine does in between.
        if not self._running and not self._pending:
            self._last_update = now
            self.fit.begin(now)
        self._pending.append(_Pending(output, now, self._last))
        self._depth = len(self._pending)
        for new in output.scheduled_new_reqs:
            request = self._known.get(new.req_id)
            if request is not None and not request.num_output_tokens:
                self._starting[new.req_id] = request
                if not request.num_preemptions:
                    self._prompts.start(request.num_prompt_tokens, new.num_computed_tokens)

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
        started = [name for name, request in self._starting.items() if request.num_output_tokens]
        for name in started:
            del self._starting[name]
            self.ledger.first_token(name, now)
            self._pace.start(name, now)
        self.finish(finished, now)
        if self.fit.pending_steps >= FIT_STEPS and now >= self._next_fit:
            self._next_fit = now + FIT_SECONDS
            self.fit.update()
            self._plan()

    def finish(self, names: Iterable[str], now: float | None = None) -> None:
        """Judge requests that have left the engine; names that are unknown or judged already are passed over."""
        for name in names:
            request = self._known.pop(name, None)
            if request is not None:
                self._emptied = not self._known
                self._starting.pop(name, None)
                self._pace.end(name)
                moment = self._clock() if now is None else now
                self.ledger.end(name, ending_of(request), moment, request.num_output_tokens)
                self.client_times.leave(name)

    def too_old(self) -> list[Request]:
        """Requests that have waited for longer than any may."""
        if self.limits is None:
            return []
        return self.queue.order.older_than(self._clock() - rules.longest_wait_seconds(self.limits))

    def is_record_due(self) -> bool:
        """Whether to publish now: some time has passed, or the last request has left, or started, that was told of."""
        settled = self._emptied or (self._told_of_waiting and not self._any_waits)
        if not settled and self._last_update < self._next_record:
            return False
        self._emptied = False
        self._next_record = self._last_update + RECORD_SECONDS
        return True

    def record(self) -> list[float]:
        """The numbers of record.FIELDS after those of the plugin's own cost."""
        ledger, law, ahead = self.ledger, self.fit.law, self._look_ahead()
        self._told_of_waiting, self._told = self._any_waits, (ledger.judged, self.client_times.are_known)
        coefficients = [_NONE] * len(LAW) if law is None else list(law)
        return [
            self.mode,
            ledger.unjudged,
            *self._waiting(),
            self._prefill_tps,
            ahead.step_seconds,
            self._free_sequences * self._prompts.computed_tokens if self._free_sequences else 0.0,
            arithmetic.tps(ahead.prefill_tokens, ahead.step_seconds),
            self._prompts.mean_tokens,
            self._prompts.computed_share,
            *coefficients,
            self.fit.error,
            self._lag_seconds,
            # Told between two steps: as many are in flight next as the last time, unless the engine ran empty.
            # `expected_seconds` counts one of them.
            self._ahead_seconds(self._depth - 1 if self._pending else 0),
            float(self.client_times.are_known),
            *self.client_times.first.numbers,
            *self.client_times.last.numbers,
            *self._limits_record(),
            *self.fit.sums,
        ]

    def counts(self) -> list[float]:
        """The first numbers of record.COUNTS."""
        ledger = self.ledger
        return [ledger.arrived, ledger.good, *ledger.bad.values(), ledger.withdrawn, ledger.good_tokens]

    @property
    def _any_waits(self) -> bool:
        return bool(self.queue) or len(self.others) > 0

    @property
    def _lag_seconds(self) -> float:
        """What decisions set aside of TTFT for the front end."""
        return 0.0 if self.limits is None else self.client_times.lag.within(self.limits.objectives.ttft_seconds)

    def _ahead_seconds(self, steps: int) -> float:
        """What so many steps take that were launched before the next one."""
        law = self.fit.law
        return 0.0 if law is None or steps < 1 else steps * law.seconds(*self._last)

    def _waiting(self) -> tuple[float, ...]:
        """Requests at the front, in time and late, and prompt tokens of those in time.

        In another order than ours nobody is known to be late, and a prompt counts as long as prompts are.
        """
        order, others = self.queue.order, len(self.others)
        if not others:
            return (*order.sizes, order.fresh_tokens)
        return 0, others, 0, others * self._prompts.mean_tokens

    def _limits_record(self) -> list[float]:
        limits, step = self.limits, self.step_limits
        if limits is None:
            return [_NONE] * 4 + [step.active_sequences, step.tokens_per_step] + [_NONE] * 3
        bounds = limits.objectives
        return [
            limits.version,
            bounds.ttft_seconds,
            bounds.tpot_seconds,
            bounds.e2e_seconds or _NONE,
            step.active_sequences,
            step.tokens_per_step,
            rules.most_queued_requests(limits, self._peak_tps, self._prompts.computed_tokens),
            rules.longest_wait_seconds(limits),
            float(limits.overload is Overload.REJECT),
        ]

    def _place(self, request: Request) -> Place | None:
        """Where a request waits: preempted ones and those without objectives come first."""
        entry = None if request.num_preemptions else self.ledger.entry(request.request_id)
        if entry is None:
            return None
        tokens = request.num_prompt_tokens
        computed = tokens * self._prompts.computed_share
        needed = arithmetic.first_token_seconds(computed, *self._look_ahead())
        # Deadlines, and with equal ones the shorter first: it is soon through, and the longer one waits little for it.
        return Place(entry.deadline + needed, entry.deadline - needed, entry.arrived, tokens)

    def _take(self, limits: Limits) -> None:
        self.limits = limits
        self.client_times.objectives = limits.objectives
        self.fit.take_prior(limits.prior)
        self._plan()
        now = self._clock()
        self.step_limits = self._limits_for(0, now, now)

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
        tpot_seconds = limits.objectives.tpot_seconds
        self._pairs_per_prefill = mix.pairs_per_prefill
        if limits.adapt:
            self._balanced = arithmetic.balanced_sequences(law, tpot_seconds, mix, self._active)
            self._active = arithmetic.active_sequences(law, tpot_seconds, mix, self._active)
        self._prefill_tps = arithmetic.full_prefill_tps(law, mix, self._balanced)
        self._peak_tps = arithmetic.peak_prefill_tps(law, mix, self._capacity.tokens_per_step)

    def _limits_for(self, decodes: int, now: float, client_now: float) -> StepLimits:
        limits = self.limits
        self._decodes, self._outlook = decodes, None
        if limits is None or not limits.adapt or self.fit.law is None:
            return StepLimits(self._active, self._most_tokens)
        tpot_seconds, ahead = limits.objectives.tpot_seconds, len(self._pending)
        # The slack is that of the moment at which the steps in flight have ended.
        spare_seconds = self._pace.spare_seconds(tpot_seconds, now) + ahead * tpot_seconds - self._ahead_seconds(ahead)
        prefill = max(arithmetic.LEAST_PREFILL_TOKENS, self._front_end.tokens(now))
        most = self._decodes * (1 + self._capacity.drafts) + prefill
        tokens = self._tokens(spare_seconds)
        if self._starting and self._running <= self._balanced and self._pace.bears_long_steps:
            tokens = max(tokens, self._whole_prompts(client_now))
        return StepLimits(self._active, int(min(tokens, most)))

    def _tokens(self, spare_seconds: float) -> int:
        """Tokens of a step that may take so much longer than the objective."""
        limits, law, most = self.limits, self.fit.law, self._most_tokens
        if limits is None or law is None or not limits.adapt or not self._capacity.chunks:
            return most
        tokens = arithmetic.tokens_per_step(
            law,
            limits.objectives.tpot_seconds,
            decodes=self._decodes,
            kv_tokens=self._last.kv + self._decodes,
            pairs_per_prefill=self._pairs_per_prefill,
            most=most,
            spare_seconds=spare_seconds,
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
            if entry is None or request.num_preemptions:
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
        """Sequences that may start next; none where requests wait although the step had tokens left: memory lacks."""
        if self._any_waits and output.total_num_scheduled_tokens < self.step_limits.tokens_per_step:
            return 0
        return max(0, self.step_limits.active_sequences - self._running - len(output.scheduled_new_reqs))

    def _time_step(self, output: Output, now: float) -> None:
        """Count the time since the step before, and find what it says of this step and of those launched ahead."""
        came_at, self._results_at = now if self._results_at is None else self._results_at, None
        if not any(step.output is output for step in self._pending):
            return
        while (step := self._pending.popleft()).output is not output:
            pass  # vLLM gave it up: results come in the order of steps
        self.fit.observe(*step.features, now - self._last_update)
        self._last_update = now
        graphs, ahead, launched_at = self._capacity.graphs, -1, step.launched_at
        if self._pending:
            newest = self._pending[-1]
            ahead = steptimes.kind_of(newest.features.prefill, newest.features.decodes, graphs.edge_tokens)
            launched_at = newest.launched_at
        self.fit.came(step.features, ahead, ahead < 0 or graphs.replays(ahead), launched_at, came_at)

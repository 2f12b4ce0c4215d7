"""Stepping: from the scheduler's answer to segments for the device, and from its outcomes to tokens.

A step has two halves with the device between them. :meth:`Stepper.next_step` asks the scheduler, carries
out reclaims, reserves slots and returns segments; :meth:`Stepper.commit` shows the slots, appends tokens
and ends requests. Every segment's outcome becomes a token or a typed error: there is no empty result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Outcomes
from dataclasses import dataclass, field

import numpy as np

from pie_mlx.backend.base import (
    LabelProbs,
    Logprobs,
    Outcome,
    Prefilled,
    RowFailed,
    Sampled,
    Segment,
    Want,
    WantLabels,
    WantLogprobs,
    WantNothing,
    WantToken,
)
from pie_mlx.engine.asking import Limits
from pie_mlx.engine.completion import FinishReason, Piece
from pie_mlx.engine.core import Core
from pie_mlx.engine.job import Allowed, GenerateGoal, Job, LabelsGoal, Phase
from pie_mlx.engine.scheduler import (
    Blocked,
    EvictCached,
    EvictIdle,
    ForgetTail,
    Grant,
    Reclaim,
    Refuse,
    Run,
    Wait,
    schedule,
)
from pie_mlx.engine.world import CoreWorld
from pie_mlx.errors import DeviceFailed, PieError, UsageError
from pie_mlx.events import RequestAdmitted
from pie_mlx.ids import PageId
from pie_mlx.sampling import uniform


@dataclass(slots=True)
class StepWork:
    """A step in flight: its jobs and segments, in the same order."""

    jobs: list[Job] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    @property
    def decode_rows(self) -> int:
        """Segments of one token."""
        return sum(len(segment.tokens) == 1 for segment in self.segments)

    @property
    def prefill_tokens(self) -> int:
        """Tokens of the longer segments."""
        return sum(len(segment.tokens) for segment in self.segments if len(segment.tokens) > 1)


class Stepper:
    """Turns the core's live requests into steps, and outcomes into tokens."""

    def __init__(self, core: Core, limits: Limits) -> None:
        """Work on ``core`` within ``limits``."""
        self._core = core
        self._limits = limits
        self.head: Blocked | None = None
        """Whose ask was unmet when the scheduler was last asked."""
        self.num_steps = 0
        self.actions: list[str] = []
        """What was reclaimed for the present head, for reports."""

    def next_step(self) -> StepWork | None:
        """Return the next step, or None when nothing can run now."""
        core = self._core
        while core.jobs:
            answer = schedule(CoreWorld(core), self._limits)
            if isinstance(answer, Run):
                self._note_head(answer.head)
                work = self._build(answer.grants)
                if work.segments:
                    return work
                continue
            if isinstance(answer, Refuse):
                core.end(core.jobs[answer.request], Phase.FAILED, error=answer.error)
            elif isinstance(answer, Wait):
                self._note_head(answer.head)
                return None
            else:
                views = core.pool.num_views
                self._take_back(answer)
                assert core.pool.num_views < views, "each reclaim drops a view, or this loop might not end"
        self._note_head(None)
        return None

    def _take_back(self, answer: Reclaim) -> None:
        """Carry out one reclaim."""
        core = self._core
        if isinstance(answer, EvictCached):
            self.actions.append(f"dropped {core.index.evict(answer.num_pages, spare=answer.spare)} cached pages")
        elif isinstance(answer, EvictIdle):
            for context in answer.contexts:
                freed = core.evict(core.sequences[context], all_views=answer.all_views, was_running=False)
                self.actions.append(f"evicted idle context {context} ({freed} pages)")
        elif isinstance(answer, ForgetTail):
            page = core.sequences[answer.context].table.partial_page()
            assert page is not None, "only a page that is not shown in full is asked for"
            core.index.forget(page)
            self.actions.append(f"dropped the prefix entry of page {page}")
        else:
            self._preempt(core.jobs[answer.request], all_views=answer.all_views)

    def _note_head(self, head: Blocked | None) -> None:
        """Remember who is blocked; a new head starts a new list of actions."""
        if (head and head.request) != (self.head and self.head.request):
            self.actions.clear()
        self.head = head

    def _preempt(self, job: Job, *, all_views: bool) -> None:
        """Take a request's pages back; it goes on later by recomputing."""
        freed = self._core.evict(job.sequence, all_views=all_views, was_running=job.phase.is_running)
        if job.phase.is_running:
            job.num_preemptions += 1
            job.has_progressed = False
            self._core.move(job, Phase.PREEMPTED)
        self.actions.append(f"preempted request {job.id} ({freed} pages)")

    # --- before the device -----------------------------------------------------------------

    def _build(self, grants: tuple[Grant, ...]) -> StepWork:
        """Reserve slots and describe the segments; a request whose constraint fails ends alone."""
        work = StepWork()
        for grant in grants:
            job = self._core.jobs[grant.request]
            count = grant.num_tokens
            if not job.phase.is_running:
                self._start(job)
                # A cached prefix may have left less to compute, or a tail with less room, than the grant was for.
                most = job.sequence.table.room() + grant.num_pages * self._limits.page_size
                count = min(count, job.num_to_compute, most)
                if job.phase.is_over or count == 0:
                    continue
            try:
                segment = self._segment(job, count)
            except PieError as error:
                self._core.end(job, Phase.FAILED, error=error)
                continue
            work.jobs.append(job)
            work.segments.append(segment)
        return work

    def _start(self, job: Job) -> None:
        """Let a waiting or preempted request run: look up its prefix, note what needs no prefill."""
        restored = job.phase is Phase.PREEMPTED
        core, sequence = self._core, job.sequence
        if core.index.is_on:
            sequence.adopt_prefix(core.index, core.pool.page_size, before=job.first_wanted)
            sequence.let_go(job.num_lasting)
        if not restored:
            job.cached_tokens = min(sequence.num_resident, job.num_prompt)
        core.move(job, Phase.RESTORING if restored else Phase.PREFILLING)
        core.emit(RequestAdmitted(job.id, sequence.id, sequence.num_resident, restored))
        core.end_if_done(job)

    def _segment(self, job: Job, num_tokens: int) -> Segment:
        """Reserve slots for the next ``num_tokens`` outstanding tokens and say what is wanted of them."""
        sequence = job.sequence
        first = sequence.num_resident
        is_last = num_tokens == sequence.num_outstanding
        want = self._want(job, first, num_tokens, is_last=is_last)
        context_slots = sequence.table.slots
        return Segment(
            context=sequence.id,
            tokens=np.asarray(sequence.tokens[first : first + num_tokens], dtype=np.int32),
            position=first,
            context_slots=context_slots,
            write_slots=sequence.table.reserve(num_tokens),
            want=want,
            state=sequence.state,
        )

    def _want(self, job: Job, first: int, num_tokens: int, *, is_last: bool) -> Want:
        """Say what this segment's rows are to answer."""
        goal = job.goal
        if isinstance(goal, GenerateGoal):
            if not is_last:
                return WantNothing()
            allowed = _allowed(goal.constraint) if goal.constraint is not None else None
            ids = None if allowed is None else np.asarray(allowed, dtype=np.int32)
            return WantToken(goal.sampling, uniform(goal.sampling.seed, len(job.sequence.tokens)), ids)
        if isinstance(goal, LabelsGoal):
            return WantLabels(goal.labels) if is_last else WantNothing()
        # Row i answers for token i + 1; only the last num_targets tokens are targets, each once.
        targets = job.sequence.tokens[max(first, job.first_wanted) + 1 : first + num_tokens + 1]
        return WantLogprobs(np.asarray(targets, dtype=np.int32)) if targets else WantNothing()

    def foresee(self, work: StepWork) -> list[Segment]:
        """Guess the step that follows ``work``: the same requests, each one token on. Nothing is reserved.

        Nobody guesses while prompts are computed, and where a step changes what its contexts show: in models with a
        window or a recurrent state.
        """
        core, spoken_for = self._core, set[PageId]()
        segments: list[Segment] = []
        for job, segment in zip(work.jobs, work.segments, strict=True):
            table = job.sequence.table
            if core.window is not None or segment.state is not None or not isinstance(segment.want, WantToken):
                return []
            if job.phase.is_over or not table.is_reserved or self._is_last(job):
                continue
            slot = table.next_slot(spoken_for)
            if slot is None:
                return []
            segments.append(
                Segment(
                    context=segment.context,
                    tokens=np.zeros(1, dtype=np.int32),
                    position=segment.position + len(segment.tokens),
                    context_slots=np.concatenate([segment.context_slots, segment.write_slots]),
                    write_slots=np.array([slot], dtype=np.int32),
                    want=segment.want,
                )
            )
        return segments

    def _is_last(self, job: Job) -> bool:
        """Whether the token that a generating request waits for will be its last, whatever it is."""
        goal = job.goal
        assert isinstance(goal, GenerateGoal), "only a generating request samples"
        return len(job.tokens) + 1 >= goal.max_tokens or len(job.sequence.tokens) + 1 >= self._core.context_tokens

    # --- after the device ------------------------------------------------------------------

    def commit(self, work: StepWork, outcomes: Outcomes[Outcome]) -> int:
        """Take the device's outcomes in; return how many rows failed."""
        self._count_step()
        num_failed = 0
        for at, (job, segment) in enumerate(zip(work.jobs, work.segments, strict=True)):
            if job.phase.is_over or not job.sequence.table.is_reserved:
                continue  # cancelled, closed or preempted while the step ran: its slots are back already
            lost = RowFailed(DeviceFailed("the step lost this row", self.num_steps))
            outcome = outcomes[at] if at < len(outcomes) else lost
            error = self._take(job, segment, outcome)
            if error is not None:
                num_failed += 1
                self._core.end(job, Phase.FAILED, error=error)
        self._core.index.trim()
        return num_failed

    def fail_step(self, work: StepWork, error: PieError) -> int:
        """The whole step failed: its requests end with the error, their slots are given back; return how many rows."""
        self._count_step()
        for job in work.jobs:
            self._core.end(job, Phase.FAILED, error=error)
        return len(work.jobs)

    def _count_step(self) -> None:
        """Count a step, as a number and for the readings."""
        self.num_steps += 1
        self._core.counters["steps"] += 1

    def _take(self, job: Job, segment: Segment, outcome: Outcome) -> PieError | None:
        """Show the segment's slots and use its outcome; return the error if it is one."""
        if isinstance(outcome, RowFailed):
            return outcome.error
        sequence, core = job.sequence, self._core
        count = len(segment.tokens)
        sequence.table.commit(count)
        sequence.advance_state(segment.position, outcome.state)
        sequence.index_pages(core.index if core.index.is_on else None, core.pool.page_size)
        sequence.let_go(job.num_lasting)
        job.prefilled_tokens += max(0, min(job.num_prompt, segment.position + count) - segment.position)
        job.has_progressed = True
        core.counters["tokens_committed"] += count
        want = segment.want
        if isinstance(want, WantNothing) and isinstance(outcome, Prefilled):
            core.end_if_done(job)
            return None
        if isinstance(want, WantToken) and isinstance(outcome, Sampled) and 0 <= outcome.token < core.vocab_size:
            return self._take_token(job, outcome)
        if isinstance(want, WantLabels) and isinstance(outcome, LabelProbs) and len(outcome.probs) == len(want.labels):
            job.label_probs = outcome.probs
            job.reason = "scored"
            core.end(job, Phase.FINISHED)
            return None
        if (
            isinstance(want, WantLogprobs)
            and isinstance(outcome, Logprobs)
            and len(outcome.logprobs) == len(want.targets)
        ):
            job.scores.extend(outcome.logprobs)
            if job.num_to_compute == 0:
                job.reason = "scored"
                core.end(job, Phase.FINISHED)
            return None
        name, asked = type(outcome).__name__, type(want).__name__
        return DeviceFailed(f"the device answered a {asked} with a {name} that does not fit it", self.num_steps)

    def _take_token(self, job: Job, outcome: Sampled) -> PieError | None:
        """Record a sampled token before it is shown, then end the request if it was the last."""
        goal = job.goal
        assert isinstance(goal, GenerateGoal), "only a generating request samples"
        if job.phase is not Phase.DECODING:
            self._core.move(job, Phase.DECODING)
        if job.first_token_s is None:
            job.first_token_s = time.perf_counter()
        if outcome.token in goal.stop_ids:
            self._finish(job, "stop")
            return None
        if goal.constraint is not None and (error := _accept(goal.constraint, outcome.token)):
            return error
        job.sequence.tokens.append(outcome.token)
        job.tokens.append(outcome.token)
        job.logprobs.append(outcome.logprob)
        if outcome.top:
            job.top_logprobs.append(outcome.top)
        text, stopped = job.text.push(outcome.token) if job.text is not None else ("", False)
        self._deliver(job, text, outcome)
        if stopped:
            self._finish(job, "stop")
        elif len(job.tokens) >= goal.max_tokens:
            self._finish(job, "length")
        elif len(job.sequence.tokens) >= self._core.context_tokens:
            self._finish(job, "context_full")
        return None

    def _deliver(self, job: Job, text: str, outcome: Sampled) -> None:
        """Hand a token and the text that it made certain to the request's owner."""
        job.pieces.append(text)
        top = (outcome.top,) if outcome.top else ()
        job.deliveries.put(Piece(text, (outcome.token,), (outcome.logprob,), top))

    def _finish(self, job: Job, reason: FinishReason) -> None:
        """End a generating request well, with the text that was held back."""
        job.reason = reason
        rest = job.text.finish() if job.text is not None else ""
        if rest:
            job.pieces.append(rest)
            job.deliveries.put(Piece(rest, (), ()))
        self._core.end(job, Phase.FINISHED)


def _allowed(constraint: Allowed) -> Outcomes[int] | None:
    """Ask a constraint what may come next.

    Raises:
        PieError: it failed; its own request ends, the others of the step go on.
    """
    try:
        return constraint.allowed()
    except PieError:
        raise
    except Exception as error:
        raise UsageError(f"the constraint failed: {type(error).__name__}: {error}") from error


def _accept(constraint: Allowed, token: int) -> PieError | None:
    """Tell a constraint what was drawn; return the error if it fails, as it is its owner's code."""
    try:
        constraint.accept(token)
    except PieError as error:
        return error
    except Exception as error:  # noqa: BLE001  (the owner's code: its fault must not end the requests of others)
        failure = UsageError(f"the constraint failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure
    return None

"""The core: all records of the engine and the verbs on them, without a thread and without a device.

Everything here is bookkeeping in microseconds and runs under the engine's lock. A test can drive it step
by step, without any thread.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens

import numpy as np

from pie_mlx.engine.checkpoints import Checkpoints
from pie_mlx.engine.job import (
    GenerateGoal,
    Goal,
    Job,
    LabelsGoal,
    LogprobsGoal,
    Phase,
    TextStreamLike,
    num_leaving,
    num_unwanted,
)
from pie_mlx.engine.sequence import Sequence
from pie_mlx.errors import (
    Cancelled,
    ContextBusy,
    ContextClosed,
    ContextTooLong,
    EmptyPrompt,
    Impossible,
    InvalidParameter,
    PieError,
)
from pie_mlx.events import (
    ContextEvicted,
    ContextOpened,
    ContextRewound,
    ContextShut,
    Event,
    PageCounts,
    RequestEnded,
    RequestSubmitted,
)
from pie_mlx.ids import ContextId, PageId, RequestId
from pie_mlx.kv.page_table import PageTable
from pie_mlx.kv.pool import PagePool
from pie_mlx.kv.prefix_index import PrefixIndex
from pie_mlx.kv.window import Window


class Core:
    """Contexts, requests, pool and prefix index of one engine."""

    def __init__(
        self,
        pool: PagePool,
        *,
        context_tokens: int,
        vocab_size: int,
        max_cached_pages: int,
        window: Window | None = None,
        emit: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        """Make a core without contexts."""
        self.pool = pool
        self.index = PrefixIndex(pool, max_cached_pages=max_cached_pages)
        self.context_tokens = context_tokens
        self.vocab_size = vocab_size
        self.window = window
        """How far back the model looks, where that is bounded in every layer."""
        self.emit = emit
        self.sequences: dict[ContextId, Sequence] = {}
        self.jobs: dict[RequestId, Job] = {}
        """Live requests in the order of arrival; one that has ended leaves at once."""
        self.running: set[RequestId] = set()
        """Those of them that take part in steps."""
        self.counters: Counter[str] = Counter()
        self._context_ids = itertools.count(1)
        self._request_ids = itertools.count(1)
        self._clock = itertools.count(1)

    # --- contexts --------------------------------------------------------------------------

    def open(self, tokens: Tokens[int], name: str) -> Sequence:
        """Make a context with ``tokens``; computes nothing and takes no page."""
        self._check_tokens(tokens)
        return self._enter(Sequence(self._new_id(), name, list(tokens), PageTable(self.pool), window=self.window))

    def fork(self, context: ContextId, name: str) -> Sequence:
        """Make a context that views what ``context`` shows now; takes no page."""
        parent = self.get(context)
        parent.keep_state()
        child = Sequence(
            self._new_id(),
            name,
            parent.tokens.copy(),
            parent.table.fork(),
            parent=context,
            keys=parent.keys.copy(),
            state=parent.state,
            checkpoints=parent.checkpoints.copy(),
            window=self.window,
        )
        parent.last_used = next(self._clock)
        return self._enter(child)

    def _new_id(self) -> ContextId:
        """Return the next context id."""
        return ContextId(next(self._context_ids))

    def _enter(self, sequence: Sequence) -> Sequence:
        """Register a new context and tell."""
        sequence.last_used = next(self._clock)
        self.sequences[sequence.id] = sequence
        self.counters["contexts_opened"] += 1
        self.emit(ContextOpened(sequence.id, sequence.name, sequence.parent, len(sequence.tokens)))
        return sequence

    def get(self, context: ContextId) -> Sequence:
        """Return a live context.

        Raises:
            ContextClosed: it is closed.
        """
        sequence = self.sequences.get(context)
        if sequence is None:
            raise ContextClosed(str(context))
        return sequence

    def get_idle(self, context: ContextId) -> Sequence:
        """Return a live context that runs no request.

        Raises:
            ContextClosed, ContextBusy: as their names say.
        """
        sequence = self.get(context)
        if sequence.job is not None:
            raise ContextBusy(sequence.label)
        return sequence

    def close(self, context: ContextId) -> int:
        """Close a context, cancelling its request; return the pages that became free. Idempotent."""
        sequence = self.sequences.get(context)
        if sequence is None:
            return 0
        free = self.pool.num_free
        if sequence.job is not None:
            self.end(sequence.job, Phase.CANCELLED, error=Cancelled("the context's owner"))
        del self.sequences[context]
        self.index.touch(sequence.table.pages)
        sequence.table.clear()
        self.index.trim()
        freed = self.pool.num_free - free
        sequence.closed, sequence.state = True, None
        sequence.checkpoints = Checkpoints()
        self.counters["contexts_closed"] += 1
        self.emit(ContextShut(context, freed))
        return freed

    def append(self, context: ContextId, tokens: Tokens[int]) -> None:
        """Put ``tokens`` behind a context's sequence; computes nothing."""
        sequence = self.get_idle(context)
        self._check_tokens(tokens)
        sequence.tokens.extend(tokens)
        self._touch(sequence)

    def truncate(self, context: ContextId, num_tokens: int) -> int:
        """Keep the first ``num_tokens`` tokens; return the pages that became free."""
        sequence = self.get_idle(context)
        if not 0 <= num_tokens <= len(sequence.tokens):
            raise InvalidParameter("truncate", num_tokens, f"from 0 to {len(sequence.tokens)}")
        wanted = min(num_tokens, sequence.num_resident)
        freed = sequence.truncate_resident(num_tokens) + self.index.trim()
        del sequence.tokens[num_tokens:]
        if sequence.num_resident < wanted:
            lost = wanted - sequence.num_resident
            self.counters["rewound_tokens"] += lost
            self.emit(ContextRewound(context, sequence.num_resident, lost))
        self._touch(sequence)
        return freed

    def rebase(self, context: ContextId, tokens: Tokens[int]) -> int:
        """Make the sequence equal ``tokens``; return how many leading tokens were equal already."""
        sequence = self.get_idle(context)
        self._check_tokens(tokens)
        old, new = np.asarray(sequence.tokens), np.asarray(tokens)
        most = min(len(old), len(new))
        differs = np.flatnonzero(old[:most] != new[:most])
        common = int(differs[0]) if differs.size else most
        self.truncate(context, common)
        sequence.tokens.extend(tokens[common:])
        return common

    def _touch(self, sequence: Sequence) -> None:
        """Note that a context was used now."""
        sequence.last_used = next(self._clock)
        sequence.touched_s = time.monotonic()

    def _check_tokens(self, tokens: Tokens[int]) -> None:
        """Refuse ids that the model does not have."""
        if len(tokens) and not (min(tokens) >= 0 and max(tokens) < self.vocab_size):
            raise InvalidParameter(
                "token id", next(t for t in tokens if not 0 <= t < self.vocab_size), f"0 to {self.vocab_size - 1}"
            )

    def evict(self, sequence: Sequence, *, all_views: bool, was_running: bool) -> int:
        """Take a context's K/V back, keeping its tokens; return the pages that became free."""
        before = sequence.num_resident
        if sequence.table.is_reserved:
            sequence.table.rollback()
        keep = 0 if all_views else sequence.table.num_tokens_before_own(self.index.views_by_page())
        freed = sequence.truncate_resident(keep) + self.index.trim()
        lost = before - sequence.num_resident
        sequence.num_evicted_tokens += lost
        self.counters["preemptions" if was_running else "evictions"] += 1
        self.emit(ContextEvicted(sequence.id, freed, lost, was_running))
        return freed

    # --- requests --------------------------------------------------------------------------

    def submit(
        self, context: ContextId, goal: Goal, *, text: TextStreamLike | None = None, extra: Tokens[int] = ()
    ) -> Job:
        """Register a request on a context; ``extra`` tokens are put behind the sequence first.

        Raises:
            ContextClosed, ContextBusy, EmptyPrompt, ContextTooLong, InvalidParameter: as their names say.
            Impossible: the pool could not hold the sequence even if it held nothing else.
        """
        sequence = self.get_idle(context)
        self._check_tokens(extra)
        if isinstance(goal, LabelsGoal):
            self._check_tokens(goal.labels)
        num_prompt = len(sequence.tokens) + len(extra)
        self._admit(sequence, num_prompt, goal)
        # The token before the first answer is always computed in this request: its logits are wanted.
        fresh = len(sequence.tokens) - 1 if isinstance(goal, LogprobsGoal) else num_prompt - 1
        sequence.truncate_resident(fresh)
        sequence.keep_state()
        self.index.trim()
        sequence.tokens.extend(extra)
        job = Job(RequestId(next(self._request_ids)), sequence, goal, num_prompt, text)
        job.after = self._leader(job)
        sequence.job = job
        self._touch(sequence)
        self.jobs[job.id] = job
        self.counters["submitted"] += 1
        self.emit(RequestSubmitted(job.id, context))
        self.end_if_done(job)
        return job

    def end_if_done(self, job: Job) -> None:
        """End a request that only wanted its context resident, once it is."""
        if isinstance(job.goal, GenerateGoal) and not job.wants_token and job.num_to_compute == 0:
            job.reason = "length"
            self.end(job, Phase.FINISHED)

    def _leader(self, job: Job) -> Job | None:
        """Return the parent's request if it is about to compute a page that this one needs too."""
        sequence, size = job.sequence, self.pool.page_size
        parent = self.sequences.get(sequence.parent) if sequence.parent is not None else None
        if parent is None or parent.job is None or not self.index.is_on:
            return None
        start = sequence.num_resident // size * size
        end = start + size
        shared = end <= job.first_wanted and sequence.tokens[start:end] == parent.tokens[start:end]
        return parent.job if shared and parent.num_resident < end else None

    def _admit(self, sequence: Sequence, num_tokens: int, goal: Goal) -> None:
        """Refuse at once what can never work."""
        if not sequence.tokens:
            raise EmptyPrompt
        grows = isinstance(goal, GenerateGoal) and goal.max_tokens > 0
        if num_tokens + grows > self.context_tokens:
            raise ContextTooLong(num_tokens, self.context_tokens)
        need, total = self.pool.pages_for(num_tokens - num_unwanted(goal)), self.pool.num_pages
        if self.window is not None:
            need = min(need, self.window.least_pages(self.pool.page_size, num_leaving(goal)))
        pinned = {page for other in self.sequences.values() if other.pinned for page in other.table.pages}
        pinned.difference_update(sequence.table.pages)
        if need > total - len(pinned):
            # What is pinned and holds this very prefix helps instead of standing in the way.
            pinned.difference_update(self.index.match(sequence.tokens, (), len(sequence.tokens) // self.pool.page_size))
        if need > total - len(pinned):
            raise Impossible(need, total, len(pinned))

    def move(self, job: Job, phase: Phase) -> None:
        """Send a request to another phase of its life."""
        job.move(phase)
        if phase.is_running:
            self.running.add(job.id)
        else:
            self.running.discard(job.id)

    def end(self, job: Job, phase: Phase, *, error: PieError | None = None) -> None:
        """Send a request's one terminal event and forget it; idempotent for one that is over."""
        if job.phase.is_over:
            return
        self.move(job, phase)
        job.error, job.ended_s = error, time.perf_counter()
        sequence = job.sequence
        if sequence.table.is_reserved:
            sequence.table.rollback()
        if isinstance(job.goal, LogprobsGoal):
            keep = job.num_prompt - job.goal.num_targets
            sequence.truncate_resident(keep)
            del sequence.tokens[keep:]
        self.index.trim()
        sequence.job = None
        job.after = None
        self._touch(sequence)
        del self.jobs[job.id]
        if error is None:
            self.counters["completed"] += 1
        else:
            self.counters["cancelled" if phase is Phase.CANCELLED else "failed"] += 1
        reason = error.code if error is not None else str(job.reason)
        self.emit(RequestEnded(job.id, sequence.id, reason, len(job.tokens), None if error is None else error.message))
        job.deliveries.put(error if error is not None else job.completion())

    def fail_all(self, make_error: Callable[[Job], PieError]) -> None:
        """End every live request: the engine cannot go on."""
        for job in list(self.jobs.values()):
            self.end(job, Phase.FAILED, error=make_error(job))

    # --- looking ---------------------------------------------------------------------------

    def page_counts(self) -> PageCounts:
        """Count the pool's pages by who views them; O(pages) in vectorised form."""
        pool, index = self.pool, self.index
        refs = pool.refs_by_page() - index.views_by_page()
        cached = index.num_cached()
        private = int(np.count_nonzero(refs == 1))
        shared = int(np.count_nonzero(refs > 1))
        return PageCounts(pool.num_pages, pool.num_free, private, shared, cached, int(refs.sum()))

    def views(self) -> Iterator[tuple[PageId, int]]:
        """Yield every view that any owner holds."""
        for sequence in self.sequences.values():
            yield from sequence.table.views()
        for page in self.index.pages():
            yield page, self.pool.page_size

    def check(self) -> None:
        """Assert the pool's invariants against every owner, and the requests' own."""
        self.pool.check(self.views())
        counts, jobs = self.counters, len(self.jobs)
        ended = counts["completed"] + counts["failed"] + counts["cancelled"]
        assert ended + jobs == counts["submitted"], "a request has no terminal event, or two"
        assert self.running == {job.id for job in self.jobs.values() if job.phase.is_running}, "who runs is known"
        assert self.index.num_cached() <= self.index.max_cached_pages, "the prefix index keeps to its limit"
        for job in self.jobs.values():
            assert job.sequence.job is job, "a live request belongs to its context"
            assert not job.phase.is_over, "a request that is over has left"

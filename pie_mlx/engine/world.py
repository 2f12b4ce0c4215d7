"""The scheduler's questions, answered from the core's own records without changing them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pie_mlx.engine.asking import NO_HITS, Ask, Hits
from pie_mlx.engine.job import Job, Phase, num_leaving
from pie_mlx.errors import Holder
from pie_mlx.ids import ContextId, PageId, RequestId

if TYPE_CHECKING:
    from pie_mlx.engine.core import Core


def make_ask(job: Job) -> Ask:
    """Describe a live job as the scheduler sees it."""
    table, window = job.sequence.table, job.sequence.window
    room = table.room()
    leader = job.after
    most = None if window is None else window.most_pages(table.page_size, num_leaving(job.goal))
    return Ask(
        request=job.id,
        context=job.sequence.id,
        phase=job.phase,
        outstanding=max(1, job.num_to_compute),
        num_pages=table.num_pages,
        num_resident=table.num_shown,
        room=room,
        tail=table.last_page if room else None,
        has_progressed=job.has_progressed,
        most_fresh=None if most is None else max(0, most - table.num_pages),
        waits_for_prefix=(
            job.phase is Phase.WAITING and leader is not None and not leader.phase.is_over and not leader.is_prefilled
        ),
    )


class CoreWorld:
    """A :class:`~pie_mlx.engine.asking.World` over the core; costly answers are made only when asked."""

    def __init__(self, core: Core) -> None:
        """Look at ``core``, which must not change meanwhile."""
        self._core = core

    @property
    def asks(self) -> Iterator[Ask]:
        """Live requests, oldest first; made one by one, as a full batch ends the scheduler's look early."""
        return (make_ask(job) for job in self._core.jobs.values())

    @property
    def num_running(self) -> int:
        """How many requests take part in steps."""
        return len(self._core.running)

    @property
    def free_pages(self) -> int:
        """Pages free now."""
        return self._core.pool.num_free

    @property
    def total_pages(self) -> int:
        """Pages of the pool."""
        return self._core.pool.num_pages

    def prefix_hits(self, request: RequestId) -> Hits:
        """What the prefix index holds of what a request that does not run would compute."""
        core, job = self._core, self._core.jobs[request]
        sequence, size = job.sequence, core.pool.page_size
        if not core.index.is_on:
            return NO_HITS
        pages = sequence.find_prefix(core.index, job.ahead, size, before=job.first_wanted)
        if not pages:
            return NO_HITS
        return Hits(tuple(pages), (len(sequence.keys) + len(pages)) * size - sequence.num_resident)

    def cached_pages(self, spare: Sequence[PageId] = ()) -> int:
        """Pages that only the prefix index views, without ``spare``."""
        return self._core.index.num_cached(spare)

    def private_pages(self, context: ContextId, spare: Sequence[PageId] = ()) -> int:
        """Pages that no other context views; the prefix index gives its views up when asked, but for ``spare``."""
        core = self._core
        return core.sequences[context].table.num_own(core.index.droppable_views(spare))

    def younger_holders(self, request: RequestId) -> Sequence[Ask]:
        """Requests younger than ``request`` whose contexts view pages, youngest first."""
        younger: list[Ask] = []
        for job in reversed(self._core.jobs.values()):
            if job.id == request:
                break
            if job.sequence.table.num_pages:
                younger.append(make_ask(job))
        return younger

    def idle_contexts(self) -> Sequence[ContextId]:
        """Contexts with pages, unpinned and without a request, least recently used first."""
        idle = [s for s in self._core.sequences.values() if s.job is None and not s.pinned and s.table.num_pages]
        return [s.id for s in sorted(idle, key=lambda s: (s.last_used, s.id))]

    def pinned_contexts(self) -> Sequence[ContextId]:
        """Contexts with pages, pinned and without a request."""
        return [s.id for s in self._core.sequences.values() if s.job is None and s.pinned and s.table.num_pages]

    def group_pages(self, contexts: Sequence[ContextId], spare: Sequence[PageId] = ()) -> int:
        """Pages that would be free if these contexts and the prefix index, but for ``spare``, dropped their views."""
        pool = self._core.pool
        pages = [page for context in contexts for page in self._core.sequences[context].table.pages]
        views = np.bincount(np.asarray(pages, dtype=np.int64), minlength=pool.num_pages + 1)
        views += self._core.index.droppable_views(spare)
        refs = pool.refs_by_page()
        return int(np.count_nonzero((refs > 0) & (refs == views)))

    def tail_viewers(self, context: ContextId) -> Sequence[ContextId]:
        """Other contexts that view this one's last page, where that is not shown in full."""
        page = self._core.sequences[context].table.partial_page()
        if page is None:
            return []
        return [s.id for s in self._core.sequences.values() if s.id != context and page in s.table.pages]

    def is_tail_cached(self, context: ContextId) -> bool:
        """Whether the prefix index views this context's last page, where that is not shown in full."""
        page = self._core.sequences[context].table.partial_page()
        return page is not None and bool(self._core.index.views_by_page()[page])

    def holders(self) -> tuple[Holder, ...]:
        """Who holds pages, most first; at most eight, as reports are read by people."""
        now, cache_views = time.monotonic(), self._core.index.views_by_page()
        found = [
            Holder(s.label, s.table.num_pages, s.table.num_pages - s.table.num_own(cache_views), now - s.touched_s)
            for s in self._core.sequences.values()
            if s.table.num_pages
        ]
        return tuple(sorted(found, key=lambda holder: -holder.pages)[:8])

"""What the scheduler is asked, and what it may look at to answer: plain facts, no verbs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pie_mlx.engine.job import Phase
from pie_mlx.errors import Holder
from pie_mlx.ids import ContextId, PageId, RequestId


@dataclass(frozen=True, slots=True)
class Ask:
    """A live request as the scheduler sees it."""

    request: RequestId
    context: ContextId
    phase: Phase
    outstanding: int
    """Tokens to compute before its next result, at least 1."""
    num_pages: int
    """Pages that its context views now."""
    num_resident: int
    """Tokens that are in them."""
    room: int
    """Slots it may write without a fresh page, unless somebody else takes the tail first."""
    tail: PageId | None
    """The page of that room."""
    has_progressed: bool = True
    """Whether it computed anything since it was last preempted."""
    most_fresh: int | None = None
    """Fresh pages that it needs at most at one time, however much is outstanding; None is no such limit."""
    waits_for_prefix: bool = False
    """Whether an older request is computing its prefix right now."""

    def fresh_pages(self, num_tokens: int, page_size: int) -> int:
        """Return how many fresh pages ``num_tokens`` outstanding tokens need at one time."""
        pages = -(-max(0, num_tokens) // page_size)
        return pages if self.most_fresh is None else min(pages, self.most_fresh)

    def behind(self, hits: Hits) -> Ask:
        """Return the ask as it is once the hits' pages are viewed: their tokens need not be computed."""
        if not hits.pages:
            return self
        return replace(self, outstanding=max(0, self.outstanding - hits.num_tokens), room=0, tail=None)


@dataclass(frozen=True, slots=True)
class Hits:
    """Pages of the prefix index that continue what a request has: it views them when it starts."""

    pages: tuple[PageId, ...] = ()
    num_tokens: int = 0
    """Outstanding tokens in them."""


NO_HITS = Hits()


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may hold."""

    page_size: int
    max_batch: int
    prefill_chunk: int
    max_rows: int | None = None
    """Segments per step where the model cannot be batched: 1; None is no such limit."""


class World(Protocol):
    """What the scheduler may look at; every method is a question without effect."""

    @property
    def asks(self) -> Iterable[Ask]:
        """Live requests, oldest first."""
        ...

    @property
    def num_running(self) -> int:
        """How many of them take part in steps."""
        ...

    @property
    def free_pages(self) -> int:
        """Pages free now."""
        ...

    @property
    def total_pages(self) -> int:
        """Pages of the pool."""
        ...

    def prefix_hits(self, request: RequestId) -> Hits:
        """What the prefix index holds of what a request that does not run would compute."""
        ...

    def cached_pages(self, spare: Sequence[PageId] = ()) -> int:
        """Pages that only the prefix index views, without ``spare``."""
        ...

    def private_pages(self, context: ContextId, spare: Sequence[PageId] = ()) -> int:
        """Pages that no other context views, nor the prefix index if it is to keep them: ``spare``."""
        ...

    def younger_holders(self, request: RequestId) -> Sequence[Ask]:
        """Live requests younger than ``request`` whose contexts view pages, youngest first."""
        ...

    def idle_contexts(self) -> Sequence[ContextId]:
        """Contexts with pages but without a request, unpinned, least recently used first."""
        ...

    def pinned_contexts(self) -> Sequence[ContextId]:
        """Contexts with pages but without a request, pinned."""
        ...

    def group_pages(self, contexts: Sequence[ContextId], spare: Sequence[PageId] = ()) -> int:
        """Pages that would be free if these contexts and the prefix index, but for ``spare``, dropped their views."""
        ...

    def tail_viewers(self, context: ContextId) -> Sequence[ContextId]:
        """Other contexts that view this one's last page, where that is not shown in full."""
        ...

    def is_tail_cached(self, context: ContextId) -> bool:
        """Whether the prefix index views this context's last page, where that is not shown in full."""
        ...

    def holders(self) -> tuple[Holder, ...]:
        """Who holds pages, most first."""
        ...

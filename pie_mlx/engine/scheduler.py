"""The scheduler: a pure function from what waits and what is free to what happens next.

Order is by arrival. The **head** is the oldest request whose ask is unmet; freed pages are kept for it.
The answer is exactly one of

* :class:`Run`: these requests compute these many tokens in the next step;
* :class:`EvictCached`, :class:`EvictIdle`, :class:`Preempt`: take pages back first, then ask again
  (one reclaim in flight: each is carried out before the next question);
* :class:`Refuse`: this request can never go on, and here is the typed error;
* :class:`Wait`: nothing can run until an owner closes or unpins a context.

Why this ends: the oldest request is never a victim, and each reclaim frees at least one page or drops the
last view of an evictable context, of which there are finitely many; so the oldest request computes a token
or is refused after finitely many answers, and by induction so does every other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pie_mlx.engine.job import Phase
from pie_mlx.errors import Hog, Holder, PressureError, Starved
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
    waits_for_prefix: bool = False
    """Whether an older request is computing its prefix right now."""


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
    def asks(self) -> Sequence[Ask]:
        """Live requests, oldest first."""
        ...

    @property
    def free_pages(self) -> int:
        """Pages free now."""
        ...

    @property
    def total_pages(self) -> int:
        """Pages of the pool."""
        ...

    def cached_pages(self) -> int:
        """Pages that only the prefix index views."""
        ...

    def private_pages(self, context: ContextId) -> int:
        """Pages that no other context views."""
        ...

    def idle_contexts(self) -> Sequence[ContextId]:
        """Contexts with pages but without a request, unpinned, least recently used first."""
        ...

    def group_pages(self, contexts: Sequence[ContextId]) -> int:
        """Pages that would be free if all these contexts and the prefix index dropped their views."""
        ...

    def holders(self) -> tuple[Holder, ...]:
        """Who holds pages, most first."""
        ...

    def num_pinned_pages(self) -> int:
        """Pages that pinned contexts view."""
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """``num_tokens`` of this request's outstanding tokens are computed in the next step."""

    request: RequestId
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """Who is the head, what it lacks, and why."""

    request: RequestId
    need_pages: int
    free_pages: int
    why: str
    is_admission: bool = False
    """Whether it has not started: older requests run, and it may wait for them."""


@dataclass(frozen=True, slots=True)
class Run:
    """The next step."""

    grants: tuple[Grant, ...]
    head: Blocked | None = None


@dataclass(frozen=True, slots=True)
class EvictCached:
    """Drop prefix entries nobody views, least recently used first, until ``num_pages`` are free."""

    num_pages: int


@dataclass(frozen=True, slots=True)
class EvictIdle:
    """Take an idle context's pages: its private ones, or all its views where only a group frees anything."""

    context: ContextId
    all_views: bool


@dataclass(frozen=True, slots=True)
class Preempt:
    """Take a running request's pages; it goes on later by recomputing."""

    request: RequestId
    all_views: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """End this request with this error: nothing that may be taken would be enough."""

    request: RequestId
    error: PressureError


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can run now; ``head`` waits for an owner to close or unpin something."""

    head: Blocked


Answer = Run | EvictCached | EvictIdle | Preempt | Refuse | Wait


def schedule(world: World, limits: Limits) -> Answer:
    """Return what happens next; ``world.asks`` must not be empty."""
    grants, head = _grants(world, limits)
    if head is None:
        return Run(tuple(grants))
    reclaim = _reclaim(world, head)
    if reclaim is not None:
        return reclaim
    if grants:
        return Run(tuple(grants), head)
    ask = next(ask for ask in world.asks if ask.request == head.request)
    if ask.phase.is_running and ask.num_pages > -(-ask.num_resident // limits.page_size):
        # Forks left holes in its pages: recomputed in fresh pages, its tokens need fewer.
        return Preempt(ask.request, all_views=True)
    if world.num_pinned_pages():
        return Wait(head)
    return Refuse(head.request, _refusal(world, head))


def _grants(world: World, limits: Limits) -> tuple[list[Grant], Blocked | None]:
    """Give out free pages in the order of arrival; return the grants and the head, if any ask is unmet."""
    grants: list[Grant] = []
    head: Blocked | None = None
    free, prefill_left, rows_left = world.free_pages, limits.prefill_chunk, limits.max_rows or limits.max_batch
    num_running = promised = 0
    taken_tails: set[PageId] = set()
    is_restoring = False
    for ask in world.asks:
        if num_running >= limits.max_batch or rows_left == 0:
            break
        is_decode = ask.outstanding == 1
        if ask.waits_for_prefix or (not is_decode and prefill_left == 0):
            num_running += ask.phase.is_running
            promised += -(-ask.outstanding // limits.page_size) if ask.phase.is_running else 0
            continue
        room = 0 if ask.tail in taken_tails else ask.room
        if not ask.phase.is_running:
            need = _admission_pages(ask, room, num_running, limits)
            if head is not None or (ask.phase is Phase.PREEMPTED and is_restoring):
                continue
            # The oldest of all may always start; it then takes what there is, chunk by chunk.
            if num_running and need > free - promised:
                why = "its prompt and a page for each older request do not fit"
                head = Blocked(ask.request, need + promised, free, why, is_admission=True)
                continue
        is_restoring = is_restoring or ask.phase in (Phase.RESTORING, Phase.PREEMPTED)
        want = 1 if is_decode else min(ask.outstanding, prefill_left)
        usable = room if head is not None else room + free * limits.page_size
        count = min(want, usable)
        num_running += 1
        if count == 0:
            if head is None:
                head = Blocked(ask.request, 1, free, "its next token needs a page")
            continue
        fresh = -(-max(0, count - room) // limits.page_size)
        free -= fresh
        promised += -(-(ask.outstanding - count) // limits.page_size)
        rows_left -= 1
        prefill_left -= 0 if is_decode else count
        if room and ask.tail is not None:
            taken_tails.add(ask.tail)
        grants.append(Grant(ask.request, count))
    return grants, head


def _admission_pages(ask: Ask, room: int, num_running: int, limits: Limits) -> int:
    """Return the free pages that admission asks for: the whole prompt, and a page for each running request.

    Without the second part a preempted request would be restored into the page that the next token of
    an older one takes from it again.
    """
    return -(-max(0, ask.outstanding + 1 - room) // limits.page_size) + num_running


def _reclaim(world: World, head: Blocked) -> Answer | None:
    """Return the next rung of the ladder for ``head``, or None if nothing that may be taken would help."""
    deficit = head.need_pages - world.free_pages
    if deficit <= 0:
        return None
    idle = list(world.idle_contexts())
    order = {ask.request: at for at, ask in enumerate(world.asks)}
    younger = [ask for ask in reversed(world.asks[order[head.request] + 1 :]) if ask.num_pages]
    running = [ask for ask in younger if ask.phase.is_running and ask.has_progressed]
    stopped = [ask for ask in younger if not ask.phase.is_running]
    group = [*idle, *(ask.context for ask in (*stopped, *running))]
    available = world.group_pages(group)
    if available == 0 or (head.is_admission and available < deficit):
        return None
    if world.cached_pages() > 0:
        return EvictCached(deficit)
    for context in idle:
        if world.private_pages(context) > 0:
            return EvictIdle(context, all_views=False)
    for ask in running:
        if world.private_pages(ask.context) > 0:
            return Preempt(ask.request, all_views=False)
    # Nobody holds a page alone, but several evictable contexts hold pages together.
    if idle:
        return EvictIdle(idle[0], all_views=True)
    return Preempt((*stopped, *running)[0].request, all_views=True)


def _refusal(world: World, head: Blocked) -> PressureError:
    """Return why ``head`` can never go on: one context that fills the pool, or pages nobody may take."""
    ask = next(ask for ask in world.asks if ask.request == head.request)
    total = world.total_pages
    if ask.num_pages * 2 > total:
        return Hog(head.need_pages, ask.num_pages, total)
    cause = "no other request runs, and no page that is held may be taken"
    return Starved(head.need_pages, world.free_pages, total, cause, f"request {head.request}", world.holders())

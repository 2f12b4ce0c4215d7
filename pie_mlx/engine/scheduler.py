"""The scheduler: a pure function from what waits and what is free to what happens next.

Order is by arrival. The **head** is the oldest request whose ask is unmet; freed pages are kept for it.
The answer is exactly one of

* :class:`Run`: these requests compute these many tokens in the next step;
* :class:`EvictCached`, :class:`EvictIdle`, :class:`Preempt`, :class:`ForgetTail`: take pages back first,
  then ask again (one reclaim in flight: each is carried out before the next question);
* :class:`Refuse`: this request can never go on, and here is the typed error;
* :class:`Wait`: nothing can run until an owner closes or unpins a context.

Why this ends: the oldest request is never a victim of another, and each reclaim drops at least one view, of
which there are finitely many; so the oldest request computes a token or is refused after finitely many
answers, and by induction so does every other. ``docs/scheduling.md`` has the whole argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from pie_mlx.engine.asking import NO_HITS, Ask, Hits, Limits, World
from pie_mlx.engine.job import Phase
from pie_mlx.errors import Hog, PressureError, Starved
from pie_mlx.ids import ContextId, PageId, RequestId


@dataclass(frozen=True, slots=True)
class Grant:
    """``num_tokens`` of this request's outstanding tokens are computed in the next step."""

    request: RequestId
    num_tokens: int
    num_pages: int
    """Free pages set aside for them."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Who is the head, what it lacks, and why."""

    request: RequestId
    need_pages: int
    free_pages: int
    why: str
    is_admission: bool = False
    """Whether it has not started: older requests run, and it may wait for them."""
    spare: tuple[PageId, ...] = ()
    """Pages of its prefix hits: to drop them for it would make it need them anew."""


@dataclass(frozen=True, slots=True)
class Run:
    """The next step."""

    grants: tuple[Grant, ...]
    head: Blocked | None = None


@dataclass(frozen=True, slots=True)
class EvictCached:
    """Drop prefix entries nobody views, least recently used first, until ``num_pages`` are free; not ``spare``."""

    num_pages: int
    spare: tuple[PageId, ...] = ()


@dataclass(frozen=True, slots=True)
class EvictIdle:
    """Take idle contexts' pages: the private ones, or all views where only the group frees anything."""

    contexts: tuple[ContextId, ...]
    all_views: bool


@dataclass(frozen=True, slots=True)
class ForgetTail:
    """Drop the prefix entry of this context's last page, which only keeps it from going on in that page."""

    context: ContextId


@dataclass(frozen=True, slots=True)
class Preempt:
    """Take a younger request's pages; it goes on later by recomputing."""

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


Reclaim = EvictCached | EvictIdle | ForgetTail | Preempt
Answer = Run | Reclaim | Refuse | Wait


def schedule(world: World, limits: Limits) -> Answer:
    """Return what happens next; ``world.asks`` must not be empty."""
    handout = _Handout(world, limits)
    grants, head = handout.grants, handout.head
    if head is None:
        return Run(tuple(grants))
    reclaim = _reclaim(world, head)
    if reclaim is not None:
        return reclaim
    if grants:
        return Run(tuple(grants), head)
    ask = next(ask for ask in world.asks if ask.request == head.request)
    return _last_resort(world, head, ask, limits)


def _last_resort(world: World, head: Blocked, ask: Ask, limits: Limits) -> Answer:
    """Answer where no page can be freed: let the oldest request use what it holds, else wait, else refuse."""
    group, younger = _victims(world, head)
    viewers = world.tail_viewers(ask.context)
    takeable = [context for context in viewers if context in group]
    if takeable and len(takeable) == len(viewers):
        # Its last page has slots left, but others view it too: as the only viewer it may go on in it.
        running = next((other for other in younger if other.context in takeable), None)
        idle = tuple(context for context in takeable if all(context != other.context for other in younger))
        return EvictIdle(idle, all_views=True) if running is None else Preempt(running.request, all_views=True)
    if not viewers and world.is_tail_cached(ask.context):
        return ForgetTail(ask.context)
    if ask.num_pages > -(-ask.num_resident // limits.page_size):
        # Forks left holes in its pages: recomputed in fresh pages, its tokens need fewer.
        return Preempt(ask.request, all_views=True)
    if world.group_pages([*world.pinned_contexts(), *group]) > 0 or viewers:
        return Wait(head)
    return Refuse(head.request, _refusal(world, head, ask))


class _Handout:
    """Gives out free pages in the order of arrival: the grants, and the head if any ask is unmet."""

    def __init__(self, world: World, limits: Limits) -> None:
        """Start with all free pages and nobody granted."""
        self.grants: list[Grant] = []
        self.head: Blocked | None = None
        self._limits = limits
        self._free = world.free_pages
        self._prefill_left = limits.prefill_chunk
        self._rows_left = limits.max_rows or limits.max_batch
        self._num_running = 0
        self._promised = 0
        self._runners_left = world.num_running
        self._taken_tails: set[PageId] = set()
        self._is_restoring = False
        self._world = world
        for ask in world.asks:
            if self._is_over():
                break
            self._consider(ask)

    def _is_over(self) -> bool:
        """Whether no later ask can get anything: the batch is full, or nobody who runs is left behind the head."""
        is_full = self._num_running >= self._limits.max_batch or self._rows_left == 0
        return is_full or (self.head is not None and self._runners_left == 0)

    def _consider(self, ask: Ask) -> None:
        """Grant an ask, pass it over, or make it the head."""
        size, is_running, hits = self._limits.page_size, ask.phase.is_running, NO_HITS
        self._runners_left -= is_running
        if not is_running:
            if not self._is_next(ask):
                return
            hits = self._world.prefix_hits(ask.request)
            ask = ask.behind(hits)
        is_decode = ask.outstanding <= 1
        if ask.waits_for_prefix or (not is_decode and self._prefill_left == 0):
            self._num_running += is_running
            self._promised += ask.fresh_pages(ask.outstanding, size) if is_running else 0
            return
        room = 0 if ask.tail in self._taken_tails else ask.room
        if not is_running and not self._may_start(ask, room, hits):
            return
        self._is_restoring = self._is_restoring or ask.phase in (Phase.RESTORING, Phase.PREEMPTED)
        self._num_running += 1
        want = ask.outstanding if is_decode else min(ask.outstanding, self._prefill_left)
        # Behind the head, free pages are kept for it: only one's own room is left.
        count = min(want, room + (0 if self.head is not None else self._free * size))
        if count == 0 and not hits.pages:
            self.head = self.head or Blocked(ask.request, 1, self._free, "its next token needs a page")
            return
        fresh = -(-max(0, count - room) // size)
        self._free -= fresh
        self._promised += ask.fresh_pages(ask.outstanding - count, size)
        self._rows_left -= count > 0
        self._prefill_left -= 0 if is_decode else count
        if room and ask.tail is not None:
            self._taken_tails.add(ask.tail)
        self.grants.append(Grant(ask.request, count, fresh))

    def _is_next(self, ask: Ask) -> bool:
        """Whether a request that does not run may be looked at: nobody before it is blocked, or being restored."""
        return self.head is None and not (ask.phase is Phase.PREEMPTED and self._is_restoring)

    def _may_start(self, ask: Ask, room: int, hits: Hits) -> bool:
        """Admit a request that does not run: what its prompt still needs must fit, and a page for each running one.

        Without the second part a preempted request would be restored into the page that the next token of an
        older one takes from it again. The oldest of all may always start; it then takes what there is, chunk by
        chunk.
        """
        need = ask.fresh_pages(ask.outstanding + 1 - room, self._limits.page_size) + self._num_running + self._promised
        if self._num_running == 0 or need <= self._free:
            return True
        why = "its prompt and a page for each older request do not fit"
        self.head = Blocked(ask.request, need, self._free, why, is_admission=True, spare=hits.pages)
        return False


def _victims(world: World, head: Blocked) -> tuple[list[ContextId], list[Ask]]:
    """Return whose pages may be taken for ``head``: idle contexts, then younger requests, each in this order.

    Requests that do not run yet lose nothing that is in progress, so they come first, then the running ones,
    youngest first. One that has computed nothing since it was last preempted is left alone, unless an older
    request that runs has nobody else.
    """
    younger = world.younger_holders(head.request)
    stopped = [ask for ask in younger if not ask.phase.is_running]
    running = [ask for ask in younger if ask.phase.is_running and ask.has_progressed]
    if not head.is_admission:
        running += [ask for ask in younger if ask.phase.is_running and not ask.has_progressed]
    idle = list(world.idle_contexts())
    return [*idle, *(ask.context for ask in (*stopped, *running))], [*stopped, *running]


def _reclaim(world: World, head: Blocked) -> Answer | None:
    """Return the next rung of the ladder for ``head``, or None if nothing that may be taken would help."""
    deficit = head.need_pages - world.free_pages
    if deficit <= 0:
        return None
    group, younger = _victims(world, head)
    idle = group[: len(group) - len(younger)]
    spare = head.spare
    cached = gain = world.cached_pages(spare)
    chosen: list[ContextId] = []
    for context in idle:
        if gain >= deficit:
            break
        private = world.private_pages(context, spare)
        if private:
            chosen.append(context)
            gain += private
    if head.is_admission and gain < deficit and world.group_pages(group, spare) < deficit:
        return None
    if cached:
        return EvictCached(deficit, spare)
    if chosen:
        return EvictIdle(tuple(chosen), all_views=False)
    for ask in younger:
        if world.private_pages(ask.context, spare):
            return Preempt(ask.request, all_views=False)
    if world.group_pages(group, spare) == 0:
        return None
    # Nobody holds a page alone, but several contexts that may be evicted hold pages together.
    if idle:
        return EvictIdle(_smallest_group(world, idle, spare), all_views=True)
    return Preempt(younger[0].request, all_views=True)


def _smallest_group(world: World, idle: list[ContextId], spare: tuple[PageId, ...]) -> tuple[ContextId, ...]:
    """Return the first 1, 2, 4 … of ``idle`` that free a page together; all of them if younger requests must help."""
    size = 1
    while size < len(idle) and world.group_pages(idle[:size], spare) == 0:
        size *= 2
    return tuple(idle[:size])


def _refusal(world: World, head: Blocked, ask: Ask) -> PressureError:
    """Return why ``head`` can never go on: one context that fills the pool, or pages nobody may take."""
    total = world.total_pages
    if ask.num_pages * 2 > total:
        return Hog(head.need_pages, ask.num_pages, total)
    cause = "no other request runs, and no page that is held may be taken"
    return Starved(head.need_pages, world.free_pages, total, cause, f"request {head.request}", world.holders())

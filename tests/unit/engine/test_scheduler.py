"""The scheduler as what it is: a pure function of a small, plain world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from pie_mlx.engine.asking import NO_HITS, Ask, Hits, Limits
from pie_mlx.engine.job import Phase
from pie_mlx.engine.scheduler import (
    EvictCached,
    EvictIdle,
    ForgetTail,
    Grant,
    Preempt,
    Refuse,
    Run,
    Wait,
    schedule,
)
from pie_mlx.errors import Hog, Holder, Starved
from pie_mlx.ids import ContextId, PageId, RequestId

SIZE = 16
LIMITS = Limits(page_size=SIZE, max_batch=8, prefill_chunk=64)


@dataclass
class World:
    """A pool as plain data: who views which pages, and what is asked; it answers by counting sets."""

    total_pages: int
    asks: Sequence[Ask] = ()
    pages: dict[int, set[int]] = field(default_factory=dict)
    """Pages by context."""
    cache: set[int] = field(default_factory=set)
    pinned: set[int] = field(default_factory=set)
    idle: Sequence[int] = ()
    """Unpinned contexts without a request, least recently used first."""
    tails: dict[int, int] = field(default_factory=dict)
    """Last pages that are not shown in full, by context."""
    hits: dict[int, Hits] = field(default_factory=dict)
    """What the cache holds of a request's prompt, by request."""

    @property
    def num_running(self) -> int:
        """Count the requests that run."""
        return sum(ask.phase.is_running for ask in self.asks)

    @property
    def free_pages(self) -> int:
        """Count the pages that nobody views."""
        return self.total_pages - len(set().union(self.cache, *self.pages.values()))

    def prefix_hits(self, request: RequestId) -> Hits:
        """Tell what was laid down."""
        return self.hits.get(request, NO_HITS)

    def cached_pages(self, spare: Sequence[PageId] = ()) -> int:
        """Count the pages that only the cache views."""
        return len(self.cache - set(spare) - set().union(*self.pages.values()))

    def private_pages(self, context: ContextId, spare: Sequence[PageId] = ()) -> int:
        """Count the pages that no other context views, nor the cache for good."""
        others = set().union(*(p for c, p in self.pages.items() if c != context))
        return len(self.pages.get(context, set()) - others - set(spare))

    def younger_holders(self, request: RequestId) -> Sequence[Ask]:
        """List younger requests with pages, youngest first."""
        return [ask for ask in reversed(self.asks) if ask.request > request and self.pages.get(ask.context)]

    def idle_contexts(self) -> Sequence[ContextId]:
        """List the idle contexts that have pages."""
        return [ContextId(context) for context in self.idle if self.pages.get(context)]

    def pinned_contexts(self) -> Sequence[ContextId]:
        """List the pinned contexts."""
        return [ContextId(context) for context in self.pinned]

    def group_pages(self, contexts: Sequence[ContextId], spare: Sequence[PageId] = ()) -> int:
        """Count the pages that only these contexts and the cache view."""
        members = set(contexts)
        kept: set[int] = set().union(*(p for c, p in self.pages.items() if c not in members))
        return len(set().union(self.cache, *(self.pages.get(c, set()) for c in members)) - kept - set(spare))

    def tail_viewers(self, context: ContextId) -> Sequence[ContextId]:
        """List who else views the context's unfinished page."""
        page = self.tails.get(context)
        return [ContextId(c) for c, pages in self.pages.items() if c != context and page in pages]

    def is_tail_cached(self, context: ContextId) -> bool:
        """Tell whether the cache views the context's unfinished page."""
        return self.tails.get(context) in self.cache

    def holders(self) -> tuple[Holder, ...]:
        """Name who holds pages."""
        return tuple(Holder(f"context {c}", len(p), 0, 0.0) for c, p in self.pages.items())


def ask(request: int, phase: Phase = Phase.DECODING, *, outstanding: int = 1, pages: int = 1, room: int = 0) -> Ask:
    """Describe a request on the context of the same number; its tail page has the number too."""
    tail = PageId(request) if room else None
    resident = pages * SIZE - room
    return Ask(RequestId(request), ContextId(request), phase, outstanding, pages, resident, room, tail)


def waiting(request: int, outstanding: int) -> Ask:
    """Describe a request that has not begun."""
    return ask(request, Phase.WAITING, outstanding=outstanding, pages=0)


def granted(answer: object) -> dict[int, int]:
    """Return tokens by request of a step."""
    assert isinstance(answer, Run)
    return {grant.request: grant.num_tokens for grant in answer.grants}


def test_decodes_and_one_prefill_chunk_share_a_step() -> None:
    """Decode rows always run; prefill gets the chunk budget, in the order of arrival."""
    asks = [ask(1, room=3), ask(2, room=1), waiting(3, 50), waiting(4, 50), waiting(5, 50)]
    world = World(64, asks, {1: {1}, 2: {2}})
    assert granted(schedule(world, LIMITS)) == {1: 1, 2: 1, 3: 50, 4: 14}


def test_grants_never_exceed_the_free_pages() -> None:
    """The pages set aside for all grants together are free."""
    asks = [ask(at) for at in range(1, 9)]
    world = World(13, asks, {at: {at} for at in range(1, 9)})
    answer = schedule(world, LIMITS)
    assert isinstance(answer, Run)
    assert sum(grant.num_pages for grant in answer.grants) == world.free_pages == 5
    assert granted(answer) == dict.fromkeys(range(1, 6), 1), "the oldest five"
    assert answer.head is not None
    assert answer.head.request == 6
    assert len(granted(schedule(replace(world, total_pages=16), LIMITS))) == 8


def test_free_pages_are_kept_for_the_head() -> None:
    """A younger request that would fit does not start behind one that does not; one with room of its own goes on."""
    asks = [ask(1, room=5), waiting(2, 100), waiting(3, 10), ask(4, room=2)]
    world = World(8, asks, {1: {1, 11, 12}, 4: {4}})
    answer = schedule(world, LIMITS)
    assert granted(answer) == {1: 1, 4: 1}
    assert isinstance(answer, Run)
    assert answer.head is not None
    assert answer.head.request == 2
    assert answer.head.need_pages == 8, "seven for the prompt and its next token, one for the older request"


def test_admission_counts_a_page_for_each_running_request() -> None:
    """Two running requests keep a page each: a prompt of two pages does not start with three free ones."""
    asks = [ask(1, room=5), ask(2, room=5), waiting(3, 20)]
    world = World(5, asks, {1: {1}, 2: {2}})
    assert granted(schedule(world, LIMITS)) == {1: 1, 2: 1}
    assert granted(schedule(replace(world, total_pages=6), LIMITS)) == {1: 1, 2: 1, 3: 20}


def test_the_oldest_starts_with_what_there_is() -> None:
    """A prompt that does not fit yet takes what is free, chunk by chunk, if nobody is before it."""
    world = World(2, [waiting(1, 100)])
    assert granted(schedule(world, LIMITS)) == {1: 2 * SIZE}


def test_siblings_do_not_share_one_tail() -> None:
    """Two requests may both go on in one shared page, but only one of them in one step."""
    first, second = ask(1, room=4), replace(ask(2, room=4), tail=PageId(1))
    world = World(3, [first, second], {1: {1}, 2: {1}})
    answer = schedule(world, LIMITS)
    assert isinstance(answer, Run)
    assert answer.grants == (Grant(RequestId(1), 1, 0), Grant(RequestId(2), 1, 1))


def test_ladder_takes_cache_then_idle_then_waiting_then_youngest() -> None:
    """Each rung is used before the next, and each answer takes one."""
    asks = [ask(1), ask(2), ask(3), ask(4, Phase.WAITING, outstanding=5)]
    world = World(6, asks, {1: {1}, 2: {2}, 3: {3}, 4: {4}, 9: {9}}, cache={10}, idle=[9])
    assert schedule(world, LIMITS) == EvictCached(1)
    world.cache = set()
    world.total_pages = 5
    assert schedule(world, LIMITS) == EvictIdle((ContextId(9),), all_views=False)
    world.pages.pop(9)
    world.total_pages = 4
    assert schedule(world, LIMITS) == Preempt(RequestId(4), all_views=False)
    world.pages.pop(4)
    world.total_pages = 3
    assert schedule(world, LIMITS) == Preempt(RequestId(3), all_views=False)


def test_idle_contexts_go_least_recently_used_first() -> None:
    """Just enough idle contexts are evicted, in their order; one that only shares is passed over."""
    pages = {1: {1}, 7: {7, 8}, 8: {8, 7}, 9: {9}, 6: {6}}
    world = World(5, [ask(1)], pages, idle=[7, 8, 9, 6])
    assert schedule(world, LIMITS) == EvictIdle((ContextId(9),), all_views=False)


def test_shared_pages_are_not_reclaimable() -> None:
    """A younger request that only shares pages with an older one is no victim: taking its views frees nothing."""
    asks = [ask(1), ask(2, pages=2), ask(3, pages=2)]
    world = World(4, asks, {1: {1, 5}, 2: {1, 2, 5}, 3: {3, 1}})
    assert schedule(world, LIMITS) == Preempt(RequestId(3), all_views=False)
    world.pages[3] = {1}
    world.total_pages = 3
    assert schedule(world, LIMITS) == Preempt(RequestId(2), all_views=False)


def test_idle_contexts_that_share_only_with_each_other_go_as_a_group() -> None:
    """Where nobody holds a page alone, the smallest group that frees one is evicted with all its views."""
    world = World(2, [ask(1)], {1: {1}, 7: {2}, 8: {2}, 9: {2}}, idle=[7, 8, 9])
    assert schedule(world, LIMITS) == EvictIdle((ContextId(7), ContextId(8), ContextId(9)), all_views=True)


def test_no_victim_twice_without_progress() -> None:
    """Who has computed nothing since it was preempted is left alone for an admission, and last in line otherwise."""
    fresh = replace(ask(3), has_progressed=False)
    world = World(3, [ask(1), ask(2), fresh], {1: {1}, 2: {2}, 3: {3}})
    assert schedule(world, LIMITS) == Preempt(RequestId(2), all_views=False)
    older = ask(2, Phase.PREEMPTED, outstanding=20, pages=0)
    world = World(4, [ask(1, room=3), older, fresh], {1: {1}, 3: {3, 4, 5}})
    assert granted(schedule(world, LIMITS)) == {1: 1}
    world.asks = [ask(1, room=3), older, replace(fresh, has_progressed=True)]
    assert schedule(world, LIMITS) == Preempt(RequestId(3), all_views=False)


def test_nothing_is_taken_for_an_admission_that_would_still_not_fit() -> None:
    """If everything that may be taken is too little, the head waits and its elders go on."""
    asks = [ask(1, room=4, pages=6), waiting(2, 100)]
    world = World(10, asks, {1: {1, 2, 3, 4, 5, 6}, 9: {9}}, idle=[9])
    assert granted(schedule(world, LIMITS)) == {1: 1}


def test_the_oldest_is_never_a_victim() -> None:
    """However old the head, only younger requests lose pages."""
    asks = [ask(1), ask(2, room=3)]
    world = World(2, asks, {1: {1}, 2: {2}})
    assert schedule(world, LIMITS) == Preempt(RequestId(2), all_views=False)
    asks = [ask(1, room=3), ask(2)]
    answer = schedule(World(2, asks, {1: {1}, 2: {2}}), LIMITS)
    assert granted(answer) == {1: 1}
    assert isinstance(answer, Run)
    assert answer.head is not None
    assert answer.head.request == 2


def test_fragmented_head_is_recomputed_before_it_is_refused() -> None:
    """The only request has more pages than its tokens need: preempting it closes the holes."""
    holey = replace(ask(1, pages=4), num_resident=40)
    assert schedule(World(4, [holey], {1: {1, 2, 3, 4}}), LIMITS) == Preempt(RequestId(1), all_views=True)
    before_it_began = replace(holey, phase=Phase.WAITING, outstanding=3)
    assert schedule(World(4, [before_it_began], {1: {1, 2, 3, 4}}), LIMITS) == Preempt(RequestId(1), all_views=True)


def test_tail_that_others_view_too_is_made_its_own() -> None:
    """Slots of the head's own last page count: idle viewers, younger ones and the cache give their views up."""
    head = replace(ask(1, pages=2), num_resident=20)
    world = World(2, [head], {1: {1, 2}, 9: {1, 2}}, idle=[9], tails={1: 2})
    assert schedule(world, LIMITS) == EvictIdle((ContextId(9),), all_views=True)
    younger = replace(ask(3, pages=2), num_resident=20)
    world = World(2, [head, younger], {1: {1, 2}, 3: {1, 2}}, tails={1: 2})
    assert schedule(world, LIMITS) == Preempt(RequestId(3), all_views=True)
    world = World(2, [head], {1: {1, 2}}, cache={2}, tails={1: 2})
    assert schedule(world, LIMITS) == ForgetTail(ContextId(1))


def test_hog_is_refused_at_once() -> None:
    """A request that holds the pool and wants more can never go on."""
    answer = schedule(World(2, [ask(1, pages=2)], {1: {1, 2}}), LIMITS)
    assert isinstance(answer, Refuse)
    assert isinstance(answer.error, Hog)
    assert (answer.error.held_pages, answer.error.total_pages) == (2, 2)


def test_pages_nobody_may_take_are_starvation_with_a_name() -> None:
    """Pages that nobody may take and nobody can unpin: the error says who holds them."""
    answer = schedule(World(3, [ask(1)], {1: {1}, 9: {8, 9}}), LIMITS)
    assert isinstance(answer, Refuse)
    assert isinstance(answer.error, Starved)
    assert "context 9" in {holder.name for holder in answer.error.holders}


def test_pinned_pages_are_waited_for() -> None:
    """Where an owner could unpin, the head waits instead of failing."""
    answer = schedule(World(3, [ask(1)], {1: {1}, 9: {8, 9}}, pinned={9}), LIMITS)
    assert isinstance(answer, Wait)
    assert answer.head.request == 1


def test_one_row_at_a_time_where_the_model_cannot_batch() -> None:
    """Only the oldest gets the one row."""
    limits = replace(LIMITS, max_rows=1)
    world = World(9, [ask(1, room=2), ask(2, room=2), waiting(3, 5)], {1: {1}, 2: {2}})
    assert granted(schedule(world, limits)) == {1: 1}


def test_batch_is_never_wider_than_its_limit() -> None:
    """Eight run at most, the oldest ones."""
    world = World(99, [ask(at, room=2) for at in range(1, 20)], {at: {at} for at in range(1, 20)})
    assert list(granted(schedule(world, LIMITS))) == list(range(1, 9))


def test_one_restore_at_a_time() -> None:
    """A second preempted request waits until the first is restored."""
    asks = [ask(1, room=1), *(ask(at, Phase.PREEMPTED, outstanding=30, pages=0) for at in (2, 3))]
    assert granted(schedule(World(50, asks, {1: {1}}), LIMITS)) == {1: 1, 2: 30}


def test_who_waits_for_a_prefix_is_passed_over() -> None:
    """A request whose prefix is being computed does not compute it again, and does not block others."""
    asks = [waiting(1, 64), replace(waiting(2, 60), waits_for_prefix=True), ask(3, room=1)]
    assert granted(schedule(World(50, asks, {3: {3}}), LIMITS)) == {1: 64, 3: 1}


@pytest.mark.parametrize("outstanding", [1, 15, 16, 17, 64, 65])
def test_chunks_end_at_the_budget(outstanding: int) -> None:
    """A prefill takes what is outstanding, up to the chunk."""
    assert granted(schedule(World(50, [waiting(1, outstanding)]), LIMITS)) == {1: min(outstanding, 64)}


def test_a_prompt_that_the_cache_holds_needs_less() -> None:
    """What others view already is not asked for again: a request that fits thanks to it starts at once."""
    world = World(10, [ask(1, pages=3), waiting(2, 5 * SIZE)], pages={1: {1, 2, 3}}, cache={4, 5, 6, 7})
    blocked = schedule(world, LIMITS)
    assert isinstance(blocked, EvictCached), "without the hits it would need six pages of three"
    world.hits[2] = Hits((PageId(4), PageId(5), PageId(6), PageId(7)), 4 * SIZE)
    answer = schedule(replace(world, asks=[ask(1, pages=3, room=4), waiting(2, 5 * SIZE)]), LIMITS)
    assert granted(answer) == {1: 1, 2: SIZE}


def test_own_hits_are_not_dropped_for_the_one_who_needs_them() -> None:
    """Dropping a page that the head would view frees nothing for it; somebody else's cached page does."""
    asks = [ask(1, pages=3, room=4), waiting(2, 7 * SIZE)]
    hits = {2: Hits((PageId(4), PageId(5), PageId(6), PageId(7)), 4 * SIZE)}
    world = World(10, asks, pages={1: {1, 2, 3}}, cache={4, 5, 6, 7}, hits=hits)
    answer = schedule(world, LIMITS)
    assert granted(answer) == {1: 1}
    assert isinstance(answer, Run)
    assert answer.head is not None
    assert (answer.head.need_pages, answer.head.free_pages, answer.head.is_admission) == (5, 3, True)
    world = replace(world, total_pages=12, cache={4, 5, 6, 7, 8, 9})
    assert schedule(world, LIMITS) == EvictCached(2, (PageId(4), PageId(5), PageId(6), PageId(7)))


def test_an_idle_context_that_only_views_the_hits_is_left_alone() -> None:
    """Its pages would stay for the head all the same: evicting it frees nothing."""
    asks = [ask(1, pages=3, room=4), waiting(2, 7 * SIZE)]
    hits = {2: Hits((PageId(4), PageId(5), PageId(6), PageId(7)), 4 * SIZE)}
    pages = {1: {1, 2, 3}, 9: {4, 5, 6, 7}}
    world = World(10, asks, pages=pages, cache={4, 5, 6, 7}, idle=[9], hits=hits)
    assert granted(schedule(world, LIMITS)) == {1: 1}
    world = replace(world, total_pages=12, pages={**pages, 8: {8, 9}}, idle=[9, 8])
    assert schedule(world, LIMITS) == EvictIdle((ContextId(8),), all_views=False)


def test_the_oldest_starts_on_its_hits_though_no_page_is_free() -> None:
    """It views them from then on, so that nothing that follows can take them from it."""
    hits = {1: Hits((PageId(1), PageId(2)), 2 * SIZE)}
    world = World(4, [waiting(1, 3 * SIZE)], pages={9: {3, 4}}, cache={1, 2}, idle=[9], hits=hits)
    assert schedule(world, LIMITS) == Run((Grant(RequestId(1), 0, 0),))


def test_a_prompt_that_is_all_there_needs_no_page() -> None:
    """A prefill whose pages the cache holds starts, and is done, in a full pool."""
    hits = {2: Hits((PageId(2), PageId(3)), 2 * SIZE)}
    world = World(4, [ask(1, room=5), waiting(2, 2 * SIZE)], pages={1: {1, 4}}, cache={2, 3}, hits=hits)
    answer = schedule(world, LIMITS)
    assert isinstance(answer, Run)
    assert answer.head is not None, "a page for the older request is missing"
    answer = schedule(replace(world, total_pages=6), LIMITS)
    assert isinstance(answer, Run)
    assert answer.grants == (Grant(RequestId(1), 1, 0), Grant(RequestId(2), 0, 0))

"""A page table: the ordered page views through which one context sees its tokens' slots.

Forking copies views, never slots. The rules that make this safe:

* A view ``(page, n)`` shows the first ``n`` slots of its page; a page occurs once in a table.
* **Append rule**: a table may go on in its last page iff its view shows all written slots. Whoever
  appends first takes the tail; every other viewer starts a page of its own.
* A sole viewer whose view is shorter than what is written first takes the dead tail back.
* A slot that any view shows is never written again.
* Leading pages may be **let go** once nobody looks at them again (:meth:`PageTable.let_go`): the table
  keeps their place in the sequence, but no view of them; their tokens' slots are then those of the trash page.

Writing is two-phased, because the device works between them: :meth:`PageTable.reserve` hands out slots,
:meth:`PageTable.commit` shows them, :meth:`PageTable.rollback` gives them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pie_mlx.ids import PageId
from pie_mlx.kv.pool import PagePool

Slots = npt.NDArray[np.int32]
"""Places in the arena, one per token, in the order of the sequence."""

_TRASH = PageId(0)
"""Stands in a table for a page that was let go."""


@dataclass(slots=True)
class Reservation:
    """Slots handed out for a step that is in flight: ``(page, first, count)`` runs, fresh pages marked."""

    runs: list[tuple[PageId, int, int]]
    fresh: list[PageId]
    slots: Slots


class PageTable:
    """The views of one context over ``pool``, and the slots of its resident tokens."""

    def __init__(self, pool: PagePool) -> None:
        """Make an empty table."""
        self._pool = pool
        self._pages: list[PageId] = []
        self._shown: list[int] = []
        self._num_full = 0
        self._first = 0
        """How many leading pages were let go."""
        self._num_let_go = 0
        self._slots: Slots = np.zeros(pool.page_size, dtype=np.int32)
        self._num_slots = 0
        self._reservation: Reservation | None = None

    @property
    def page_size(self) -> int:
        """Slots a page."""
        return self._pool.page_size

    @property
    def num_slots(self) -> int:
        """Tokens that were computed: those whose K/V this table shows, and those before them that it let go."""
        return self._num_slots

    @property
    def num_let_go(self) -> int:
        """Leading tokens whose K/V was let go."""
        return self._num_let_go

    @property
    def num_pages_let_go(self) -> int:
        """Leading pages that were let go."""
        return self._first

    @property
    def num_shown(self) -> int:
        """Tokens whose K/V this table shows."""
        return self._num_slots - self._num_let_go

    @property
    def num_pages(self) -> int:
        """Pages that this table views, those of a step in flight included."""
        return len(self._pages) - self._first + (len(self._reservation.fresh) if self._reservation else 0)

    @property
    def pages(self) -> tuple[PageId, ...]:
        """The viewed pages in the order of the sequence."""
        return tuple(self._viewed)

    @property
    def _viewed(self) -> list[PageId]:
        """The viewed pages."""
        return self._pages[self._first :] if self._first else self._pages

    @property
    def is_reserved(self) -> bool:
        """Whether a step in flight holds slots for this table."""
        return self._reservation is not None

    @property
    def slots(self) -> Slots:
        """The slots of the computed tokens, shape ``[num_slots]``, 0 where let go; read-only by contract."""
        return self._slots[: self._num_slots]

    def views(self) -> Iterator[tuple[PageId, int]]:
        """Yield every (page, shown slots), the pages of a step in flight with 0."""
        yield from zip(self._viewed, self._shown[self._first :], strict=True)
        if self._reservation:
            yield from ((page, 0) for page in self._reservation.fresh)

    @property
    def last_page(self) -> PageId | None:
        """The last viewed page; None if there is none."""
        return self._pages[-1] if self._first < len(self._pages) else None

    def room(self) -> int:
        """Return how many slots could be reserved without a fresh page."""
        if self.last_page is None or self._reservation is not None:
            return 0
        page, shown = self._pages[-1], self._shown[-1]
        if shown == self._pool.used(page) or self._pool.refs(page) == 1:
            return self._pool.page_size - shown
        return 0

    def partial_page(self) -> PageId | None:
        """Return the last page if it is not shown in full, whoever else views it; else None."""
        return self.last_page if self._pages and self._shown[-1] < self._pool.page_size else None

    def pages_needed(self, num_tokens: int) -> int:
        """Return how many fresh pages the next ``num_tokens`` tokens take."""
        return self._pool.pages_for(max(0, num_tokens - self.room()))

    def reserve(self, num_tokens: int) -> Slots:
        """Hand out slots for the next ``num_tokens`` tokens; one reservation at a time.

        Raises:
            OutOfPages: the pool has not enough free pages; nothing was taken.
        """
        assert num_tokens > 0, "a reservation is for at least one token"
        assert self._reservation is None, "one step at a time"
        pool, left = self._pool, num_tokens
        room = min(self.room(), left)
        fresh = pool.allocate(pool.pages_for(left - room), near=self.last_page)
        runs: list[tuple[PageId, int, int]] = []
        if room:
            page = self._pages[-1]
            pool.unwrite(page, self._shown[-1])
            runs.append((page, pool.write(page, room), room))
            left -= room
        for page in fresh:
            count = min(left, pool.page_size)
            runs.append((page, pool.write(page, count), count))
            left -= count
        slots = np.concatenate(
            [
                np.arange(page * pool.page_size + at, page * pool.page_size + at + n, dtype=np.int32)
                for page, at, n in runs
            ]
        )
        self._reservation = Reservation(runs, fresh, slots)
        return slots

    def next_slot(self, spoken_for: set[PageId]) -> int | None:
        """Guess the slot behind those in flight; a fresh page joins ``spoken_for``. None: no page is free."""
        assert self._reservation is not None, "a step is in flight"
        page, first, count = self._reservation.runs[-1]
        if first + count < self._pool.page_size:
            return page * self._pool.page_size + first + count
        fresh = self._pool.next_free(page, spoken_for)
        if fresh is None:
            return None
        spoken_for.add(fresh)
        return fresh * self._pool.page_size

    def commit(self, num_tokens: int) -> None:
        """Show the first ``num_tokens`` reserved slots; give the others back."""
        reservation = self._reservation
        assert reservation is not None, "commit follows reserve"
        assert 0 <= num_tokens <= len(reservation.slots), "no more than was reserved"
        self._reservation = None
        self._grow(reservation.slots[:num_tokens])
        left = num_tokens
        fresh = set(reservation.fresh)
        dropped: list[PageId] = []
        for page, first, count in reservation.runs:
            shown = min(left, count)
            left -= shown
            if page not in fresh:
                self._shown[-1] += shown
                self._pool.unwrite(page, first + shown)
            elif shown:
                self._pages.append(page)
                self._shown.append(shown)
                self._pool.unwrite(page, shown)
            else:
                dropped.append(page)
        self._count_full()
        self._pool.release(dropped)

    def rollback(self) -> None:
        """Give all reserved slots back: the step failed."""
        self.commit(0)

    def fork(self) -> PageTable:
        """Return a table with the same views; costs no slot. A step in flight is not forked."""
        child = PageTable(self._pool)
        child._pages = self._pages.copy()
        child._shown = self._shown.copy()
        child._num_full = self._num_full
        child._first, child._num_let_go = self._first, self._num_let_go
        child._slots = self._slots[: self._num_slots].copy()
        child._num_slots = self._num_slots
        self._pool.acquire(child._viewed)
        return child

    def let_go(self, num_tokens: int) -> int:
        """Drop the views of leading pages that show only some of the first ``num_tokens``; return how many got free."""
        assert self._reservation is None, "a step is in flight"
        first, let_go = self._first, self._num_let_go
        while first < len(self._pages) and let_go + self._shown[first] <= num_tokens:
            let_go += self._shown[first]
            first += 1
        dropped = self._pages[self._first : first]
        if not dropped:
            return 0
        self._slots[self._num_let_go : let_go] = 0
        self._pages[self._first : first] = [_TRASH] * len(dropped)
        self._first, self._num_let_go = first, let_go
        return self._pool.release(dropped)

    def adopt(self, pages: list[PageId]) -> None:
        """View ``pages`` (all full, all held by somebody) behind what is shown, which must end with a page."""
        size = self._pool.page_size
        assert self._reservation is None, "a step is in flight"
        assert self._num_slots == len(self._pages) * size, "a prefix goes on at a page's end"
        self._pool.acquire(pages)
        self._pages += pages
        self._shown += [size] * len(pages)
        self._count_full()
        slots: Slots = np.add.outer(np.asarray(pages, dtype=np.int32) * size, np.arange(size, dtype=np.int32))
        self._grow(slots.reshape(-1))

    def truncate(self, num_tokens: int) -> int:
        """Show only the first ``num_tokens`` tokens; return how many pages became free."""
        assert self._reservation is None, "a step is in flight"
        assert 0 <= num_tokens <= self._num_slots, "a table cannot be truncated to more than it shows"
        assert num_tokens == 0 or num_tokens >= self._num_let_go, "what was let go cannot be shown again"
        excess = self._num_slots - num_tokens
        dropped: list[PageId] = []
        while excess:
            if self._shown[-1] <= excess:
                excess -= self._shown.pop()
                dropped.append(self._pages.pop())
            else:
                self._shown[-1] -= excess
                excess = 0
        self._num_slots = num_tokens
        if num_tokens == 0:
            dropped = [page for page in dropped if page != _TRASH]
            self._first = self._num_let_go = 0
        self._count_full()
        return self._pool.release(dropped)

    def num_own(self, cache_views: npt.NDArray[np.int32]) -> int:
        """Return how many pages no other table views; ``cache_views`` are the prefix index's views by page."""
        pending = len(self._reservation.fresh) if self._reservation else 0
        viewed = self._viewed
        if not viewed:
            return pending
        return pending + int(np.count_nonzero(self._pool.refs_of(viewed) - cache_views[viewed] == 1))

    def num_tokens_before_own(self, cache_views: npt.NDArray[np.int32]) -> int:
        """Return how many leading tokens lie in pages that other tables view too, or were let go."""
        viewed = self._viewed
        if not viewed:
            return self._num_let_go
        private = np.flatnonzero(self._pool.refs_of(viewed) - cache_views[viewed] == 1)
        first = self._first + int(private[0]) if private.size else len(self._pages)
        return sum(self._shown[:first])

    def full_pages(self) -> int:
        """Return how many leading pages are, or were until they were let go, shown in full."""
        return self._num_full

    def _count_full(self) -> None:
        """Bring the count of full leading pages up to date; only pages behind it, or the last, have changed."""
        shown, size = self._shown, self._pool.page_size
        full = min(self._num_full, len(shown))
        if full and shown[full - 1] != size:
            full -= 1
        while full < len(shown) and shown[full] == size:
            full += 1
        self._num_full = full

    def clear(self) -> int:
        """Drop all views, those of a step in flight too; return how many pages became free."""
        freed = 0
        if self._reservation is not None:
            reservation, self._reservation = self._reservation, None
            for page, first, _count in reservation.runs:
                if page not in reservation.fresh:
                    self._pool.unwrite(page, first)
            freed += self._pool.release(reservation.fresh)
        freed += self._pool.release(self._viewed)
        self._pages, self._shown, self._num_slots, self._num_full = [], [], 0, 0
        self._first = self._num_let_go = 0
        return freed

    def _grow(self, slots: Slots) -> None:
        """Append ``slots`` to the shown ones; the buffer doubles, so that a token costs O(1)."""
        need = self._num_slots + len(slots)
        if need > len(self._slots):
            grown = np.zeros(max(need, 2 * len(self._slots)), dtype=np.int32)
            grown[: self._num_slots] = self._slots[: self._num_slots]
            self._slots = grown
        self._slots[self._num_slots : need] = slots
        self._num_slots = need

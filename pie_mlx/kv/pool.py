"""The pool: which pages are free, how many views each has, how many of its slots are written.

Invariants (asserted by :meth:`PagePool.check`):

* ``num_free + num_held == num_pages``; a page is held iff ``refs > 0``.
* ``refs(page)`` is the number of views of it (page tables, reservations, prefix entries).
* slots ``0 .. used-1`` of a held page are written; no view shows a slot beyond ``used``.

The pool knows nothing of contexts. It is not locked: the engine holds its lock around every call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pie_mlx.errors import InvalidParameter, OutOfPages
from pie_mlx.ids import PageId

PAGE_SIZES = (8, 16, 32, 64)
"""Slots per page that are allowed: smaller wastes bookkeeping, larger wastes tails of forks."""


class PagePool:
    """Free pages, reference counts and written slots of ``num_pages`` pages (ids 1..num_pages)."""

    def __init__(self, num_pages: int, page_size: int = 16) -> None:
        """Make a pool in which every page is free.

        Raises:
            InvalidParameter: ``num_pages`` is below 1 or ``page_size`` is not allowed.
        """
        if num_pages < 1:
            raise InvalidParameter("pool pages", num_pages, "at least 1")
        if page_size not in PAGE_SIZES:
            raise InvalidParameter("page size", page_size, f"one of {', '.join(map(str, PAGE_SIZES))}")
        self.num_pages = num_pages
        self.page_size = page_size
        # One byte a page: 1 is free. `find` walks it at memory speed, so the lowest free page costs no heap.
        self._free_map = bytearray(b"\x00" + b"\x01" * num_pages)
        self._free_flags = np.frombuffer(self._free_map, dtype=np.uint8)
        self._num_free = num_pages
        self._refs: npt.NDArray[np.int32] = np.zeros(num_pages + 1, dtype=np.int32)
        self._used: npt.NDArray[np.int32] = np.zeros(num_pages + 1, dtype=np.int32)
        self.num_freed_ever = 0

    @property
    def num_free(self) -> int:
        """Pages that nobody views."""
        return self._num_free

    @property
    def num_held(self) -> int:
        """Pages that somebody views."""
        return self.num_pages - self._num_free

    @property
    def num_shared(self) -> int:
        """Held pages with more than one view."""
        return int(np.count_nonzero(self._refs > 1))

    @property
    def num_views(self) -> int:
        """Views over all pages: what would be held if nothing were shared."""
        return int(self._refs.sum())

    @property
    def num_slots(self) -> int:
        """Slots of the arena, the trash page included."""
        return (self.num_pages + 1) * self.page_size

    def refs(self, page: PageId) -> int:
        """Return the number of views of ``page``."""
        return int(self._refs[page])

    def used(self, page: PageId) -> int:
        """Return how many slots of ``page`` are written, counted from slot 0."""
        return int(self._used[page])

    def pages_for(self, num_slots: int) -> int:
        """Return how many fresh pages ``num_slots`` slots fill."""
        return -(-num_slots // self.page_size)

    def refs_of(self, pages: Sequence[PageId]) -> npt.NDArray[np.int32]:
        """Return the reference counts of ``pages`` in their order."""
        return self._refs[pages] if pages else np.zeros(0, dtype=np.int32)

    def is_viewed_once(self) -> npt.NDArray[np.bool_]:
        """Return for every page whether it has exactly one view; index 0 is the trash page."""
        once: npt.NDArray[np.bool_] = self._refs == 1
        return once

    def refs_by_page(self) -> npt.NDArray[np.int32]:
        """Return a copy of all reference counts; index 0 is the trash page."""
        return self._refs.copy()

    def used_by_page(self) -> npt.NDArray[np.int32]:
        """Return a copy of all written-slot counts; index 0 is the trash page."""
        return self._used.copy()

    def allocate(self, count: int, *, near: PageId | None = None) -> list[PageId]:
        """Take ``count`` free pages, each with one view and no written slot.

        Pages come lowest first, starting behind ``near`` so that a tree's pages stay close together.

        Raises:
            OutOfPages: fewer than ``count`` pages are free; nothing was taken.
        """
        if count > self._num_free:
            raise OutOfPages(count, self._num_free, self.num_pages)
        taken: list[PageId] = []
        at = 1 if near is None else int(near)
        for _ in range(count):
            page = self._free_map.find(1, at)
            if page < 0:
                page = self._free_map.find(1, 1)
            self._free_map[page] = 0
            self._refs[page] = 1
            self._used[page] = 0
            taken.append(PageId(page))
            at = page
        self._num_free -= count
        return taken

    def next_free(self, near: PageId, spoken_for: set[PageId]) -> PageId | None:
        """Return the page that :meth:`allocate` would take next if ``spoken_for`` were taken; None if there is none."""
        for at in (int(near), 1):
            page = self._free_map.find(1, at)
            while page in spoken_for:
                page = self._free_map.find(1, page + 1)
            if page >= 0:
                return PageId(page)
        return None

    def acquire(self, pages: Sequence[PageId]) -> None:
        """Add one view to each of ``pages`` (all different, all held)."""
        if pages:
            assert self._refs[pages].min() > 0, "a free page cannot gain a view"
            self._refs[pages] += 1

    def release(self, pages: Sequence[PageId]) -> int:
        """Drop one view of each of ``pages`` (all different); return how many became free."""
        if not pages:
            return 0
        places = np.asarray(pages)
        left = self._refs[places] - 1
        assert left.min() >= 0, "a page lost more views than it had"
        self._refs[places] = left
        freed = places[left == 0]
        self._free_flags[freed] = 1
        self._used[freed] = 0
        self._num_free += len(freed)
        self.num_freed_ever += len(freed)
        return len(freed)

    def write(self, page: PageId, num_slots: int) -> int:
        """Mark ``num_slots`` more slots of ``page`` as written; return the first of them (0-based in the page)."""
        first = int(self._used[page])
        assert self._refs[page] > 0, "only a held page is written"
        assert first + num_slots <= self.page_size, "a page has page_size slots"
        self._used[page] = first + num_slots
        return first

    def unwrite(self, page: PageId, used: int) -> None:
        """Take back written slots behind ``used`` that no view shows."""
        assert 0 <= used <= self._used[page], "only written slots can be taken back"
        self._used[page] = used

    def check(self, views: Iterable[tuple[PageId, int]]) -> None:
        """Assert every invariant against ``views``: all (page, shown slots) that owners hold now."""
        shown: Counter[int] = Counter()
        for page, count in views:
            assert 0 < page <= self.num_pages, f"page {page} does not exist"
            assert 0 <= count <= self._used[page], f"a view of page {page} shows {count} of {self._used[page]} slots"
            shown[page] += 1
        refs = self._refs.tolist()
        assert refs[0] == 0, "the trash page is never viewed"
        wrong = {page: (refs[page], shown[page]) for page in range(1, self.num_pages + 1) if refs[page] != shown[page]}
        assert not wrong, f"pages whose count differs from their views (count, views): {wrong}"
        free = [page for page in range(1, self.num_pages + 1) if self._free_map[page]]
        assert len(free) == self._num_free, "the free count differs from the free map"
        assert all(refs[page] == 0 for page in free), "a free page is viewed"
        assert len(free) + sum(count > 0 for count in refs) == self.num_pages, "a page is neither free nor held"

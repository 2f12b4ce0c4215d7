"""The prefix index: full pages found by the tokens in them and before them, before any prefill.

A key is the chained hash of a page's tokens. An entry keeps its own view of the page, so a page stays
after the last context has gone; an entry that nobody else views is *cached*: free for the taking, least
recently used first, and of those used together the one with the longest prefix first: the pages before
it are still good without it, and it would be lost without them. Every hit compares the page's tokens
themselves, not their hash alone. One index serves one model: the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pie_mlx.ids import PageId
from pie_mlx.kv.pool import PagePool

PageKey = int
"""Chained hash of all tokens up to and including a page."""

ROOT_KEY: PageKey = 0
"""The key before the first page."""


def page_key(parent: PageKey, tokens: Sequence[int]) -> PageKey:
    """Return the key of a page with ``tokens`` behind the pages of ``parent``."""
    return hash((parent, *tokens))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A page, and what must match for it to be a hit."""

    key: PageKey
    page: PageId
    parent: PageKey
    tokens: tuple[int, ...]


class PrefixIndex:
    """Entries over ``pool``; at most ``max_cached_pages`` of them are viewed by nobody else."""

    def __init__(self, pool: PagePool, *, max_cached_pages: int) -> None:
        """Make an empty index; ``max_cached_pages`` 0 switches it off."""
        self._pool = pool
        self._entries: dict[PageKey, _Entry] = {}
        self._by_page: dict[PageId, _Entry] = {}
        self._num_views: npt.NDArray[np.int32] = np.zeros(pool.num_pages + 1, dtype=np.int32)
        self._used_at: npt.NDArray[np.int64] = np.zeros(pool.num_pages + 1, dtype=np.int64)
        self._depth: npt.NDArray[np.int32] = np.zeros(pool.num_pages + 1, dtype=np.int32)
        self._clock = 0
        self.max_cached_pages = max_cached_pages
        self.num_hits = 0
        self.num_evicted = 0

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    @property
    def is_on(self) -> bool:
        """Whether anything is ever kept."""
        return self.max_cached_pages > 0

    def pages(self) -> list[PageId]:
        """Return the pages of all entries."""
        return list(self._by_page)

    def num_cached(self, spare: Sequence[PageId] = ()) -> int:
        """Return how many entries nobody else views, without those of ``spare``."""
        if not self._entries:
            return 0
        return int(np.count_nonzero(self.droppable_views(spare) & self._pool.is_viewed_once()))

    def views_by_page(self) -> npt.NDArray[np.int32]:
        """Return the index's own views by page, 0 or 1 each; read-only by contract."""
        return self._num_views

    def match(self, tokens: Sequence[int], keys: Sequence[PageKey], num_pages: int) -> list[PageId]:
        """Return the longest run of pages that continues ``keys`` with ``tokens``, up to ``num_pages``.

        ``tokens`` is the whole sequence, ``keys`` those of its leading pages that are resident already.
        """
        size = self._pool.page_size
        found: list[PageId] = []
        parent = keys[-1] if keys else ROOT_KEY
        for at in range(len(keys), len(keys) + num_pages):
            page_tokens = tuple(tokens[at * size : (at + 1) * size])
            entry = self._entries.get(page_key(parent, page_tokens))
            if entry is None or entry.tokens != page_tokens or entry.parent != parent:
                break
            found.append(entry.page)
            parent = entry.key
        self.touch(found)
        self.num_hits += len(found)
        return found

    def find(self, keys: Sequence[PageKey], first: int) -> list[PageId]:
        """Return the pages of ``keys[first:]`` as far as all are here, without taking note of it.

        ``keys`` are those of a sequence's leading pages. Only keys are compared: it is an estimate of :meth:`match`.
        """
        found: list[PageId] = []
        for at in range(first, len(keys)):
            entry = self._entries.get(keys[at])
            if entry is None:
                break
            found.append(entry.page)
        return found

    def droppable_views(self, spare: Sequence[PageId]) -> npt.NDArray[np.int32]:
        """Return the index's own views by page, without those of ``spare``: what it could give up."""
        if not spare:
            return self._num_views
        views = self._num_views.copy()
        views[list(spare)] = 0
        return views

    def touch(self, pages: Sequence[PageId]) -> None:
        """Note that ``pages`` were used now; those without an entry are passed over."""
        if pages and self._entries:
            self._clock += 1
            self._used_at[np.asarray(pages)] = self._clock

    def insert(self, keys: Sequence[PageKey], tokens: Sequence[int], page: PageId) -> None:
        """Remember a full, resident ``page`` with ``tokens``; ``keys`` are those of all pages up to it.

        A key that is known already keeps its first page.
        """
        key = keys[-1]
        if not self.is_on or key in self._entries:
            return
        assert page not in self._by_page, "a page's content has one key"
        self._pool.acquire([page])
        self._num_views[page] = 1
        self._depth[page] = len(keys)
        self._clock += 1
        self._used_at[page] = self._clock
        entry = _Entry(key, page, keys[-2] if len(keys) > 1 else ROOT_KEY, tuple(tokens))
        self._entries[key] = self._by_page[page] = entry

    def evict(self, num_pages: int, *, spare: Sequence[PageId] = ()) -> int:
        """Free up to ``num_pages`` cached pages but not ``spare``, least recently used first; return how many."""
        if num_pages <= 0 or not self._entries:
            return 0
        cached = np.flatnonzero(self.droppable_views(spare) & self._pool.is_viewed_once())
        order = np.lexsort((-self._depth[cached], self._used_at[cached]))
        pages = [PageId(page) for page in cached[order[:num_pages]].tolist()]
        for page in pages:
            del self._entries[self._by_page.pop(page).key]
        self._num_views[pages] = 0
        freed = self._pool.release(pages)
        self.num_evicted += freed
        return freed

    def forget(self, page: PageId) -> int:
        """Drop the entry of ``page``, which must have one; return 1 if the page became free, else 0."""
        del self._entries[self._by_page.pop(page).key]
        self._num_views[page] = 0
        return self._pool.release([page])

    def trim(self) -> int:
        """Keep to the limit of cached pages; return how many became free."""
        if len(self._entries) <= self.max_cached_pages:
            return 0
        return self.evict(self.num_cached() - self.max_cached_pages)

    def clear(self) -> int:
        """Forget every entry; return how many pages became free."""
        freed = self._pool.release(self.pages())
        self._entries.clear()
        self._by_page.clear()
        self._num_views[:] = 0
        return freed

"""The prefix index: full pages found by the tokens in them and before them, before any prefill.

A key is the chained hash of a page's tokens. An entry keeps its own view of the page, so a page stays
after the last context has gone; an entry that nobody else views is *cached*: free for the taking, least
recently used first. Every hit compares the tokens themselves, link by link from the first page on, so a
hash collision can only cost a miss, never a wrong token. One index serves one model: the engine's.
"""

from __future__ import annotations

from collections import OrderedDict
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

    page: PageId
    parent: PageKey
    tokens: tuple[int, ...]


class PrefixIndex:
    """Entries over ``pool``; at most ``max_cached_pages`` of them are viewed by nobody else."""

    def __init__(self, pool: PagePool, *, max_cached_pages: int) -> None:
        """Make an empty index; ``max_cached_pages`` 0 switches it off."""
        self._pool = pool
        self._entries: OrderedDict[PageKey, _Entry] = OrderedDict()
        self._num_views: npt.NDArray[np.int32] = np.zeros(pool.num_pages + 1, dtype=np.int32)
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
        """Return the pages of all entries, least recently used first."""
        return [entry.page for entry in self._entries.values()]

    def num_cached(self) -> int:
        """Return how many entries nobody else views."""
        if not self._entries:
            return 0
        return int(np.count_nonzero((self._num_views == 1) & (self._pool.refs_by_page() == 1)))

    def views_by_page(self) -> npt.NDArray[np.int32]:
        """Return the index's own views by page, 0 or 1 each; read-only by contract."""
        return self._num_views

    def match(self, tokens: Sequence[int], keys: Sequence[PageKey], num_pages: int) -> list[PageId]:
        """Return the longest run of pages that continues ``keys`` with ``tokens``, up to ``num_pages``.

        ``tokens`` is the whole sequence, ``keys`` those of its leading pages that are resident already.
        """
        size = self._pool.page_size
        found: list[PageId] = []
        used: list[PageKey] = []
        parent = keys[-1] if keys else ROOT_KEY
        for at in range(len(keys), len(keys) + num_pages):
            page_tokens = tuple(tokens[at * size : (at + 1) * size])
            key = page_key(parent, page_tokens)
            entry = self._entries.get(key)
            if entry is None or entry.tokens != page_tokens or entry.parent != parent:
                break
            found.append(entry.page)
            used.append(key)
            parent = key
        # The first page of a chain must outlive the later ones, or those could never be found again.
        for key in reversed(used):
            self._entries.move_to_end(key)
        self.num_hits += len(found)
        return found

    def insert(self, key: PageKey, parent: PageKey, tokens: Sequence[int], page: PageId) -> None:
        """Remember a full, resident ``page``; a key that is known already keeps its first page."""
        if self.is_on and key not in self._entries:
            self._pool.acquire([page])
            self._num_views[page] = 1
            self._entries[key] = _Entry(page, parent, tuple(tokens))

    def evict(self, num_pages: int) -> int:
        """Free at least ``num_pages`` cached pages, least recently used first; return how many became free."""
        freed = 0
        for key in [k for k, entry in self._entries.items() if self._pool.refs(entry.page) == 1]:
            if freed >= num_pages:
                break
            page = self._entries.pop(key).page
            self._num_views[page] = 0
            freed += self._pool.release([page])
        self.num_evicted += freed
        return freed

    def trim(self) -> int:
        """Keep to the limit of cached pages; return how many became free."""
        if len(self._entries) <= self.max_cached_pages:
            return 0
        excess = self.num_cached() - self.max_cached_pages
        return self.evict(excess) if excess > 0 else 0

    def clear(self) -> int:
        """Forget every entry; return how many pages became free."""
        freed = self._pool.release(self.pages())
        self._entries.clear()
        self._num_views[:] = 0
        return freed

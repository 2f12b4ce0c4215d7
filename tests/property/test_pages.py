"""Whatever is done to pool, tables and prefix index, no page is lost and no shown slot is written again."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pie_mlx.errors import OutOfPages
from pie_mlx.kv.page_table import PageTable
from pie_mlx.kv.pool import PagePool
from pie_mlx.kv.prefix_index import ROOT_KEY, PrefixIndex, page_key


class Pages(RuleBasedStateMachine):
    """Tables over one small pool, beside a plain model: each table's tokens and what every slot holds."""

    @initialize(num_pages=st.integers(1, 12), page_size=st.sampled_from([8, 16]))
    def make(self, num_pages: int, page_size: int) -> None:
        """Start with one empty table."""
        self.pool = PagePool(num_pages, page_size)
        self.index = PrefixIndex(self.pool, max_cached_pages=3)
        self.slots = [-1] * self.pool.num_slots
        self.tables: list[PageTable] = [PageTable(self.pool)]
        self.sequences: list[list[int]] = [[]]
        self.next_token = 0

    def pick(self, at: int) -> int:
        """Map any number to a live table."""
        return at % len(self.tables)

    @rule(at=st.integers(0, 99), count=st.integers(1, 40), kept=st.floats(0, 1))
    def append(self, at: int, count: int, kept: float) -> None:
        """Reserve, write, and show a part (a failed step shows nothing)."""
        i = self.pick(at)
        table, free = self.tables[i], self.pool.num_free
        need = table.pages_needed(count)
        try:
            slots = table.reserve(count)
        except OutOfPages:
            assert need > free
            assert self.pool.num_free == free
            return
        assert free - self.pool.num_free == need
        tokens = list(range(self.next_token, self.next_token + count))
        self.next_token += count
        for slot, token in zip(slots.tolist(), tokens, strict=True):
            self.slots[slot] = token
        shown = round(count * kept)
        table.commit(shown)
        self.sequences[i] += tokens[:shown]

    @rule(at=st.integers(0, 99))
    def fork(self, at: int) -> None:
        """A fork takes no page."""
        i = self.pick(at)
        free = self.pool.num_free
        if len(self.tables) < 12:
            self.tables.append(self.tables[i].fork())
            self.sequences.append(self.sequences[i].copy())
        assert self.pool.num_free == free

    @rule(at=st.integers(0, 99), share=st.floats(0, 1))
    def truncate(self, at: int, share: float) -> None:
        """Truncation frees exactly the pages it reports."""
        i = self.pick(at)
        keep, free = round(len(self.sequences[i]) * share), self.pool.num_free
        keep = keep if keep >= self.tables[i].num_let_go else 0
        freed = self.tables[i].truncate(keep)
        del self.sequences[i][keep:]
        assert self.pool.num_free == free + freed

    @rule(at=st.integers(0, 99), share=st.floats(0, 1))
    def let_go(self, at: int, share: float) -> None:
        """Letting go frees what it reports, takes whole pages, and changes no count of tokens."""
        table, free = self.tables[self.pick(at)], self.pool.num_free
        before = (table.num_slots, table.full_pages(), list(table.views()))
        most = round(table.num_slots * share)
        assert table.let_go(most) == self.pool.num_free - free
        assert (table.num_slots, table.full_pages()) == before[:2]
        dropped = len(before[2]) - len(list(table.views()))
        assert list(table.views()) == before[2][dropped:]
        assert table.num_let_go + table.num_shown == table.num_slots
        assert table.num_let_go <= most or not dropped

    @precondition(lambda self: len(self.tables) > 1)
    @rule(at=st.integers(0, 99), in_flight=st.booleans())
    def close(self, at: int, in_flight: bool) -> None:
        """Closing frees what the table alone held, also with a step in flight."""
        i = self.pick(at)
        table = self.tables.pop(i)
        self.sequences.pop(i)
        if in_flight and self.pool.num_free:
            table.reserve(1)
        free = self.pool.num_free
        assert table.clear() == self.pool.num_free - free
        assert table.num_pages == table.num_slots == 0

    @rule(at=st.integers(0, 99))
    def remember(self, at: int) -> None:
        """Enter a table's leading full pages into the prefix index."""
        i, size = self.pick(at), self.pool.page_size
        keys: list[int] = []
        for page_at in range(self.tables[i].full_pages()):
            tokens = self.sequences[i][page_at * size : (page_at + 1) * size]
            keys.append(page_key(keys[-1] if keys else ROOT_KEY, tokens))
            seen = page_at - self.tables[i].num_pages_let_go
            if seen >= 0:
                self.index.insert(keys, tokens, self.tables[i].pages[seen])
        self.index.trim()
        assert self.index.num_cached() <= self.index.max_cached_pages

    @rule(at=st.integers(0, 99))
    def look_up(self, at: int) -> None:
        """A new table that adopts a hit shows exactly the tokens it asked for."""
        i, size = self.pick(at), self.pool.page_size
        tokens = self.sequences[i].copy()
        pages = self.index.match(tokens, [], len(tokens) // size)
        if pages and len(self.tables) < 12:
            table = PageTable(self.pool)
            table.adopt(pages)
            self.tables.append(table)
            self.sequences.append(tokens[: len(pages) * size])

    @rule(count=st.integers(1, 4))
    def evict(self, count: int) -> None:
        """Evicting cached pages frees exactly what it reports."""
        free = self.pool.num_free
        assert self.index.evict(count) == self.pool.num_free - free

    @invariant()
    def every_view_shows_its_own_tokens(self) -> None:
        """Read each sequence back through its slots."""
        for table, tokens in zip(self.tables, self.sequences, strict=True):
            gone = table.num_let_go
            assert [self.slots[slot] for slot in table.slots[gone:].tolist()] == tokens[gone:]
            assert not table.slots[:gone].any(), "what was let go lies in the trash page"

    @invariant()
    def no_page_is_lost(self) -> None:
        """The pool's counts are those of its owners, and each table knows how many pages it shows in full."""
        for table in self.tables:
            full = [shown == self.pool.page_size for _page, shown in table.views()]
            if table.num_let_go:
                continue
            assert table.full_pages() == (full.index(False) if False in full else len(full))
        views = [view for table in self.tables for view in table.views()]
        views += [(page, self.pool.page_size) for page in self.index.pages()]
        self.pool.check(views)


TestPages = Pages.TestCase

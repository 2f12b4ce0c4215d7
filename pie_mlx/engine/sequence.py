"""A sequence: the engine's side of a context, its tokens, its page table and its place in the order."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pie_mlx.engine.checkpoints import Checkpoints
from pie_mlx.ids import ContextId, PageId
from pie_mlx.kv.page_table import PageTable
from pie_mlx.kv.prefix_index import ROOT_KEY, PageKey, PrefixIndex, page_key
from pie_mlx.kv.window import Window

if TYPE_CHECKING:
    from pie_mlx.engine.job import Job


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens of one context; the first ``table.num_slots`` of them are resident."""

    id: ContextId
    name: str
    tokens: list[int]
    table: PageTable
    parent: ContextId | None = None
    pinned: bool = False
    closed: bool = False
    job: Job | None = None
    last_used: int = 0
    touched_s: float = field(default_factory=time.monotonic)
    keys: list[PageKey] = field(default_factory=list)
    """Prefix keys of the leading full pages."""
    num_evicted_tokens: int = 0
    state: object | None = None
    """The recurrent state after what is resident, of models that have one."""
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    window: Window | None = None
    """How far back the model looks; None: to the beginning."""
    handle: object | None = None
    """The weak reference that tells when the owner's handle is gone; it must live as long as the context."""

    @property
    def num_resident(self) -> int:
        """Tokens that are computed: their K/V is in the arena, or lies behind the model's window."""
        return self.table.num_slots

    @property
    def num_outstanding(self) -> int:
        """Tokens that still have to be computed."""
        return len(self.tokens) - self.table.num_slots

    @property
    def label(self) -> str:
        """How reports name this context."""
        return f"{self.name} (context {self.id})" if self.name else f"context {self.id}"

    def truncate_resident(self, num_tokens: int) -> int:
        """Forget the K/V behind ``num_tokens`` tokens; return the pages that became free."""
        if num_tokens >= self.table.num_slots:
            return 0
        if self.state is not None:
            # A recurrent state cannot be wound back: an earlier one takes over, and what follows is computed again.
            num_tokens, self.state = self.checkpoints.latest(num_tokens)
        if self.window is not None and self.table.num_let_go > self.window.first_needed(num_tokens):
            # What the next token would look back at was let go: everything is computed again.
            num_tokens, self.state = self.checkpoints.latest(0)
        freed = self.table.truncate(num_tokens)
        del self.keys[self.table.full_pages() :]
        return freed

    def let_go(self, num_tokens: int) -> int:
        """Let go what no token after the first ``num_tokens`` looks back at; return the pages that became free."""
        return 0 if self.window is None else self.table.let_go(self.window.first_kept(num_tokens))

    def keep_state(self) -> None:
        """Make what is resident now a place that a later truncation can go back to."""
        if self.state is not None:
            self.checkpoints.keep(self.table.num_slots, self.state)

    def advance_state(self, position: int, state: object | None) -> None:
        """Take the state after a segment that began at ``position``; the one before it stays within reach."""
        if self.state is not None:
            self.checkpoints.pass_by(position, self.state)
        self.state = state

    def find_prefix(self, index: PrefixIndex, ahead: list[PageKey], page_size: int, *, before: int) -> list[PageId]:
        """Return the pages that :meth:`adopt_prefix` would take over, changing nothing.

        ``ahead`` remembers the keys of the sequence's pages between calls, as long as its tokens only grow.
        """
        table = self.table
        if table.full_pages() < table.num_slots // page_size:
            return []
        self.index_pages(None, page_size)
        for at in range(len(ahead), before // page_size):
            tokens = self.tokens[at * page_size : (at + 1) * page_size]
            ahead.append(page_key(ahead[-1] if ahead else ROOT_KEY, tokens))
        return index.find(ahead, len(self.keys))

    def adopt_prefix(self, index: PrefixIndex, page_size: int, *, before: int) -> int:
        """Take over cached pages that continue what is resident, up to position ``before``; return the tokens gained.

        A last page that is shown in part gives way to a cached one that shows more.
        """
        table, resident = self.table, self.table.num_slots
        if table.full_pages() < resident // page_size:
            return 0
        self.index_pages(None, page_size)
        most = before // page_size - len(self.keys)
        pages = index.match(self.tokens, self.keys, most) if most > 0 else []
        if not pages:
            return 0
        table.truncate(len(self.keys) * page_size)
        table.adopt(pages)
        self.index_pages(None, page_size)
        return table.num_slots - resident

    def index_pages(self, index: PrefixIndex | None, page_size: int) -> None:
        """Bring the keys of full pages up to date, and enter new ones into ``index``."""
        full = self.table.full_pages()
        if full <= len(self.keys):
            return
        let_go = self.table.num_pages_let_go
        pages = self.table.pages[: full - let_go]
        for at in range(len(self.keys), full):
            tokens = self.tokens[at * page_size : (at + 1) * page_size]
            self.keys.append(page_key(self.keys[-1] if self.keys else ROOT_KEY, tokens))
            if index is not None:
                index.insert(self.keys, tokens, pages[at - let_go])
        if index is not None:
            # A page is worth nothing without those before it: they are as recent as it is.
            index.touch(pages)

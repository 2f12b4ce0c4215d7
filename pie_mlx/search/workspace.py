"""The contexts of a run: one per node that is being worked on, opened and closed by the run alone.

A context is a cache of a node's tokens: closing one loses nothing but the time to compute it again. Opening
one takes the pages of the nearest relative that is open.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Collection, Iterable

from pie_mlx.engine import Context, Engine
from pie_mlx.engine.context import ContextPages, still_open
from pie_mlx.search.concurrency import pages_for
from pie_mlx.search.dialogue import Dialogue
from pie_mlx.search.node import NodeId, id_path, parent_id
from pie_mlx.search.rules import Rules


class Workspace:
    """Opens, forks and closes the contexts of one run; safe to use from several threads."""

    def __init__(self, engine: Engine, dialogue: Dialogue, rules: Rules, run: str) -> None:
        """Work on ``engine``; contexts are named after ``run`` and their node."""
        self._engine = engine
        self._dialogue = dialogue
        self._rules = rules
        self._run = run
        self._open: dict[NodeId, Context] = {}
        self._forks: set[Context] = set()
        self._lock = threading.RLock()
        self._is_over = False

    def tokens(self, node: NodeId) -> tuple[int, ...]:
        """Return a node's sequence: the prompt, and every line down to it."""
        parts = list(self._dialogue.root)
        for line in self._rules.path_lines(node):
            parts.extend(self._dialogue.encode(line))
        return tuple(parts)

    def context(self, node: NodeId) -> Context:
        """Return a node's context, opening it where it is not open."""
        with self._lock:
            known = still_open(self._open, node)
            if known is None:
                known = self._open[node] = self._new(node, f"{self._run}/{node}")
            return known

    def detached(self, node: NodeId) -> Context:
        """Return a new context with a node's sequence that belongs to the caller; works after the run too."""
        with self._lock:
            return self._new(node, f"{self._run}/{node} chat")

    def _new(self, node: NodeId, name: str) -> Context:
        """Open a context for a node, as a fork of its nearest open relative."""
        tokens = self.tokens(node)
        relative = None if self._is_over else self._relative(node)
        if relative is None:
            return self._engine.context(tokens, name=name)
        context = relative.fork(name=name)
        context.rebase(tokens)
        return context

    def _relative(self, node: NodeId) -> Context | None:
        """Return an open context that shares the longest path with a node: itself, its ancestor or one below it."""
        path = id_path(node)
        nearest, length = None, -1
        for other, context in self._open.items():
            if context.closed:
                continue
            common = _common(path, id_path(other))
            if common > length:
                nearest, length = context, common
        return nearest

    def branch(self, parent: NodeId, child: NodeId, lead: tuple[int, ...]) -> Context:
        """Open a child's context: a fork of its parent's, with the lead that its thought is written behind."""
        with self._lock:
            context = self.context(parent).fork(name=f"{self._run}/{child}")
            context.append(lead)
            self._close_one(child)
            self._open[child] = context
            return context

    def settle(self, node: NodeId) -> None:
        """Give a node's open context exactly the tokens of its text, after its thought was written and read."""
        with self._lock:
            context = still_open(self._open, node)
            if context is not None:
                context.rebase(self.tokens(node))

    def pages(self, node: NodeId) -> ContextPages | None:
        """Return the pages that a node's context views; None where it is not open."""
        with self._lock:
            context = still_open(self._open, node)
            return None if context is None else context.pages

    def fork(self, node: NodeId) -> Context:
        """Fork a node's context for a judgement; give it back to :meth:`release`."""
        with self._lock:
            context = self.context(node).fork(name=f"{self._run}/{node} judge")
            self._forks.add(context)
            return context

    def fork_of(self, base: Context) -> Context:
        """Fork a fork; give it back to :meth:`release`."""
        with self._lock:
            context = base.fork(name=base.name)
            self._forks.add(context)
            return context

    def release(self, fork: Context) -> None:
        """Close a fork; idempotent."""
        with self._lock:
            self._forks.discard(fork)
            fork.close()

    def close(self, nodes: Iterable[NodeId]) -> int:
        """Close the contexts of ``nodes``; return the pages that became free."""
        with self._lock:
            return sum(self._close_one(node) for node in nodes)

    def _close_one(self, node: NodeId) -> int:
        """Close one node's context if it is open."""
        context = self._open.pop(node, None)
        return 0 if context is None else context.close()

    def is_open(self, node: NodeId) -> bool:
        """Whether a node has a context."""
        with self._lock:
            return still_open(self._open, node) is not None

    def pages_behind(self, node: NodeId, tokens: tuple[int, ...], num_more: int = 0) -> int:
        """Return the free pages that a fork of a node takes to hold ``tokens`` and ``num_more`` after them.

        Exact where the node is open and ``tokens`` goes on from it; else what its parent has not is counted as new.
        """
        with self._lock:
            own = still_open(self._open, node)
            if own is not None:
                resident = own.num_resident
                if own.tokens[:resident] == tokens[:resident]:
                    return own.num_fresh_pages(max(len(tokens) + num_more - resident, 1))
            parent = parent_id(node)
            kept = len(self.tokens(node if parent is None else parent))
            return pages_for(max(len(tokens) + num_more - kept, 1), self._engine.settings.page_size) + 1

    def close_leaves(self, nodes: Iterable[NodeId], *, enough: float = math.inf) -> int:
        """Close those of ``nodes`` whose parent or sibling goes on holding what they share; return the pages freed.

        In this order, and no more of them than free ``enough`` pages.
        """
        with self._lock:
            holders = Counter(map(parent_id, self._open))
            freed = 0
            for node in nodes:
                if freed >= enough:
                    break
                parent = parent_id(node)
                if node in self._open and (parent in self._open or holders[parent] > 1):
                    holders[parent] -= 1
                    freed += self._close_one(node)
            return freed

    def close_all_but(self, kept: Collection[NodeId]) -> int:
        """Close every idle context outside ``kept``: they are computed again when next wanted."""
        with self._lock:
            return self.close([node for node in list(self._open) if node not in kept])

    def close_all(self) -> None:
        """Close everything: the run is over."""
        with self._lock:
            self._is_over = True
            for fork in list(self._forks):
                self.release(fork)
            # Children first: a parent's pages are free only when nobody below views them.
            self.close(sorted(self._open, key=lambda node: -len(id_path(node))))

    @property
    def num_open(self) -> int:
        """How many contexts are open."""
        with self._lock:
            return len(self._open) + len(self._forks)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many leading steps two paths share."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length

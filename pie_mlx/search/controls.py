"""The verbs by which a run is steered, from any thread.

Each verb is checked at once, against the tree as it is, and carried out by the run between two of its events. Where
the tree has moved on meanwhile, the run says in a notice that it refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pie_mlx.engine import Context
from pie_mlx.errors import UsageError
from pie_mlx.search.core import SearchCore
from pie_mlx.search.journal import Journal
from pie_mlx.search.node import NodeId
from pie_mlx.search.params import SearchParams
from pie_mlx.search.steering import BY_USER, Command, Steering
from pie_mlx.search.verbs import Verbs


class Controls:
    """What a user may do to a run while it runs."""

    name: str
    params: SearchParams
    _steering: Steering
    _journal: Journal
    _verbs: Verbs
    _core: SearchCore
    _over: threading.Event

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self._over.is_set()

    def pause(self) -> None:
        """Stop before the next action; thoughts that are being written end first."""
        self._must_live()
        self._steering.pause()

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        self._must_live()
        self._steering.resume()

    def step(self) -> None:
        """Let a paused run do one action."""
        self._must_live()
        self._steering.step()

    def cancel(self, by: str = "user") -> None:
        """End the run; a run that is over stays as it is."""
        self._steering.cancel(by)

    def prune(self, node: NodeId) -> None:
        """Give up a node and all below it.

        Raises:
            TreeError: there is no such node, or it is the root.
            UsageError: the run is over (as for every verb).
        """
        with self._journal.lock:
            self._verbs.must_not_be_root(node)
        self._post("prune", lambda: self._verbs.prune(node, BY_USER))

    def expand(self, node: NodeId, breadth: int | None = None, seed: int | None = None) -> None:
        """Write ``breadth`` more children of a node, with a seed of their own.

        Raises:
            TreeError: there is no such node, or nothing can follow it.
            InvalidParameter: breadth or seed is outside its range.
        """
        wish = SearchParams(breadth=self.params.breadth if breadth is None else breadth, seed=seed or 0)
        with self._journal.lock:
            self._verbs.must_be_written(node)
            if not self._core.rules.may_grow(node):
                raise UsageError(f"nothing can follow node {node}: it is finished")
        own_seed = self.params.seed if seed is None else wish.seed
        self._post("expand", lambda: self._verbs.expand(node, wish.breadth, own_seed), is_long=True)

    def edit(self, node: NodeId, text: str) -> None:
        """Rewrite a thought; what was below it is pruned.

        Raises:
            TreeError: there is no such node, or it is the root.
            InvalidParameter: the text is no step of the task.
        """
        with self._journal.lock:
            self._verbs.must_not_be_root(node)
            self._verbs.must_be_written(node)
            parent = self._core.tree[node].parent
            assert parent is not None, "only the root has no parent"
            self._verbs.read(parent, text)
        self._post("edit", lambda: self._verbs.edit(node, text))

    def insert(self, parent: NodeId, text: str) -> None:
        """Add a thought by hand under ``parent``; errors as for :meth:`edit`."""
        with self._journal.lock:
            self._verbs.read(parent, text)
        self._post("insert", lambda: self._verbs.insert(parent, text))

    def lock(self, node: NodeId, *, locked: bool = True) -> None:
        """Hold a node in the beam, or let it go; a pruned one that is locked lives again.

        Raises:
            TreeError: there is no such node, or it has no thought.
        """
        with self._journal.lock:
            self._verbs.must_be_written(node)
        self._post("lock", lambda: self._verbs.lock(node, locked=locked))

    def accept(self, node: NodeId) -> None:
        """Make a node the answer and end the run.

        Raises:
            TreeError: there is no such node, or it has no thought.
        """
        with self._journal.lock:
            self._verbs.must_not_be_root(node)
            self._verbs.must_be_written(node)
        self._post("accept", lambda: self._verbs.accept(node))

    def fork_to_chat(self, node: NodeId) -> Context:
        """Return a context with a node's sequence that belongs to the caller; works after the end too.

        Raises:
            TreeError: there is no such node, or it has no thought.
        """
        with self._journal.lock:
            self._verbs.must_be_written(node)
            context = self._core.workspace.detached(node)
        if not self.is_over:
            self._steering.post(Command("chat", lambda: self._core.notice_once(f"node {node} was forked into a chat")))
        return context

    def _must_live(self) -> None:
        """Refuse a verb after the end."""
        if self.is_over:
            raise UsageError(f"{self.name} is over: there is nothing to steer")

    def _post(self, name: str, carry_out: Callable[[], None], *, is_long: bool = False) -> None:
        """Leave a wish for the run's thread."""
        self._must_live()
        self._steering.post(Command(name, carry_out, is_long=is_long))

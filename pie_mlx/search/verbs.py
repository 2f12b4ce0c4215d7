"""What the verbs of steering do, on the run's thread; a replay carries out the recorded ones in the same way."""

from __future__ import annotations

from pie_mlx.errors import InvalidParameter, UsageError
from pie_mlx.search.core import SearchCore
from pie_mlx.search.errors import TreeError
from pie_mlx.search.expansion import Expander
from pie_mlx.search.node import FINAL, ROOT, NodeId, NodeStatus, parent_id
from pie_mlx.search.rules import Reading
from pie_mlx.search.steering import BY_USER, RunEndedError, expand_notice, is_users, read_expand_notice
from pie_mlx.search.strategies.base import Ask
from pie_mlx.search.trace_events import (
    Accepted,
    Edited,
    Event,
    FinishReason,
    Inserted,
    Locked,
    Noticed,
    Pruned,
    Verdict,
)


class Verbs:
    """Carries out what a user wishes of the tree."""

    def __init__(self, core: SearchCore, expander: Expander) -> None:
        """Act on ``core``."""
        self._core = core
        self._expander = expander
        self.scored: set[NodeId] = set()
        """Nodes that have the run's score; an edit takes them out."""
        self._added: list[NodeId] = []

    def take_added(self) -> list[NodeId]:
        """Return the nodes that the user wrote since the last call."""
        added, self._added = self._added, []
        return added

    # --- checks, in the caller's thread -----------------------------------------------------

    def must_be_written(self, node: NodeId) -> None:
        """Refuse a node that has no thought to work with.

        Raises:
            TreeError: there is no such node, it is being written, or it could not be read.
        """
        status = self._core.tree[node].status
        if node not in self._core.rules:
            raise TreeError(node, f"it is {status}: there is no thought to work with")

    def must_not_be_root(self, node: NodeId) -> None:
        """Refuse the root.

        Raises:
            TreeError: there is no such node, or it is the root.
        """
        if self._core.tree[node].id == ROOT:
            raise TreeError(node, "the root is the question itself")

    def read(self, parent: NodeId, text: str) -> Reading:
        """Read a thought that the user wrote.

        Raises:
            TreeError: nothing can follow the parent.
            InvalidParameter: the text is no step of the task.
        """
        self.must_be_written(parent)
        if self._core.tree[parent].status in FINAL or not self._core.rules.may_grow(parent):
            raise TreeError(parent, "nothing can follow it")
        reading = self._core.rules.read(parent, text)
        if reading.verdict is not Verdict.OK or "\n" in reading.text:
            raise InvalidParameter("thought", text[:60], f"one line that is a step of the task ({reading.reason})")
        return reading

    # --- verbs ------------------------------------------------------------------------------

    def prune(self, node: NodeId, reason: str) -> None:
        """Give up a node and all below it; what is being written there is cancelled."""
        core = self._core
        freed = core.workspace.close([below.id for below in core.tree.walk(node)])
        core.tell(Pruned(node=node, freed_pages=freed, reason=reason))

    def expand(self, node: NodeId, breadth: int, seed: int) -> None:
        """Write more children of a node."""
        core = self._core
        core.tell(expand_notice(node, breadth, seed))
        if core.rules.may_grow(node) and core.tree[node].status is not NodeStatus.WRITING:
            for children in self._expander.expand([Ask(node, breadth)], seed=seed):
                self._added += children

    def edit(self, node: NodeId, text: str) -> None:
        """Rewrite a thought; what was below it does not follow from it any more."""
        for child in list(self._core.tree[node].children):
            if self._core.tree[child].status is not NodeStatus.PRUNED:
                self.prune(child, f"{BY_USER}: the thought above was edited")
        self._rewrite(node, text)

    def _rewrite(self, node: NodeId, text: str) -> None:
        """Give a node its new text."""
        core = self._core
        reading = core.rules.read(parent_id(node) or ROOT, text)
        core.tell(Edited(node=node, text=reading.text, key=reading.key))
        self._place(node, reading)

    def insert(self, parent: NodeId, text: str) -> None:
        """Add a thought by hand."""
        core = self._core
        reading = core.rules.read(parent, text)
        node = core.tree.next_child(parent)
        core.tell(Inserted(node=node, text=reading.text, key=reading.key))
        core.spending.nodes += 1
        self._place(node, reading)

    def _place(self, node: NodeId, reading: Reading) -> None:
        """Give a node the position of its new thought."""
        assert reading.position is not None, "the caller's thought was read before"
        self._core.rules.place(node, reading.position)
        self._core.workspace.close([node])
        self.scored.discard(node)
        self._added.append(node)

    def lock(self, node: NodeId, *, locked: bool) -> None:
        """Hold a node in the beam, or let it go."""
        self._core.tell(Locked(node=node, locked=locked))
        if locked:
            self._added.append(node)

    def accept(self, node: NodeId) -> None:
        """Make a node the answer: the run ends.

        Raises:
            RunEndedError: always.
        """
        self._core.tell(Accepted(node=node, by="user"))
        raise RunEndedError(FinishReason.ANSWER, why="accepted by the user", node=node)

    # --- replay -----------------------------------------------------------------------------

    def repeat_recorded(self) -> None:
        """Repeat what the trace says a user did in this place."""
        while (event := self._core.journal.upcoming()) is not None and is_users(event):
            self._repeat(event)

    def _repeat(self, event: Event) -> None:
        """Repeat one recorded event of a user."""
        node = event.node
        assert node is not None, "what a user does is about a node"
        if isinstance(event, Pruned):
            self.prune(node, event.reason)
        elif isinstance(event, Edited):
            self._rewrite(node, event.text)
        elif isinstance(event, Inserted):
            self.insert(parent_id(node) or ROOT, event.text)
        elif isinstance(event, Locked):
            self.lock(node, locked=event.locked)
        elif isinstance(event, Accepted):
            self.accept(node)
        elif isinstance(event, Noticed):
            wish = read_expand_notice(event)
            if wish is None:
                raise UsageError(f"the trace tells a wish that this version does not know: {event.text!r}")
            self.expand(node, *wish)

"""Steering a live run: each verb asks first where work would be lost, and says how to take it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pie_mlx.errors import PieError
from pie_mlx.search.run import Run
from pie_mlx.search.tree import Node, NodeId, NodeStatus
from pie_mlx.tui.bridge import describe
from pie_mlx.tui.desk import Desk
from pie_mlx.tui.handover import hand_over
from pie_mlx.tui.looks import DULL
from pie_mlx.tui.screens.dialogs import AskText, Confirm, ExportDialog
from pie_mlx.tui.screens.page import Page
from pie_mlx.tui.screens.replaying import Replaying
from pie_mlx.tui.text import one_line
from pie_mlx.tui.widgets.tree.tree_view import TreeView

STEERING = frozenset({"step", "prune", "expand", "edit", "insert", "lock", "accept", "undo", "cancel_run"})
"""Actions that need a run that is not over."""


class Steering(Replaying, Page):
    """The part of the tree screen that changes a run."""

    def __init__(self, desk: Desk) -> None:
        """Start with nothing to take back."""
        super().__init__(desk)
        self._undo: list[tuple[str, Callable[[Run], None]]] = []
        self._is_braked = False

    def forget_steering(self) -> None:
        """Take nothing of another run back."""
        self._undo.clear()
        self._is_braked = False

    @property
    def tree_view(self) -> TreeView:
        """The tree; the screen has it."""
        raise NotImplementedError

    def _steer(
        self, verb: Callable[[Run], None], done: str, undo: tuple[str, Callable[[Run], None]] | None = None
    ) -> None:
        """Do something to the run; say what was done, or why it was refused."""
        run = self.desk.run
        if run is None:
            return
        try:
            verb(run)
        except PieError as error:
            self.notify(describe(error), severity="error", markup=False, timeout=6)
            return
        if undo is not None:
            self._undo.append(undo)
        self.notify(done + ("; u takes it back" if undo is not None else ""), markup=False, timeout=3)

    def _confirm(self, title: str, question: str, yes: str, then: Callable[[], None]) -> None:
        """Ask, and go on after a yes."""
        _ = self.app.push_screen(Confirm(title, question, yes=yes), lambda answer: then() if answer is True else None)

    # --- the clock ----------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Pause the run or let it go on; in the past and after the end, play."""
        run = self.desk.run
        if run is None or run.is_over or not self.desk.story.at_end:
            self.toggle_playing()
            return
        self._is_braked = not self._is_braked
        verb = Run.pause if self._is_braked else Run.resume
        words = "pausing: thoughts that are being written end first" if self._is_braked else "going on"
        self._steer(verb, words)
        self.show_state()

    def action_step(self) -> None:
        """Let a paused run do one action."""
        self._is_braked = True
        self._steer(Run.step, "one step")
        self.show_state()

    def action_cancel_run(self) -> None:
        """End the run."""
        self._confirm("end the run", "End it now? The trace keeps what was written.", "end it", self._cancel)

    def _cancel(self) -> None:
        """Cancel after a yes."""
        self._steer(lambda run: run.cancel(), "the run ends")

    # --- nodes --------------------------------------------------------------------------------

    def action_prune(self) -> None:
        """Give up the subtree under the cursor."""
        node = self.tree_view.node
        if node is None:
            return
        if node.parent is None:
            self.notify("the root cannot be pruned; S ends the run", severity="warning", markup=False)
            return
        below = [n for n in self.desk.story.tree.walk(node.id) if n.status not in DULL]
        written = [n.id for n in below if _has_thought(n)]
        self._confirm("prune", _prune_words(node, below), "prune", lambda: self._prune(node.id, written))

    def _prune(self, node: NodeId, written: list[NodeId]) -> None:
        """Prune after a yes; locking a pruned node makes it live again, so that is the way back."""

        def undo(run: Run) -> None:
            for each in written:
                _revive(run, each)

        way_back = (f"prune {node}", undo) if written else None
        self._steer(lambda run: run.prune(node), f"{node} is pruned", way_back)

    def action_expand(self) -> None:
        """Write more children, with a seed of their own."""
        node = self.tree_view.node
        if node is None:
            return
        default = f"{self._breadth()} {len(node.children) + 1}"

        def expand(answer: object) -> None:
            parts = str(answer).split() if isinstance(answer, str) else []
            if len(parts) == 2 and all(part.isdigit() for part in parts):
                breadth, seed = int(parts[0]), int(parts[1])
                self._steer(lambda run: run.expand(node.id, breadth, seed), f"{node.id}: {breadth} more")
            elif parts:
                self.notify("two whole numbers: how many, and the seed", severity="error", markup=False)

        prompt = "how many children, and the seed of their draws"
        _ = self.app.push_screen(AskText(f"expand {node.id} again", prompt, default, one_line=True), expand)

    def _breadth(self) -> int:
        """Return the run's own breadth."""
        run = self.desk.run
        return run.params.breadth if run is not None else 1

    def action_edit(self) -> None:
        """Rewrite the thought under the cursor."""
        node = self.tree_view.node
        if node is None or node.parent is None:
            self.action_insert()
            return
        lost = [n.id for n in self.desk.story.tree.walk(node.id) if n is not node and n.status not in DULL]
        warning = f" The {len(lost)} thoughts below it are pruned." if lost else ""
        before = node.text

        def undo(run: Run) -> None:
            run.edit(node.id, before)
            for each in lost:
                _revive(run, each)

        def edit(text: object) -> None:
            if isinstance(text, str) and text != before:
                way_back = (f"edit of {node.id}", undo)
                self._steer(lambda run: run.edit(node.id, text), f"{node.id} is rewritten", way_back)

        prompt = f"Its scores are void once it is rewritten.{warning}"
        _ = self.app.push_screen(AskText(f"edit {node.id}", prompt, before), edit)

    def action_insert(self) -> None:
        """Add a thought by hand below the cursor."""
        node = self.tree_view.node
        if node is None:
            return

        def insert(text: object) -> None:
            if isinstance(text, str) and text.strip():
                made = self.desk.story.tree.next_child(node.id)
                undo = (f"thought {made}", lambda run: run.prune(made))
                self._steer(lambda run: run.insert(node.id, text), f"added below {node.id}", undo)

        _ = self.app.push_screen(AskText(f"a thought below {node.id}", "It is scored like the others.", ""), insert)

    def action_lock(self) -> None:
        """Hold the node in the beam, or let it go."""
        node = self.tree_view.node
        if node is None:
            return
        locked = not node.locked
        words = f"{node.id} stays in the beam" if locked else f"{node.id} is let go"
        undo = (f"lock of {node.id}", lambda run: run.lock(node.id, locked=not locked))
        self._steer(lambda run: run.lock(node.id, locked=locked), words, undo)

    def action_accept(self) -> None:
        """Make the node the answer, which ends the run."""
        node = self.tree_view.node
        if node is None:
            return
        question = f"Make {node.id} the answer? The run ends with it.\n{one_line(node.text, 160)}"
        then = lambda: self._steer(lambda run: run.accept(node.id), f"{node.id} is the answer")  # noqa: E731
        self._confirm("accept", question, "accept", then)

    def action_undo(self) -> None:
        """Take the last steering back."""
        if not self._undo:
            self.notify("there is nothing to take back", markup=False, timeout=2)
            return
        what, verb = self._undo.pop()
        self._steer(verb, f"taken back: {what}")

    # --- another run ------------------------------------------------------------------------------

    def action_search(self) -> None:
        """Ask for a question, and search it."""
        _ = self.app.push_screen(AskText("new search", "What is to be answered?", "", one_line=True), self._search)

    def _search(self, question: object) -> None:
        """Search what was typed."""
        if not isinstance(question, str) or not question.strip():
            return
        try:
            self.ask_search(question.strip())
        except PieError as error:
            self.notify(describe(error), severity="error", markup=False, timeout=6)

    # --- out of the run ---------------------------------------------------------------------------

    def action_chat(self) -> None:
        """Go on with the node's thoughts in a chat."""
        node, run = self.tree_view.node, self.desk.run
        if node is None or not _has_thought(node):
            return
        if run is None:
            words = "a trace has no model to talk with: start the workbench with pie-mlx tot run --tui"
            self.notify(words, severity="warning", markup=False)
            return
        # Opening the chat reads files, and the fork may wait for a step: the screen must not.
        self.run_worker(self._hand_over(run, node), exclusive=True)

    async def _hand_over(self, run: Run, node: Node) -> None:
        """Begin the chat off the screen's thread, then go there."""
        self.notify(f"{node.id} is taken to the chat", markup=False, timeout=2)
        try:
            await asyncio.to_thread(hand_over, self.desk, run, node)
        except PieError as error:
            self.notify(describe(error), severity="error", markup=False, timeout=8)
            return
        await self.app.run_action("app.go('chat')")

    def action_export(self) -> None:
        """Write the tree to a file."""
        _ = self.app.push_screen(ExportDialog(self.desk.story.as_trace()))


def _prune_words(node: Node, below: list[Node]) -> str:
    """Return the question before a prune: what would be lost."""
    lost = max(0, len(below) - 1)
    tokens = sum(n.tokens.completion for n in below)
    branch = f" with the {lost} thought{'s' if lost > 1 else ''} below it" if lost else ""
    if not any(_has_thought(n) for n in below):
        return f"Prune {node.id}{branch} before it is written?\nThis cannot be taken back; r expands its parent again."
    return (
        f"Prune {node.id}{branch} ({tokens} tokens of work)?\n"
        "Their pages come back at once. Taking it back recomputes them when they are needed."
    )


def _revive(run: Run, node: NodeId) -> None:
    """Let a pruned node live again."""
    run.lock(node)
    run.lock(node, locked=False)


def _has_thought(node: Node) -> bool:
    """Whether a node's thought is there to be talked about."""
    return node.status not in (NodeStatus.WRITING, NodeStatus.INVALID, NodeStatus.FAILED)

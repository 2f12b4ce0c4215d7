"""A conversation over contexts: each branch of the tree keeps its own context, and moving in the tree computes nothing.

A branch that is made forks the context of the branch it leaves; a branch without a context begins as a fork of the
one that has most in common with it. What a prompt shares with its context is never computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pie_mlx.chat.store import SessionId, SessionStore
from pie_mlx.chat.turns import Turn, TurnId
from pie_mlx.engine.context import Context, still_open
from pie_mlx.engine.engine import Engine
from pie_mlx.errors import UsageError


class Conversation:
    """The tree of one session, written through to its store, and the branches' contexts."""

    def __init__(self, engine: Engine, store: SessionStore, session: SessionId) -> None:
        """Load the session's tree.

        Raises:
            SessionNotFound, SessionCorrupt: as their names say.
        """
        self.engine = engine
        self.store = store
        self.session = session
        self.tree = store.load(session)
        self.contexts: dict[str, Context] = {}
        self.first_sent: dict[str, TurnId] = {}
        """Where a branch's last prompt began: the oldest message that was sent."""
        self.notices: list[str] = []

    def close(self) -> None:
        """Give all pages back. The tree stays; the next prompt is computed afresh."""
        for context in self.contexts.values():
            context.close()
        self.contexts.clear()

    def open_context(self, branch: str) -> Context | None:
        """Return a branch's context; one that somebody else closed, for its pages, is forgotten."""
        return still_open(self.contexts, branch)

    # --- moving ----------------------------------------------------------------------------

    def fork(self, name: str | None = None) -> str:
        """Make a branch where the current one stands, and go there; return its name.

        Raises:
            InvalidParameter, UsageError: the name is no name, or is taken.
        """
        tree = self.tree
        chosen = tree.free_name(tree.current) if name is None else tree.check_new_name(name)
        chosen = self._add_branch(chosen, tree.tip)
        self._fork_context(tree.current, chosen)
        self._go(chosen)
        return chosen

    def switch(self, name: str) -> str:
        """Go to another branch; return its name.

        Raises:
            UsageError: there is no such branch.
        """
        found = self.tree.find_branch(name)
        self._go(found)
        return found

    def undo(self) -> tuple[Turn, str | None]:
        """Take the last message and its reply off the branch; return the message, and the branch that keeps both.

        Raises:
            UsageError: there is nothing to undo.
        """
        message, _ = self.tree.last_exchange()
        return message, self.move(message.parent)

    def move(self, tip: TurnId | None, *, spare: Context | None = None) -> str | None:
        """Let the current branch end in ``tip``; return the branch that keeps what no other would reach any more.

        ``spare`` is the kept branch's context, where :meth:`spare_for` made one.
        """
        tree = self.tree
        name, old = tree.current, tree.tip
        kept = tree.name_of_left(tip, name)
        if kept is not None:
            kept = self._add_branch(kept, old)
            if spare is None:
                self._fork_context(name, kept)
            else:
                self.contexts[kept] = spare
        if self.store.move_branch(self.session, name, seen=old, tip=tip):
            tree.branches[name] = tip
        else:
            self._move_apart(name, tip)
        return kept

    def _move_apart(self, name: str, tip: TurnId | None) -> None:
        """Go on under a new name: another process has moved our branch, and neither may lose its turns."""
        self._read_others()
        own = self._add_branch(self.tree.free_name(name), tip)
        if name in self.contexts:
            self.contexts[own] = self.contexts.pop(name)
        self._go(own)
        self.notices.append(
            f"another program moved branch {name!r} of this session; this conversation goes on as {own!r}"
        )

    def _read_others(self) -> None:
        """Take in the turns and branches that another process has added to this session."""
        ours, fresh = self.tree, self.store.load(self.session)
        for turn in fresh.turns.values():
            if turn.id not in ours.turns:
                ours.put(turn)
        ours.branches = {**ours.branches, **fresh.branches}

    def _go(self, name: str) -> None:
        """Make ``name`` the current branch."""
        self.tree.current = name
        self.store.set_current(self.session, name)

    def _add_branch(self, name: str, tip: TurnId | None) -> str:
        """Make a branch, under another name where a second process has just taken this one; return the name."""
        tree = self.tree
        while not self.store.add_branch(self.session, name, tip):
            self._read_others()
            name = tree.free_name(name)
        tree.branches[name] = tip
        return name

    def _fork_context(self, source: str, name: str) -> None:
        """Let branch ``name`` share all K/V of branch ``source``."""
        context = self.open_context(source)
        if context is not None:
            self.contexts[name] = context.fork(name=name)
            if source in self.first_sent:
                self.first_sent[name] = self.first_sent[source]

    # --- prompts and replies ---------------------------------------------------------------

    def spare_for(self, tip: TurnId | None) -> Context | None:
        """Return a fork for the turns that the current branch would leave behind by moving to ``tip``, else None."""
        tree = self.tree
        context = self.open_context(tree.current)
        if context is None or tree.name_of_left(tip, tree.current) is None:
            return None
        return context.fork(name=tree.free_name(tree.current))

    def context_for(self, ids: Sequence[int]) -> Context:
        """Return the current branch's context, its sequence made equal to ``ids``."""
        name = self.tree.current
        context = self.open_context(name)
        if context is None:
            context = self.contexts[name] = self._nearest(ids, name)
        context.rebase(ids)
        return context

    def _nearest(self, ids: Sequence[int], name: str) -> Context:
        """Return a fork of the context that begins most like ``ids``; an empty one where none does."""
        alive = [context for context in self.contexts.values() if not context.closed]
        best = max(alive, key=lambda context: common_prefix(context.tokens, ids), default=None)
        if best is None or common_prefix(best.tokens, ids) == 0:
            return self.engine.context(name=name)
        return best.fork(name=name)

    def adopt(self, name: str, context: Context) -> None:
        """Give a branch a context that was restored from a snapshot."""
        if name in self.contexts:
            self.contexts[name].close()
        self.contexts[name] = context

    def add_exchange(self, message: Turn, model: str, spare: Context | None) -> tuple[Turn, Turn, str | None]:
        """Write a message (unless it is written) and its empty reply, and move the branch there.

        Returns both, and the branch that keeps what was left behind, if anything was.
        """
        message, reply = self.store.add_exchange(self.session, message, model)
        self.tree.put(message)
        self.tree.put(reply)
        return message, reply, self.move(reply.id, spare=spare)

    def message(self, text: str, parent: TurnId | None) -> Turn:
        """Return a message that is not written yet.

        Raises:
            UsageError: it is empty.
        """
        if not text.strip():
            raise UsageError("the message is empty", "type a message, or /help")
        return replace(_UNWRITTEN, text=text, parent=parent)


_UNWRITTEN = Turn(TurnId(0), None, "user", "")


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many leading items are equal."""
    for at, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return at
    return min(len(left), len(right))

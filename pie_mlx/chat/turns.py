"""The tree of turns: messages with parents, and branches that point at their tips. Pure; no text is ever lost.

A branch is a name for a path from the root. Moving a branch away from a turn that no other branch would reach any
more leaves a new branch there, so undo, retry and edit lose nothing.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Literal, NewType

from pie_mlx.errors import InvalidParameter, UsageError

TurnId = NewType("TurnId", int)
"""A turn, numbered by the store."""

Role = Literal["user", "assistant"]

MAIN = "main"
"""The branch that every conversation begins with."""
_NAME = re.compile(r"[^\W_][\w.-]{0,39}")


class TurnState(enum.Enum):
    """How far a turn has come."""

    STREAMING = "streaming"
    """A reply that is being generated; found in the store, it is one that a crash has cut."""
    PARTIAL = "partial"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. ``reasoning`` is what a model thought before its answer; it is never sent back to the model."""

    id: TurnId
    parent: TurnId | None
    role: Role
    text: str
    reasoning: str = ""
    state: TurnState = TurnState.COMPLETE
    finish_reason: str = ""
    """Why a reply ended: a finish reason, ``cancelled`` or an error's code."""
    model: str = ""
    created_s: float = 0.0
    """Seconds since 1970."""

    @property
    def is_partial(self) -> bool:
        """Whether this is a reply that did not come to its own end."""
        return self.state is not TurnState.COMPLETE


@dataclass(slots=True)
class TurnTree:
    """All turns of one conversation, its branches (name to tip, None is before the first turn), and the current one."""

    turns: dict[TurnId, Turn] = field(default_factory=dict)
    branches: dict[str, TurnId | None] = field(default_factory=lambda: {MAIN: None})
    current: str = MAIN

    @property
    def tip(self) -> TurnId | None:
        """The current branch's last turn."""
        return self.branches[self.current]

    def path(self, tip: TurnId | None) -> list[Turn]:
        """Return the turns from the first to ``tip``."""
        found: list[Turn] = []
        while tip is not None:
            turn = self.turns[tip]
            found.append(turn)
            tip = turn.parent
        return found[::-1]

    def current_path(self) -> list[Turn]:
        """Return the turns of the current branch."""
        return self.path(self.tip)

    def children(self, parent: TurnId | None) -> list[Turn]:
        """Return the turns that answer ``parent`` (None: the first messages), oldest first."""
        return [turn for turn in self.turns.values() if turn.parent == parent]

    def put(self, turn: Turn) -> None:
        """Enter a turn, or what it has become."""
        assert turn.parent is None or turn.parent in self.turns, "a turn's parent is in the tree"
        self.turns[turn.id] = turn

    def update(self, turn: TurnId, **changes: object) -> Turn:
        """Replace fields of a turn; return what it has become."""
        changed = replace(self.turns[turn], **changes)  # type: ignore[arg-type]
        self.turns[turn] = changed
        return changed

    def last_exchange(self) -> tuple[Turn, Turn]:
        """Return the current branch's last message and its reply.

        Raises:
            UsageError: the branch has no turn yet.
        """
        path = self.current_path()
        if len(path) < 2:
            raise UsageError("there is no turn to go back to", "type a message first")
        assert path[-2].role == "user", "every reply answers a message"
        assert path[-1].role == "assistant", "every message has a reply"
        return path[-2], path[-1]

    def name_of_left(self, tip: TurnId | None, name: str) -> str | None:
        """Return a name for what only branch ``name`` reaches, were it to move to ``tip``; None: there is nothing."""
        old = self.branches[name]
        if old is None:
            return None
        reached = itertools.chain([tip], (other for key, other in self.branches.items() if key != name))
        if any(turn.id == old for other in reached for turn in self.path(other)):
            return None
        return self.free_name(name)

    def free_name(self, like: str) -> str:
        """Return a name that no branch has, such as ``main.2`` for ``main``."""
        stem = re.sub(r"\.\d+$", "", like)
        return next(name for number in itertools.count(2) if (name := f"{stem}.{number}") not in self.branches)

    def check_new_name(self, name: str) -> str:
        """Return ``name`` if a branch may get it.

        Raises:
            InvalidParameter: it is not a plain word.
            UsageError: a branch has it already.
        """
        if not _NAME.fullmatch(name):
            raise InvalidParameter("branch name", name, "1 to 40 letters, digits, dots, dashes or underscores")
        if name in self.branches:
            raise UsageError(f"there is a branch {name!r} already", f"/switch {name}, or choose another name")
        return name

    def find_branch(self, name: str) -> str:
        """Return the branch called ``name``, or the only one that begins so.

        Raises:
            UsageError: there is none, or several; says which there are.
        """
        if name in self.branches:
            return name
        found = [branch for branch in self.branches if branch.startswith(name)] if name else []
        if len(found) == 1:
            return found[0]
        near = found or get_close_matches(name, self.branches, n=1, cutoff=0.5)
        suggestion = f"did you mean {near[0]!r}?" if near else f"the branches are {', '.join(self.branches)}"
        raise UsageError(f"there is no branch {name!r}", suggestion)

    def tips_at(self, turn: TurnId | None) -> list[str]:
        """Return the branches whose tip is ``turn``."""
        return [name for name, tip in self.branches.items() if tip == turn]


def exchanges(path: Iterable[Turn]) -> Iterator[tuple[Turn, Turn | None]]:
    """Yield each message of a path with its reply; None for a last message without one."""
    message: Turn | None = None
    for turn in path:
        if turn.role == "user":
            message = turn
        elif message is not None:
            yield message, turn
            message = None
    if message is not None:
        yield message, None

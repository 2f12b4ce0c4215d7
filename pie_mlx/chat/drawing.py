"""The tree of a conversation as lines of text: one line an exchange, branches beside the turn they end in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pie_mlx.chat.turns import Turn, TurnId, TurnTree

_FENCE = re.compile(r"^ *(?:```|~~~).*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TreeLine:
    """One exchange: the drawn stem, a preview of message and reply, the branches that end here."""

    stem: str
    turn: TurnId
    text: str
    branches: tuple[str, ...]
    is_on_path: bool
    """Whether the current branch goes through it."""
    is_current: bool
    """Whether the current branch ends here."""
    is_partial: bool

    def __str__(self) -> str:
        """Return the line as plain text; the mark of the current place is no colour."""
        mark = "●" if self.is_current else "○"
        return f"{self.stem}{mark} {self.text}{' (partial)' if self.is_partial else ''}{self.names}"

    @property
    def names(self) -> str:
        """Return the end of the line: the branches in brackets."""
        return f"  [{', '.join(self.branches)}]" if self.branches else ""


def draw_tree(tree: TurnTree, *, preview: int = 32) -> list[TreeLine]:
    """Return the lines of a tree, first messages leftmost; previews have ``preview`` characters at most.

    A chain of exchanges stays in its column; only where it divides does it go to the right.
    """
    children: dict[TurnId | None, list[Turn]] = {}
    for turn in tree.turns.values():
        children.setdefault(turn.parent, []).append(turn)
    on_path = {turn.id for turn in tree.current_path()}
    return list(_walk(tree, children, on_path, preview))


def _walk(
    tree: TurnTree, children: dict[TurnId | None, list[Turn]], on_path: set[TurnId], preview: int
) -> Iterator[TreeLine]:
    """Yield the lines depth first, without recursion: a conversation may be longer than Python's stack."""
    roots = _replies(children, None)
    stack = [(reply, "", _join(len(roots), at)) for at, reply in enumerate(roots)][::-1]
    while stack:
        reply, indent, joint = stack.pop()
        yield _line(tree, reply, indent + joint, on_path, preview)
        nexts = _replies(children, reply.id)
        deeper = indent + {"├─ ": "│  ", "└─ ": "   ", "": ""}[joint]
        stack += [(child, deeper, _join(len(nexts), at)) for at, child in enumerate(nexts)][::-1]


def _join(count: int, at: int) -> str:
    """Return the stem before one of ``count`` siblings; an only child continues its parent's column."""
    if count == 1:
        return ""
    return "└─ " if at == count - 1 else "├─ "


def _replies(children: dict[TurnId | None, list[Turn]], parent: TurnId | None) -> list[Turn]:
    """Return the replies one exchange below ``parent``."""
    return [reply for message in children.get(parent, []) for reply in children.get(message.id, [])]


def _line(tree: TurnTree, reply: Turn, stem: str, on_path: set[TurnId], preview: int) -> TreeLine:
    """Describe one exchange."""
    assert reply.parent is not None, "a reply answers a message"
    text = f"{preview_of(tree.turns[reply.parent].text, preview)} → {preview_of(reply.text, preview)}"
    is_current = tree.tip == reply.id
    return TreeLine(
        stem, reply.id, text, tuple(tree.tips_at(reply.id)), reply.id in on_path, is_current, reply.is_partial
    )


def preview_of(text: str, length: int) -> str:
    """Return the beginning of a text on one line, without the fences of its code."""
    line = " ".join(_FENCE.sub("", text).split())
    return (line if len(line) <= length else line[: length - 1] + "…") or "(nothing)"

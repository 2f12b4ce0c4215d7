"""Splits streamed Markdown into blocks that are finished, and the tail that is not: each character is looked at once.

A finished block never changes again, so it can be printed once. Code is finished line by line and lists item by item:
neither can grow taller than the screen while it waits.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([^`]*)$")
_ITEM = re.compile(r"^ {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_HEADING = re.compile(r"^ {0,3}#{1,6}(?:\s|$)")
_RULE = re.compile(r"^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$")


class Kind(enum.Enum):
    """What a block is."""

    TEXT = "text"
    ITEM = "item"
    FENCE = "fence"
    """The line that opens or closes a code block."""
    CODE = "code"
    """One line of code."""


@dataclass(frozen=True, slots=True)
class Block:
    """A finished block: its source without the last line break."""

    kind: Kind
    text: str
    language: str = ""
    """For code: what its fence says."""
    has_gap: bool = False
    """Whether it stands apart from the block before it."""


@dataclass(frozen=True, slots=True)
class _Fence:
    """An open code block."""

    mark: str
    indent: int
    language: str


class BlockSplitter:
    """Takes text piece by piece; gives finished blocks, and keeps the tail."""

    def __init__(self) -> None:
        """Start with no text."""
        self._partial = ""
        self._lines: list[str] = []
        self._kind = Kind.TEXT
        self._fence: _Fence | None = None
        self._saw_gap = False
        self._has_any = False
        self._ready: list[Block] = []

    @property
    def tail(self) -> str:
        """The source that is not in a finished block yet."""
        return "".join(f"{line}\n" for line in self._lines) + self._partial

    def push(self, text: str) -> list[Block]:
        """Take the next piece; return the blocks that it finished."""
        head, newline, rest = text.rpartition("\n")
        if not newline:
            self._partial += text
            return []
        lines = (self._partial + head).split("\n")
        self._partial = rest
        for line in lines:
            self._take(line)
        return self._take_ready()

    def finish(self) -> list[Block]:
        """Return what is left; an open code block just ends."""
        if self._partial:
            self._take(self._partial)
            self._partial = ""
        self._flush()
        return self._take_ready()

    def _take_ready(self) -> list[Block]:
        ready, self._ready = self._ready, []
        return ready

    def _take(self, line: str) -> None:
        """Take one whole line."""
        if self._fence is not None:
            self._take_code(line, self._fence)
        elif (opened := _FENCE.match(line)) is not None:
            self._flush()
            language = opened[3].split()[0] if opened[3].split() else ""
            self._fence = _Fence(opened[2], len(opened[1]), language)
            self._emit(Kind.FENCE, line.strip())
        else:
            self._take_text(line)

    def _take_code(self, line: str, fence: _Fence) -> None:
        """Take a line inside a code block."""
        stripped = line.strip()
        if stripped.startswith(fence.mark) and not stripped.strip(fence.mark[0]):
            self._fence = None
            self._emit(Kind.FENCE, stripped)
            return
        # A fence inside a list item is indented, and its lines are too.
        indent = min(fence.indent, len(line) - len(line.lstrip(" ")))
        self._emit(Kind.CODE, line[indent:], fence.language)

    def _take_text(self, line: str) -> None:
        """Take a line outside code."""
        if not line.strip():
            self._take_blank()
        elif _HEADING.match(line) or (_RULE.match(line) and not (self._lines and self._kind is Kind.TEXT)):
            self._flush()
            self._emit(Kind.TEXT, line)
        elif _ITEM.match(line):
            self._flush()
            self._kind = Kind.ITEM
            self._lines.append(line)
        else:
            if self._lines and not self._lines[-1] and not line.startswith(("  ", "\t")):
                self._flush()
            self._lines.append(line)

    def _take_blank(self) -> None:
        """Take an empty line: it ends a paragraph, but a list item may go on behind it, indented."""
        if self._lines and self._kind is Kind.ITEM:
            self._lines.append("")
            return
        self._flush()
        self._saw_gap = True

    def _flush(self) -> None:
        """Finish the open block."""
        trailing = 0
        while self._lines and not self._lines[-1]:
            self._lines.pop()
            trailing += 1
        if self._lines:
            lines, self._lines = self._lines, []
            self._emit(self._kind, "\n".join(lines))
        self._kind = Kind.TEXT
        self._saw_gap = self._saw_gap or trailing > 0

    def _emit(self, kind: Kind, text: str, language: str = "") -> None:
        """Finish a block that is whole."""
        self._ready.append(Block(kind, text, language, has_gap=self._saw_gap and self._has_any))
        self._saw_gap = False
        self._has_any = True

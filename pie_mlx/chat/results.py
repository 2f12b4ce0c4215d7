"""What a slash command comes to; the front end decides how each is shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pie_mlx.chat.drawing import TreeLine
from pie_mlx.chat.reply import Reply


@dataclass(frozen=True, slots=True)
class Said:
    """Something to show."""

    text: str


@dataclass(frozen=True, slots=True)
class Generating:
    """A reply has begun: show it as it comes."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class EditPrompt:
    """Put ``text`` into the input; what is sent from there goes to :meth:`ChatSession.edit`."""

    text: str


@dataclass(frozen=True, slots=True)
class TreeDrawn:
    """The conversation as a tree."""

    lines: tuple[TreeLine, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """The current branch has changed: show where it now ends."""

    branch: str
    text: str


@dataclass(frozen=True, slots=True)
class Copied:
    """Text for the clipboard; ``sequence`` asks a terminal to copy it, None if it is too long for that."""

    text: str
    sequence: str | None


@dataclass(frozen=True, slots=True)
class Exported:
    """A file was written."""

    path: Path
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The user wants to leave."""


Result: TypeAlias = Said | Generating | EditPrompt | TreeDrawn | Moved | Copied | Exported | Leave

"""The errors of a run, besides the engine's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pie_mlx.errors import PieError


@dataclass(eq=False)
class RecordedError(PieError):
    """An error that a trace tells of; it happened to the run that was gone on with."""

    code: ClassVar[str] = "recorded"
    told: str

    @property
    def message(self) -> str:
        """The error as it was told."""
        return self.told


@dataclass(eq=False)
class NothingProposedError(PieError):
    """A run without a node: nothing at all followed the root."""

    code: ClassVar[str] = "nothing_proposed"
    task: str

    @property
    def message(self) -> str:
        """Name the task."""
        return f"task {self.task!r} was given no first step at all: there is nothing to search"


@dataclass(eq=False)
class CrashedError(PieError):
    """Code that a run called raised what is no typed error: a user's own task, for instance."""

    code: ClassVar[str] = "crashed"
    kind: str
    told: str

    @property
    def message(self) -> str:
        """Name the exception."""
        return f"the task or a listener raised {self.kind}: {self.told}"

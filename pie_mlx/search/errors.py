"""The errors of a search: a tree that is moved wrongly, a trace that cannot be read, a task that is not one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pie_mlx.errors import PieError, UsageError


@dataclass(eq=False)
class TreeError(PieError):
    """A node was named that is not there, or moved in a way that its status does not allow."""

    code: ClassVar[str] = "tree"
    node: str
    reason: str

    @property
    def message(self) -> str:
        """Name the node and what is wrong."""
        return f"node {self.node}: {self.reason}"


NO_TRACE = "this is no trace of a search"
"""The reason for a file whose first line cannot be read."""


@dataclass(eq=False)
class TraceError(PieError):
    """A trace file cannot be read or written; names the file and, where there is one, the line."""

    code: ClassVar[str] = "trace"
    path: str
    line: int | None
    reason: str

    @property
    def message(self) -> str:
        """Name file, line and reason."""
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.reason}"


class NewerTraceError(TraceError):
    """The trace was written by a newer version, in words that this one does not know."""

    code: ClassVar[str] = "trace_newer"

    @property
    def hint(self) -> str | None:
        """A newer program reads it."""
        return "update pie-mlx to read this trace"


class TaskError(UsageError):
    """A task has no such name or setting, or a user's task file does not hold a task."""

    code: ClassVar[str] = "task"

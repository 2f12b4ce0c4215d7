r"""The trace of a run: an append-only JSONL file, one event a line, written through at once.

The first line is the :class:`~pie_mlx.search.trace_events.Header`. A run that is killed leaves at most its last
line torn; reading drops that line and says so. Lines are ASCII (text is ``\u``-escaped), so that no text, lone
surrogates and line separators included, can break a line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from msgspec.structs import replace

from pie_mlx.errors import Fact, UsageError
from pie_mlx.search.errors import NO_TRACE, NewerTraceError, TraceError, TreeError
from pie_mlx.search.replay import apply, replay
from pie_mlx.search.trace_events import (
    EVENTS,
    SCHEMA,
    Accepted,
    AlarmRaised,
    Deduplicated,
    Edited,
    Event,
    Finished,
    FinishReason,
    Header,
    Inserted,
    Locked,
    NodeDone,
    NodeEvent,
    NodeStarted,
    Noticed,
    PagesRead,
    Paused,
    Pruned,
    Resumed,
    RunStarted,
    Scored,
    Selected,
    Stepped,
    TextAdded,
    Verdict,
)
from pie_mlx.search.trace_json import (
    EventError,
    UnknownEventError,
    event_from_json,
    header_from_json,
    read_event,
    read_header,
)
from pie_mlx.search.tree import Tree

__all__ = [
    "EVENTS",
    "SCHEMA",
    "Accepted",
    "AlarmRaised",
    "Deduplicated",
    "Edited",
    "Event",
    "EventError",
    "FinishReason",
    "Finished",
    "Header",
    "Inserted",
    "Locked",
    "NodeDone",
    "NodeEvent",
    "NodeStarted",
    "Noticed",
    "PagesRead",
    "Paused",
    "Pruned",
    "Resumed",
    "RunStarted",
    "Scored",
    "Selected",
    "Stamper",
    "Stepped",
    "TextAdded",
    "Trace",
    "TraceWriter",
    "UnknownEventError",
    "Verdict",
    "apply",
    "event_from_json",
    "header_from_json",
    "parse_line",
    "read_event",
    "read_header",
    "read_trace",
    "replay",
]

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Event)


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as it was read."""

    path: Path
    header: Header
    events: tuple[Event, ...]
    torn: bool
    """Whether the last line was incomplete and dropped."""
    num_bytes: int
    """Length of the complete lines; appending goes on there."""

    @property
    def finished(self) -> Finished | None:
        """The terminal event, None where the run was killed or is still running."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Finished) else None

    def tree(self) -> Tree:
        """Fold the events into a tree.

        Raises:
            TraceError: an event contradicts those before it; names its line.
        """
        tree = Tree()
        for event in self.events:
            try:
                apply(tree, event)
            except TreeError as error:
                raise TraceError(str(self.path), event.seq + 1, error.message) from error
        return tree


class Stamper:
    """Gives events their ``seq`` and ``t_ns``."""

    def __init__(self, seq: int = 0, t_ns: int = 0, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Go on after ``seq`` and ``t_ns``; ``clock`` gives nanoseconds."""
        self._seq = seq
        self._clock = clock
        self._zero = clock() - t_ns

    def stamp(self, event: _E) -> _E:
        """Return the event with its place in the run."""
        self._seq += 1
        return self.stamp_aside(event)

    def stamp_aside(self, event: _E) -> _E:
        """Return the event with the time and the number of the last one."""
        return replace(event, seq=self._seq, t_ns=max(self._clock() - self._zero, 0))


class TraceWriter:
    """Writes a trace: each event is in the file before :meth:`write` returns."""

    def __init__(self, path: Path, file: int, stamper: Stamper) -> None:
        """Write to an open file descriptor; see :meth:`create` and :meth:`resume`."""
        self.path = path
        self._file = file
        self._stamper = stamper
        self._finished = False
        self._closed = False

    @classmethod
    def create(cls, path: Path, header: Header, *, clock: Callable[[], int] = time.monotonic_ns) -> TraceWriter:
        """Create the file and write the header.

        Raises:
            UsageError: the file exists; a trace is never overwritten.
            TraceError: it cannot be created.
        """
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError as error:
            raise UsageError(f"{path} exists already", f"choose another name, or: pie-mlx tot resume {path}") from error
        except OSError as error:
            raise TraceError(str(path), None, f"cannot be created: {error.strerror}") from error
        writer = cls(path, file, Stamper(clock=clock))
        writer._append(header.to_json())
        return writer

    @classmethod
    def resume(cls, trace: Trace, *, clock: Callable[[], int] = time.monotonic_ns) -> TraceWriter:
        """Go on with a trace that was read: a torn last line is cut off first.

        Raises:
            UsageError: the run has finished.
            TraceError: the file cannot be written.
        """
        path = trace.path
        if trace.finished is not None:
            raise UsageError(f"{path}: the run has finished ({trace.finished.reason})", f"pie-mlx tot show {path}")
        try:
            file = os.open(path, os.O_RDWR | os.O_APPEND)
            os.ftruncate(file, trace.num_bytes)
            whole = os.pread(file, 1, trace.num_bytes - 1) == b"\n"
        except OSError as error:
            raise TraceError(str(path), None, f"cannot be written: {error.strerror}") from error
        last = trace.events[-1] if trace.events else Noticed(text="")
        writer = cls(path, file, Stamper(last.seq, last.t_ns, clock))
        if not whole:
            writer._write_all(b"\n")
        return writer

    def write(self, event: _E) -> _E:
        """Stamp an event, append it and return it.

        Raises:
            TraceError: the file cannot be written, or the event cannot be told in JSON.
        """
        assert not self._finished, "a run has exactly one finish, and it is the last event"
        stamped = self._stamper.stamp(event)
        self._append(stamped.to_json())
        self._finished = isinstance(event, Finished)
        return stamped

    def stamp_aside(self, event: _E) -> _E:
        """Return an event with its time and the number of the last one: it is shown, but not part of the trace."""
        return self._stamper.stamp_aside(event)

    def _append(self, line: dict[str, Fact]) -> None:
        try:
            text = json.dumps(line, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise TraceError(str(self.path), None, f"cannot be told in JSON: {error}") from error
        self._write_all(text.encode("ascii") + b"\n")

    def _write_all(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise TraceError(str(self.path), None, f"cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Close the file; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            os.close(self._file)

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()


def read_trace(path: Path) -> Trace:
    """Read a trace; a torn last line is dropped, and :attr:`Trace.torn` says so.

    Raises:
        UsageError: there is no such file.
        NewerTraceError: it holds words of a newer version.
        TraceError: it is not a trace, or a line is damaged; names the line.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"{path}: there is no such file") from error
    except OSError as error:
        raise TraceError(str(path), None, f"cannot be read: {error.strerror}") from error
    *lines, tail = content.split(b"\n")
    torn = bool(tail) and not _is_json(tail)
    if tail and not torn:
        lines.append(tail)
    if not lines:
        raise TraceError(str(path), 1, "there is no complete header")
    header = parse_line(path, 1, lines[0], read_header)
    events = [parse_line(path, number, line, read_event) for number, line in enumerate(lines[1:], start=2)]
    _check_order(path, events)
    return Trace(path, header, tuple(events), torn, len(content) - (len(tail) if torn else 0))


def _is_json(line: bytes) -> bool:
    """Whether a line is whole: no proper prefix of a JSON object is JSON."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def parse_line(path: Path, number: int, line: bytes, read: Callable[[bytes], _T]) -> _T:
    """Return what ``read`` makes of the line at ``number``, from 1, of a trace.

    Raises:
        NewerTraceError: it holds words of a newer version.
        TraceError: it is damaged, or says what it must not.
    """
    try:
        return read(line)
    except UnknownEventError as error:
        raise NewerTraceError(str(path), number, str(error)) from error
    except (ValueError, RecursionError) as error:
        unread = "the line is damaged" if number > 1 else NO_TRACE
        reason = str(error) if isinstance(error, EventError) else unread
        raise TraceError(str(path), number, reason) from error


def _check_order(path: Path, events: list[Event]) -> None:
    """Refuse a gap in ``seq``, and anything after the finish."""
    for number, event in enumerate(events, start=1):
        if event.seq != number:
            raise TraceError(str(path), number + 1, f"event {event.seq} where {number} must follow")
        if isinstance(event, Finished) and number < len(events):
            raise TraceError(str(path), number + 2, "an event after the finish")

"""Read a trace file for the screen: at once, or line by line while it is still being written."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pie_mlx.errors import PieError
from pie_mlx.search.errors import TraceError
from pie_mlx.search.trace import Event, Finished, Header, parse_line, read_event, read_header
from pie_mlx.tui.bridge import Bridge, describe
from pie_mlx.tui.bulk import collector_paused

_T = TypeVar("_T")
_BLOCK_BYTES = 1 << 18
_LARGEST_BLOCK = 8 << 20
"""A block is twice as long as the one before it, up to this: the first rows come soon, the last ones without delay."""
LOOK_S = 0.2
"""Seconds between two looks at a file that grows."""


def start_reading(path: Path, bridge: Bridge, *, live: bool) -> threading.Thread:
    """Read ``path`` on a thread of its own, offering what it holds to ``bridge``."""
    reader = threading.Thread(target=_read, args=(path, bridge), kwargs={"live": live}, daemon=True)
    reader.start()
    return reader


def _read(path: Path, bridge: Bridge, *, live: bool) -> None:
    """Offer the whole file, or follow it; a file that cannot be read is said on the screen."""
    try:
        if live:
            follow(path, bridge)
        else:
            read_all(path, bridge)
    except PieError as error:
        bridge.offer_fault(describe(error))
    except OSError as error:
        bridge.offer_fault(f"{path}: {error.strerror}")


def read_all(path: Path, bridge: Bridge) -> None:
    """Offer what a file holds, block by block, so that the first rows show at once.

    Raises:
        TraceError: a line is damaged; names it.
        OSError: the file cannot be read.
    """
    lines, length = TraceLines(path), _BLOCK_BYTES
    with path.open("rb") as file, collector_paused():
        while content := file.read(length):
            length = min(2 * length, _LARGEST_BLOCK)
            bridge.offer_many(*lines.take(content))
            if bridge.is_closed:
                return
        # The last line may lack its end; what is no JSON was cut by a crash.
        if lines.is_torn:
            bridge.offer_note("the trace's last line is torn: the run was killed while writing it")
        elif lines.has_rest:
            bridge.offer_many(*lines.take(b"\n"))
    if lines.number == 0:
        raise TraceError(str(path), 1, "there is no complete header")


def follow(path: Path, bridge: Bridge) -> None:
    """Offer events as they are written, until the run's finish or the screen's close.

    Raises:
        TraceError: a complete line is damaged; names it.
        OSError: the file cannot be read.
    """
    while not path.exists():
        if bridge.wait_closed(LOOK_S):
            return
    lines = TraceLines(path)
    with path.open("rb") as file:
        while not lines.is_over:
            while content := file.read(_BLOCK_BYTES):
                bridge.offer_many(*lines.take(content))
            if bridge.wait_closed(0 if lines.is_over else LOOK_S):
                return


class TraceLines:
    """Puts pieces of a file together to lines; the last, incomplete one waits."""

    def __init__(self, path: Path) -> None:
        """Name the file, for errors."""
        self._path = path
        self._rest = b""
        self.number = 0
        """How many lines were complete."""
        self.is_over = False
        """Whether the run's finish was read."""

    @property
    def has_rest(self) -> bool:
        """Whether something stands behind the last line's end."""
        return bool(self._rest)

    @property
    def is_torn(self) -> bool:
        """Whether a line is there of which the end is missing: no proper prefix of a JSON object is JSON."""
        if not self._rest:
            return False
        try:
            json.loads(self._rest)
        except ValueError:
            return True
        return False

    def take(self, content: bytes) -> tuple[list[Event], Header | None]:
        """Return what the complete lines say; the first one of all is the header.

        Raises:
            TraceError: a line is damaged, missing, or behind the finish.
        """
        *whole, self._rest = (self._rest + content).split(b"\n")
        header: Header | None = None
        if whole and not self.number:
            header = self._checked(whole.pop(0), read_header)
        return self._events(whole), header

    def _events(self, lines: list[bytes]) -> list[Event]:
        """Return the events of complete lines, each in its place."""
        events: list[Event] = []
        for line in lines:
            if self.is_over and not line:
                continue
            event = self._checked(line, read_event)
            if event.seq != self.number - 1:
                raise self._error(f"event {event.seq} where {self.number - 1} must follow")
            if self.is_over:
                raise self._error("an event after the finish")
            self.is_over = type(event) is Finished
            events.append(event)
        return events

    def _checked(self, line: bytes, read: Callable[[bytes], _T]) -> _T:
        """Return what a line says.

        Raises:
            TraceError: it says nothing, or what it must not.
        """
        self.number += 1
        return parse_line(self._path, self.number, line, read)

    def _error(self, reason: str) -> TraceError:
        """Return an error that names the line that was read last."""
        return TraceError(str(self._path), self.number, reason)

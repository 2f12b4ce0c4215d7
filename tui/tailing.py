"""Read a trace file for the screen: at once, or line by line while it is still being written."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

from pie_mlx.errors import PieError
from pie_mlx.search.errors import TraceError
from pie_mlx.search.trace import Event, Finished, Header, event_from_json, header_from_json, read_trace
from pie_mlx.tui.bridge import Bridge, describe

LOOK_S = 0.2
"""Seconds between two looks at a file that grows."""


def start_reading(path: Path, bridge: Bridge, *, live: bool) -> threading.Thread:
    """Read ``path`` on a thread of its own, offering what it holds to ``bridge``."""
    reader = threading.Thread(target=_read, args=(path, bridge), kwargs={"live": live}, name="pie-tui-trace", daemon=True)
    reader.start()
    return reader


def _read(path: Path, bridge: Bridge, *, live: bool) -> None:
    """Offer the whole file, or follow it; a file that cannot be read is said on the screen."""
    try:
        if live:
            follow(path, bridge)
            return
        trace = read_trace(path)
        bridge.offer_many(list(trace.events), trace.header)
        if trace.torn:
            bridge.offer_note("the trace's last line is torn: the run was killed while writing it")
    except PieError as error:
        bridge.offer_fault(describe(error))
    except OSError as error:
        bridge.offer_fault(f"{path}: {error.strerror}")


def follow(path: Path, bridge: Bridge) -> None:
    """Offer events as they are written, until the run's finish or the screen's close.

    Raises:
        TraceError: a complete line is damaged; names it.
        OSError: the file cannot be read.
    """
    while not path.exists():
        if bridge.wait_closed(LOOK_S):
            return
    lines = _Lines(path)
    with path.open("rb") as file:
        while True:
            header, events = lines.take(file.read())
            if header is not None or events:
                bridge.offer_many(events, header)
            if any(isinstance(event, Finished) for event in events) or bridge.wait_closed(LOOK_S):
                return


class _Lines:
    """Puts pieces of a file together to lines; the last, incomplete one waits."""

    def __init__(self, path: Path) -> None:
        """Name the file, for errors."""
        self._path = path
        self._rest = b""
        self._number = 0

    def take(self, content: bytes) -> tuple[Header | None, list[Event]]:
        """Return what the complete lines say; the first one of all is the header."""
        *whole, self._rest = (self._rest + content).split(b"\n")
        header: Header | None = None
        events: list[Event] = []
        for number, value in self._parsed(whole):
            try:
                if number == 1:
                    header = header_from_json(value)
                else:
                    events.append(event_from_json(value))
            except PieError as error:
                raise TraceError(str(self._path), number, error.message) from error
            except ValueError as error:
                raise TraceError(str(self._path), number, str(error)) from error
        return header, events

    def _parsed(self, lines: list[bytes]) -> Iterator[tuple[int, object]]:
        """Yield each line's number and JSON."""
        for line in lines:
            self._number += 1
            try:
                yield self._number, json.loads(line)
            except ValueError as error:
                raise TraceError(str(self._path), self._number, "the line is damaged") from error

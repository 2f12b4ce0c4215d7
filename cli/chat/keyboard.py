"""The keyboard between two prompts: Ctrl-C and Ctrl-D stop a reply, all else waits for the next message."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import signal
import termios
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Self

_CTRL_C, _CTRL_D, _ESCAPE = "\x03", "\x04", "\x1b"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
_READ_BYTES = 4096


class Interrupts:
    """Counts Ctrl-C instead of letting it end the program; in force within its ``with``."""

    def __init__(self) -> None:
        """Start with none."""
        self._seen = threading.Event()

    def __enter__(self) -> Self:
        """Take the signal over."""
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signal back."""
        signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        """Only set a flag: the handler may run inside any lock of ours."""
        self._seen.set()

    def clear(self) -> None:
        """Forget what was pressed before the work that may now be interrupted."""
        self._seen.clear()

    def take(self) -> bool:
        """Whether there was one since the last look."""
        was_seen = self._seen.is_set()
        self._seen.clear()
        return was_seen


class Keyboard:
    """What is typed on a terminal between two prompts."""

    def __init__(self, descriptor: int, interrupts: Interrupts) -> None:
        """Read from the terminal ``descriptor``."""
        self._descriptor = descriptor
        self._interrupts = interrupts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._typed = ""
        self._num_ends = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Let keys arrive at once and unseen; Ctrl-C still is a signal. The terminal is as before afterwards."""
        before = termios.tcgetattr(self._descriptor)
        quiet = termios.tcgetattr(self._descriptor)
        quiet[0] &= ~termios.ICRNL
        quiet[3] &= ~(termios.ICANON | termios.ECHO)
        # Without it, Ctrl-C drops what was written and not yet shown: the tail would be a screen that we do not know.
        quiet[3] |= termios.NOFLSH
        quiet[6][termios.VMIN], quiet[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._descriptor, termios.TCSANOW, quiet)
        self._interrupts.clear()
        self._num_ends = 0
        try:
            yield
        finally:
            self._read()
            termios.tcsetattr(self._descriptor, termios.TCSANOW, before)

    def wants_stop(self) -> bool:
        """Whether Ctrl-C, Ctrl-D or Escape was pressed since the last look."""
        pressed = self._read()
        return self._interrupts.take() or pressed

    @property
    def wants_to_leave(self) -> bool:
        """Whether Ctrl-D was pressed twice: once to stop, once to leave."""
        return self._num_ends > 1

    def take_typed(self) -> str:
        """Return what was typed ahead, as the beginning of the next message."""
        typed, self._typed = self._typed, ""
        return typed

    def _read(self) -> bool:
        """Take in what was typed; return whether it asks to stop."""
        text = ""
        while select.select([self._descriptor], [], [], 0)[0]:
            chunk = os.read(self._descriptor, _READ_BYTES)
            if not chunk:
                break
            text += self._decoder.decode(chunk)
        self._num_ends += text.count(_CTRL_D)
        stops = _CTRL_C in text or _CTRL_D in text or text == _ESCAPE
        plain = _SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
        self._typed += "".join(sign for sign in plain if sign in "\n\t" or sign.isprintable())
        return stops

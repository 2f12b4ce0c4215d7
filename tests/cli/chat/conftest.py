"""A real terminal for the chat: a pty with a program in it, and an emulator that shows what a person would see."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyte
import pytest

_FAKE = Path(__file__).with_name("fake_chat.py")
_SCRIPTED = Path(__file__).parents[2] / "engine" / "chat" / "scripted.py"
_PATIENCE_S = 60.0


class _Answering(pyte.HistoryScreen):
    """An emulated screen with its history, which answers when it is asked where its cursor is."""

    def __init__(self, answer: Callable[[str], None], columns: int, rows: int) -> None:
        super().__init__(columns, rows, history=5000, ratio=1)
        self._answer_with = answer

    def write_process_input(self, data: str) -> None:
        """Type the answer."""
        self._answer_with(data)


class Terminal:
    """A program in a pty. ``text`` is all it wrote, ``screen`` what is to be seen now."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], *, columns: int, rows: int) -> None:
        """Start ``command``."""
        self.raw = b""
        self.screen = _Answering(self.send, columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        self._set_size(columns, rows)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            cwd=environment["PWD"],
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  (nothing else gives a child a terminal)
        )
        os.close(slave)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        """Change the window."""
        self.screen.resize(rows, columns)
        self._set_size(columns, rows)
        os.killpg(self.process.pid, signal.SIGWINCH)

    def send(self, text: str) -> None:
        """Type."""
        self.send_bytes(text.encode())

    def send_bytes(self, sent: bytes) -> None:
        """Type what may be no text."""
        os.write(self._master, sent)

    def read(self, seconds: float = 0.05) -> None:
        """Take in what the program writes within ``seconds``."""
        until = time.monotonic() + seconds
        while select.select([self._master], [], [], max(0.0, until - time.monotonic()))[0]:
            try:
                chunk = os.read(self._master, 65536)
            except OSError:
                return
            if not chunk:
                return
            self.raw += chunk
            self._stream.feed(chunk)
            if time.monotonic() > until:
                return

    def wait_for(self, ready: Callable[[], bool], what: str) -> None:
        """Read until ``ready``."""
        until = time.monotonic() + _PATIENCE_S
        while not ready():
            assert time.monotonic() < until, f"no {what} on the screen:\n" + "\n".join(self.lines()[-40:])
            assert self.process.poll() is None or self._rest(), f"the program ended before {what}: {self.raw[-2000:]!r}"
            self.read()

    def _rest(self) -> bool:
        """Read what an ended program left; whether there was anything."""
        before = len(self.raw)
        self.read()
        return len(self.raw) > before

    def expect(self, text: str) -> None:
        """Read until ``text`` is among the lines."""
        self.wait_for(lambda: any(text in line for line in self.lines()), repr(text))

    def prompt(self) -> None:
        """Read until the program asks for a message: the last line but the footer begins with a mark."""
        self.wait_for(self._is_asking, "prompt")

    def _is_asking(self) -> bool:
        line = self.screen.display[self.screen.cursor.y].rstrip()
        return line.endswith(">") and self.screen.cursor.x == len(line) + 1

    def say(self, text: str) -> None:
        """Send a message and wait for the next prompt."""
        self.send(text)
        self.wait_for(lambda: not self._is_asking(), "echo of the message")
        self.send("\r")
        self.prompt()

    def lines(self) -> list[str]:
        """Return every line, those scrolled away too."""
        above = ["".join(row[x].data for x in range(self.screen.columns)) for row in self.screen.history.top]
        return [line.rstrip() for line in (*above, *self.screen.display)]

    def text(self) -> str:
        """Return all lines as one text."""
        return "\n".join(self.lines())

    def modes(self) -> list[int]:
        """Return the terminal's local modes: whether it echoes, edits lines and makes signals."""
        flags = termios.tcgetattr(self._master)[3]
        return [flags & mode for mode in (termios.ECHO, termios.ICANON, termios.ISIG)]

    def leave(self) -> int:
        """Press Ctrl-D and return the exit code."""
        self.send("\x04")
        return self.end()

    def end(self) -> int:
        """Wait for the end of the program."""
        until = time.monotonic() + _PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < until, "the program does not end:\n" + self.text()
            self.read()
        self.read()
        return self.process.returncode

    def close(self) -> None:
        """End the program if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a plain terminal."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    return {
        **kept,
        "TERM": "xterm-256color",
        "PIE_MLX_STATE_DIR": str(tmp_path / "state"),
        "PWD": str(tmp_path),  # what is exported without a path lands here
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }


@pytest.fixture
def open_terminal(environment: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    """Return a function that starts a command in a terminal; without one, the chat on the scripted device."""
    with ExitStack() as stack:

        def start(command: Sequence[str] = (), *, columns: int = 80, rows: int = 24, **variables: str) -> Terminal:
            chosen = command or (sys.executable, str(_FAKE), str(_SCRIPTED))
            terminal = Terminal(chosen, {**environment, **variables}, columns=columns, rows=rows)
            stack.callback(terminal.close)
            return terminal

        yield start

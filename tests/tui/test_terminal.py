"""On a real terminal: whatever ends the workbench, the terminal is as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

_CRASHING = """
import sys
from pathlib import Path
from pie_mlx.tui.app import make_app
from pie_mlx.tui.desk import Sources
app = make_app(Sources(trace=Path(sys.argv[1])))
async def crash():
    raise RuntimeError("a fault on purpose")
app.action_help = crash
app.run()
"""
_DYING = """
import threading
from pie_mlx.backend.fake import FakeBackend
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.errors import EngineDead
from pie_mlx.tui.app import make_app
from pie_mlx.tui.desk import Sources
engine = Engine.start(lambda: FakeBackend(), EngineSettings(pool_pages=32, page_size=8), None)
threading.Timer(0.5, lambda: engine.kill(EngineDead("the device is gone"))).start()
make_app(Sources(engine=engine)).run()
engine.close()
"""
_RESETS = (b"\x1b[?1049l", b"\x1b[?1000l", b"\x1b[?1003l", b"\x1b[?25h", b"\x1b[?2004l")
"""Normal screen, no mouse reports, the cursor shown, no bracketed paste."""


class Terminal:
    """A program in a pty of 100 by 30."""

    def __init__(self, command: list[str]) -> None:
        """Start it."""
        self.master, slave = pty.openpty()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        self.raw = b""

    def read_until(self, wanted: bytes) -> None:
        """Read until the program has written something."""
        deadline = time.monotonic() + 50
        while wanted not in self.raw and time.monotonic() < deadline:
            self.read()
        assert wanted in self.raw, self.raw[-2000:]

    def read(self) -> None:
        """Take what is there."""
        if select.select([self.master], [], [], 0.05)[0]:
            self.raw += os.read(self.master, 65536)

    def wait(self) -> int:
        """Wait for the end; return the exit code."""
        deadline = time.monotonic() + 50
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
        for _ in range(4):
            self.read()
        return self.process.wait(5)

    def assert_restored(self) -> None:
        """Assert that modes are off again, and the line discipline is what it was."""
        for reset in _RESETS:
            assert self.raw.rfind(reset) > self.raw.rfind(reset[:-1] + (b"h" if reset.endswith(b"l") else b"l")), reset
        assert termios.tcgetattr(self.slave)[:4] == self.before[:4]


@pytest.mark.parametrize(("keys", "code"), [("q", 0), ("\x03", 0), ("?", 1)])
def test_the_terminal_is_restored(keys: str, code: int, trace_file: Path) -> None:
    """After q, after Ctrl-C, and after a fault of our own."""
    terminal = Terminal([sys.executable, "-c", _CRASHING, str(trace_file)])
    terminal.read_until(b"pool")
    os.write(terminal.master, keys.encode())
    assert terminal.wait() == code or code == 1
    terminal.assert_restored()


def test_a_terminated_run_restores_the_terminal(trace_file: Path) -> None:
    """SIGTERM in the middle leaves through every door."""
    terminal = Terminal([sys.executable, "-m", "pie_mlx", "tot", "view", str(trace_file)])
    terminal.read_until(b"thoughts")
    terminal.process.terminate()
    assert terminal.wait() == 143
    terminal.assert_restored()


def test_a_terminal_that_is_gone_ends_the_workbench(trace_file: Path) -> None:
    """Without a controlling terminal no signal comes: it ends all the same, and does not read its end for ever."""
    terminal = Terminal([sys.executable, "-m", "pie_mlx", "tot", "view", str(trace_file)])
    terminal.read_until(b"thoughts")
    os.close(terminal.slave)
    os.close(terminal.master)
    assert terminal.process.wait(20) != 0


def test_a_dead_engine_is_said_and_left(tmp_path: Path) -> None:
    """The screen stays and says so; q leaves as always."""
    terminal = Terminal([sys.executable, "-c", _DYING])
    terminal.read_until(b"engine has ended")
    os.write(terminal.master, b"q")
    assert terminal.wait() == 0
    terminal.assert_restored()


def test_tot_view_opens_a_trace(trace_file: Path) -> None:
    """The command shows the tree and ends with 0."""
    terminal = Terminal([sys.executable, "-m", "pie_mlx", "tot", "view", str(trace_file)])
    terminal.read_until(b"thoughts")
    os.write(terminal.master, b"q")
    assert terminal.wait() == 0
    terminal.assert_restored()


@pytest.mark.parametrize("command", [["tui"], ["tot", "view"], ["tot", "run", "--tui", "Why?"]])
def test_without_a_terminal_it_is_refused(command: list[str], trace_file: Path) -> None:
    """In a pipe there is nothing to draw on: usage error, and no escape in the output."""
    args = [*command, str(trace_file)] if command == ["tot", "view"] else command
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "pie_mlx", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        timeout=50,
        check=False,
    )
    assert done.returncode == 2
    assert b"needs a terminal" in done.stderr
    assert b"\x1b" not in done.stdout + done.stderr

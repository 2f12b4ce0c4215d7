"""``pie-mlx top`` of a process on this machine: found by its socket, looked at, gone with its process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from pie_mlx.backend.fake import FakeBackend
from pie_mlx.cli import live
from pie_mlx.engine import Engine, EngineSettings

RunCli = Callable[..., "subprocess.CompletedProcess[str]"]

OTHER = """
import sys, time
from pie_mlx.backend.fake import FakeBackend
from pie_mlx.cli import live
from pie_mlx.engine import Engine, EngineSettings

engine = Engine.start(FakeBackend, EngineSettings(pool_pages=8))
live.publish(engine)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the runtime folder of this test; a short path, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        monkeypatch.setenv("PIE_MLX_RUNTIME_DIR", name)
        yield Path(name)


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    """Return an engine of this process that can be looked at."""
    with Engine.start(FakeBackend, EngineSettings(pool_pages=8)) as running:
        live.publish(running)
        yield running
        for publication in list(live._open):
            publication.close()
    assert not list(folder.glob(f"{os.getpid()}-*"))


@pytest.fixture
def other(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Return another process with an engine."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_running_engine_is_found_and_shown(here: RunCli, engine: Engine, folder: Path) -> None:
    """Without a name the only one is meant; its socket is its user's alone."""
    with engine.context(list(range(40)), name="a\x1b[31m chat") as context:
        context.submit(max_tokens=3).result(20)
        facts = json.loads(here("top", "--json").stdout)
        shown = here("top")
    assert (facts["schema"], facts["process"]["pid"]) == ("pie-mlx.pages/1", os.getpid())
    assert (facts["pages"]["total"], facts["contexts"][0]["num_tokens"]) == (8, 43)
    assert (shown.returncode, shown.stderr) == (0, "")
    for text in ("3/8 held", "[31m chat", "1 completed", "1 context\n"):
        assert text in shown.stdout
    assert "\x1b" not in shown.stdout
    assert json.loads(here("top", str(os.getpid()), "--json").stdout)["process"] == facts["process"]
    assert [path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())] == [0o700, 0o600]


def test_several_are_listed(here: RunCli, engine: Engine, other: subprocess.Popen[str]) -> None:
    """Which one is not guessed."""
    listed = json.loads(here("top", "--json").stdout)
    assert listed["schema"] == "pie-mlx.processes/1"
    assert {row["pid"] for row in listed["processes"]} == {os.getpid(), other.pid}
    assert f"{other.pid}" in here("top").stdout
    assert json.loads(here("top", str(other.pid), "--json").stdout)["process"]["pid"] == other.pid


def test_what_a_killed_process_left_is_cleared_away(here: RunCli, folder: Path, other: subprocess.Popen[str]) -> None:
    """A dead socket is no process; a normal end leaves none."""
    assert len(list(folder.iterdir())) == 1
    other.kill()
    other.wait()
    done = here("top")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing runs here" in done.stderr
    assert list(folder.iterdir()) == []


def test_a_process_that_ends_takes_its_socket_along(folder: Path, other: subprocess.Popen[str]) -> None:
    """Nothing is left behind when a program leaves by itself."""
    other.communicate()
    assert (other.returncode, list(folder.iterdir())) == (0, [])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "nothing runs here"),
        (("99999999",), "runs no engine"),
        (("nonsense",), "neither a process id nor an address"),
        (("http://127.0.0.1:1",), "no server answers"),
        (("1", "--url", "http://127.0.0.1:1"), "one address or process"),
    ],
)
def test_nothing_to_look_at_is_said(here: RunCli, folder: Path, args: tuple[str, ...], said: str) -> None:
    """Exit 2, and what could be looked at."""
    done = here("top", *args)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_client_that_stays_does_not_hold_the_next_one(here: RunCli, engine: Engine, folder: Path) -> None:
    """Each client has its own turn; one that asks for nothing and one that sends nonsense are no harm."""
    path = str(next(folder.iterdir()))
    with socket.socket(socket.AF_UNIX) as idle, socket.socket(socket.AF_UNIX) as rude:
        idle.connect(path)
        rude.connect(path)
        rude.sendall(b"\xff\x00 GET / HTTP/1.1")
        assert here("top").returncode == 0
    assert here("top").returncode == 0


def test_a_folder_of_strangers_is_not_used(here: RunCli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others could put a socket, none is made and none is believed."""
    folder.chmod(0o777)
    with Engine.start(FakeBackend, EngineSettings(pool_pages=8)) as running:
        live.publish(running)
        assert list(folder.iterdir()) == []
        assert here("top").returncode == 2


def test_a_changed_model_leaves_one_socket(folder: Path) -> None:
    """When an engine has ended, the next one of the process takes its place."""
    with Engine.start(FakeBackend, EngineSettings(pool_pages=8)) as first:
        live.publish(first)
    with Engine.start(FakeBackend, EngineSettings(pool_pages=8)) as second:
        live.publish(second)
        assert len(list(folder.iterdir())) == 1
        for publication in list(live._open):
            publication.close()


@pytest.mark.parametrize("leave", ["q", "\x03"])
def test_a_terminal_is_drawn_until_q_or_control_c(folder: Path, other: subprocess.Popen[str], leave: str) -> None:
    """The screen is left as it was, with 0."""
    terminal = pexpect.spawn(
        sys.executable, ["-m", "pie_mlx", "top", "--interval", "0.2"], encoding="utf-8", timeout=60
    )
    terminal.expect("0/8 held")
    terminal.expect("tok/s")
    terminal.send(leave)
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0
    assert "\x1b[?1049l" in (terminal.before or "")


def test_the_end_of_the_process_ends_the_screen(folder: Path, other: subprocess.Popen[str]) -> None:
    """It says so, and is no failure."""
    terminal = pexpect.spawn(
        sys.executable, ["-m", "pie_mlx", "top", "--interval", "0.1"], encoding="utf-8", timeout=60
    )
    terminal.expect("tok/s")
    other.send_signal(signal.SIGKILL)
    terminal.expect("the process has ended")
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0

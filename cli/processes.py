"""The running processes that can be looked at, found by their sockets."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pie_mlx.cli.live import SUFFIX, is_private, runtime_folder
from pie_mlx.engine.telling import SCHEMA
from pie_mlx.errors import UsageError

_PATIENCE_S = 5.0


class Gone(Exception):  # noqa: N818  (named by what happened)
    """The process has ended, or does not answer."""


class Process:
    """A connection to one running engine."""

    def __init__(self, path: Path) -> None:
        """Connect.

        Raises:
            Gone: nobody answers there.
        """
        self.pid = pid_of(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_PATIENCE_S)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise Gone(str(error)) from error
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        """Return the connection itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self._lines.close()
        self._socket.close()

    def look(self) -> dict[str, Any]:
        """Return the engine's reading now.

        Raises:
            Gone: the process has ended, or does not answer.
            UsageError: another version of the program answers.
        """
        try:
            self._socket.sendall(b"\n")
            line = self._lines.readline()
        except OSError as error:
            raise Gone(str(error)) from error
        if not line.endswith(b"\n"):
            raise Gone("the connection ended")
        facts = json.loads(line)
        if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
            raise UsageError(f"process {self.pid} is of another version of pie-mlx", "use that version's top")
        return facts


def pid_of(path: Path) -> int:
    """Return the process that a socket's name tells; 0 where it tells none."""
    number = path.name.partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() else 0


def find(pid: int | None = None) -> list[Process]:
    """Connect to every running engine (of process ``pid``), the youngest last; clear away what dead ones left."""
    found = []
    for path in _sockets():
        if pid is not None and pid_of(path) != pid:
            continue
        try:
            found.append(Process(path))
        except Gone:
            if not _is_running(pid_of(path)):
                path.unlink(missing_ok=True)
    return found


def _sockets() -> Iterator[Path]:
    """Yield the sockets in the user's folder, oldest first; a folder that others can write to holds none."""
    folder = runtime_folder()
    if not folder.is_dir() or not is_private(folder):
        return
    own = [path for path in folder.glob(f"*{SUFFIX}") if pid_of(path) and path.is_socket()]
    yield from sorted(own, key=_age)


def _age(path: Path) -> float:
    """Return when a socket was made; one that has just gone is old."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ctime
    return 0.0


def _is_running(pid: int) -> bool:
    """Whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

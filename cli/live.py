"""A running engine can be looked at: a socket in the user's runtime folder gives its readings as JSON lines.

Only this user can reach it: the folder is the user's own (0700), the socket too (0600). A client sends a line for
each reading that it wants, so nothing runs while nobody looks. The socket goes with the process; what a killed one
leaves behind is cleared away by the next look.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import socket
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from pie_mlx.cli import logfile
from pie_mlx.events import Alarm

if TYPE_CHECKING:
    from pie_mlx.engine import Engine
    from pie_mlx.errors import Fact

SUFFIX = ".sock"
_LONGEST_PATH = 100
"""Bytes of a socket's path: macOS takes 103, Linux 107."""
_PATIENCE_S = 2.0
_MAX_ALARMS = 20
_numbers = itertools.count(1)
_open: list[Publication] = []


def runtime_folder() -> Path:
    """Return the folder of the sockets; it need not exist yet."""
    chosen = os.environ.get("PIE_MLX_RUNTIME_DIR")
    if chosen:
        folder = Path(chosen).expanduser()
    else:
        import warnings

        import platformdirs

        with warnings.catch_warnings():
            # Without XDG_RUNTIME_DIR it warns and names another folder, which is_private judges before it is used.
            warnings.simplefilter("ignore")
            folder = platformdirs.user_runtime_path("pie-mlx", appauthor=False)
    longest = f"{folder}/{2**22}-999{SUFFIX}"
    if len(os.fsencode(longest)) <= _LONGEST_PATH:
        return folder
    return Path(tempfile.gettempdir()) / f"pie-mlx-{os.getuid()}"


def is_private(folder: Path) -> bool:
    """Whether a folder is the user's own, and nobody else can write there."""
    facts = folder.lstat()
    return facts.st_uid == os.getuid() and not facts.st_mode & 0o022


def publish(engine: Engine) -> None:
    """Let ``engine`` be looked at until the process ends; that it cannot be is only logged."""
    for old in [old for old in _open if not old.engine.is_alive]:
        old.close()
    try:
        folder = runtime_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(folder):
            logfile.LOG.warning("no socket for top: %s can be written by others", folder)
            return
        _open.append(Publication(engine, logfile.command(), folder / f"{os.getpid()}-{next(_numbers)}{SUFFIX}"))
    except OSError as error:
        logfile.LOG.warning("no socket for top: %s", error)


class Publication:
    """One engine's socket."""

    def __init__(self, engine: Engine, command: str, path: Path) -> None:
        """Listen at ``path``.

        Raises:
            OSError: the socket cannot be made.
        """
        self.engine = engine
        self._process: dict[str, Fact] = {"pid": os.getpid(), "command": command, "began_s": time.time()}
        self._path = path
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(8)
        atexit.register(self.close)
        threading.Thread(target=self._accept, name="pie-live", daemon=True).start()

    def close(self) -> None:
        """End it, and take the socket away. Idempotent."""
        if self in _open:
            _open.remove(self)
        atexit.unregister(self.close)
        self._path.unlink(missing_ok=True)
        # A closed socket alone does not wake the thread that waits at it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        """Serve each client in a thread of its own, until the socket is closed."""
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="pie-live-client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Answer every line with a reading, until the client goes."""
        alarms: deque[Alarm] = deque(maxlen=_MAX_ALARMS)
        # A client that goes in mid-line, or does not read, is none any more.
        with client, contextlib.suppress(OSError), self.engine.listen() as events, client.makefile("rb") as lines:
            for _ in lines:
                alarms.extend(event for event in events.drain() if isinstance(event, Alarm))
                client.settimeout(_PATIENCE_S)
                client.sendall(self._reading(alarms))
                client.settimeout(None)

    def _reading(self, alarms: deque[Alarm]) -> bytes:
        """Return a reading as a line."""
        from pie_mlx.engine.telling import tell

        facts = {**tell(self.engine, tuple(alarms)), "process": self._process}
        return json.dumps(facts).encode() + b"\n"

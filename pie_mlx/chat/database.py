"""One SQLite file, shared by threads and processes: short transactions, and errors of our own types."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from pie_mlx.chat import schema
from pie_mlx.chat.errors import SessionBusy, SessionCorrupt, SessionError, SessionVersion
from pie_mlx.errors import PieError

_BUSY_S = 5.0
"""How long a write waits for another process's."""


class Database:
    """The connection to the store's file; None keeps everything in memory."""

    def __init__(self, path: Path | None) -> None:
        """Open the file, making it where it is missing.

        Raises:
            SessionCorrupt, SessionVersion, SessionBusy, SessionError: as their names say.
        """
        self.path = path
        self._lock = threading.RLock()
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                # Conversations are private; SQLite gives its side files the mode of this one.
                path.touch(mode=0o600)
            self._connection = sqlite3.connect(
                ":memory:" if path is None else path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            hint = "pie-mlx chat --no-save keeps nothing; PIE_MLX_STATE_DIR=FOLDER is another place"
            raise SessionError(self.place, f"cannot be opened: {reason}", hint) from error
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    @property
    def place(self) -> str:
        """How errors name the store."""
        return "sessions in memory" if self.path is None else str(self.path)

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            self._connection.close()

    def _prepare(self) -> None:
        """Set up the connection, and the tables where the file is new."""
        with self.reading() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            # A process that is killed loses nothing; only a power cut may lose the last moments.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
        with self.changing() as connection:
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            if version > schema.VERSION:
                reason = f"it has form {version}, but this version of pie-mlx reads up to {schema.VERSION}"
                raise SessionVersion(self.place, reason, "update pie-mlx, or move the file away")
            if version == 0:
                if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None:
                    raise SessionCorrupt(self.place, "it is a database, but not one of pie-mlx", "move the file away")
                schema.create(connection)
            self.has_fts = schema.is_searchable(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Hold the connection, and give SQLite's errors our types."""
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise self._as_typed(error) from error

    @contextlib.contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Hold one write transaction: all of it happens, or nothing."""
        with self.reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

    def _as_typed(self, error: sqlite3.Error) -> PieError:
        """Return the typed error for one of SQLite's."""
        text = str(error)
        if "locked" in text or "busy" in text:
            return SessionBusy(self.place, "another process is writing to it", "try again, or close the other chat")
        if "malformed" in text or "not a database" in text:
            return SessionCorrupt(self.place, f"it is damaged: {text}", "move the file away; a new one is made")
        return SessionError(self.place, f"the store failed: {text}")

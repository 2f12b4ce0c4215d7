"""Saved sessions in one SQLite file: turns are written as they stream, so a crash loses at most a moment.

Write-ahead logging lets several processes read and write at once; every change is one short transaction. A branch
moves only from where its owner last saw it, so two processes in one session never overwrite each other.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any, NewType, Self

from pie_mlx import config
from pie_mlx.chat.database import Database
from pie_mlx.chat.errors import SessionCorrupt, SessionExists, SessionNotFound
from pie_mlx.chat.names import check_session_name, title_of
from pie_mlx.chat.settings import ChatSettings
from pie_mlx.chat.turns import MAIN, Turn, TurnId, TurnState, TurnTree
from pie_mlx.errors import InvalidParameter

SessionId = NewType("SessionId", int)
"""A saved session, numbered by the store; a number is never used twice."""

NEW = TurnId(0)
"""The number of a turn that is not written yet."""

_LIST = "pie-mlx sessions ls"
_TURNS = """
SELECT id, parent_id, role, text, reasoning, state, finish_reason, model, created_s FROM turns
WHERE session_id = ? ORDER BY id"""
_SESSIONS = """
SELECT s.id, s.name, s.model, s.system, s.settings, s.created_s, s.updated_s,
  (SELECT count(*) FROM turns t WHERE t.session_id = s.id),
  (SELECT count(*) FROM branches b WHERE b.session_id = s.id),
  coalesce((SELECT t.text FROM turns t WHERE t.session_id = s.id ORDER BY t.id LIMIT 1), '')
FROM sessions s"""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """One saved session, as lists show it; times in seconds since 1970. ``title`` begins its first message."""

    id: SessionId
    name: str
    model: str
    system: str | None
    settings: ChatSettings
    created_s: float
    updated_s: float
    num_turns: int
    num_branches: int
    title: str


@dataclass(frozen=True, slots=True)
class Match:
    """One turn that a search found."""

    session: SessionFacts
    turn: TurnId
    role: str
    text: str


def default_path() -> Path:
    """Return the file of the user's sessions, in the state folder (``PIE_MLX_STATE_DIR`` moves it)."""
    return config.folder("state") / "chat.sqlite3"


class SessionStore:
    """The sessions in one file. Safe to use from several threads and several processes."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the file, making it where it is missing; None keeps everything in memory.

        Raises:
            SessionCorrupt, SessionVersion, SessionBusy, SessionError: as their names say.
        """
        self._database = Database(path)
        self.path = path

    def __enter__(self) -> Self:
        """Return the store itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._database.close()

    # --- sessions --------------------------------------------------------------------------

    def create(
        self, *, model: str, system: str | None = None, settings: ChatSettings | None = None, name: str | None = None
    ) -> SessionFacts:
        """Make a session without turns; without a ``name`` it is called ``chat-N``.

        Raises:
            SessionExists: the name is taken.
        """
        now = time.time()
        wanted = None if name is None else check_session_name(name)
        chosen = (settings or ChatSettings()).to_json()
        with self._database.changing() as connection:
            _refuse_taken(connection, wanted)
            # A name must be there before the number is known; random text cannot collide with a user's.
            row = connection.execute(
                "INSERT INTO sessions(name, model, system, settings, current_branch, created_s, updated_s)"
                " VALUES (coalesce(?, hex(randomblob(16))), ?, ?, ?, ?, ?, ?)",
                (wanted, model, system, chosen, MAIN, now, now),
            )
            session = SessionId(int(row.lastrowid or 0))
            if wanted is None:
                wanted = _free_name(connection, session)
                connection.execute("UPDATE sessions SET name = ? WHERE id = ?", (wanted, session))
            connection.execute("INSERT INTO branches VALUES (?, ?, NULL)", (session, MAIN))
        return self.facts(session)

    def facts(self, session: SessionId) -> SessionFacts:
        """Return one session.

        Raises:
            SessionNotFound: it was deleted.
        """
        found = self._select("WHERE s.id = ?", (session,))
        if not found:
            raise SessionNotFound(f"session {session}", "it was deleted", _LIST)
        return found[0]

    def sessions(self, *, limit: int = -1) -> list[SessionFacts]:
        """Return the sessions, last used first; those without a turn are left out."""
        used = "WHERE EXISTS (SELECT 1 FROM turns t WHERE t.session_id = s.id)"
        return self._select(f"{used} ORDER BY s.updated_s DESC, s.id DESC LIMIT ?", (limit,))

    def find(self, name: str) -> SessionFacts:
        """Return the session called ``name``.

        Raises:
            SessionNotFound: there is none; offers the nearest name.
        """
        found = self._select("WHERE s.name = ?", (name,))
        if found:
            return found[0]
        with self._database.reading() as connection:
            names = [row[0] for row in connection.execute("SELECT name FROM sessions")]
        near = get_close_matches(name, names, n=1, cutoff=0.5)
        raise SessionNotFound(name, "there is no such session", f"did you mean {near[0]!r}?" if near else _LIST)

    def _select(self, where: str, parameters: tuple[object, ...]) -> list[SessionFacts]:
        """Read sessions."""
        with self._database.reading() as connection:
            rows = connection.execute(f"{_SESSIONS} {where}", parameters).fetchall()
        return [_facts(row) for row in rows]

    def rename(self, session: SessionId, name: str) -> None:
        """Give a session a name of its own.

        Raises:
            SessionExists, SessionNotFound, InvalidParameter: as their names say.
        """
        wanted = check_session_name(name)
        if self.facts(session).name == wanted:
            return
        with self._database.changing() as connection:
            _refuse_taken(connection, wanted)
            connection.execute("UPDATE sessions SET name = ? WHERE id = ?", (wanted, session))

    def change(self, session: SessionId, *, model: str, system: str | None, settings: ChatSettings) -> None:
        """Note what a session now runs with."""
        with self._database.changing() as connection:
            connection.execute(
                "UPDATE sessions SET model = ?, system = ?, settings = ?, updated_s = ? WHERE id = ?",
                (model, system, settings.to_json(), time.time(), session),
            )

    def delete(self, session: SessionId) -> None:
        """Delete a session with all its turns.

        Raises:
            SessionNotFound: it was deleted before.
        """
        self.facts(session)
        with self._database.changing() as connection:
            connection.execute("DELETE FROM sessions WHERE id = ?", (session,))

    def drop_if_empty(self, session: SessionId) -> bool:
        """Delete a session that never had a turn; return whether it was one."""
        unused = "NOT EXISTS (SELECT 1 FROM turns t WHERE t.session_id = sessions.id)"
        with self._database.changing() as connection:
            query = f"DELETE FROM sessions WHERE id = ? AND {unused}"  # noqa: S608  (no text from outside)
            done = connection.execute(query, (session,))
        return done.rowcount > 0

    # --- turns and branches ----------------------------------------------------------------

    def load(self, session: SessionId) -> TurnTree:
        """Return a session's tree. A reply that was cut by a crash is partial.

        Raises:
            SessionNotFound: it was deleted.
            SessionCorrupt: the rows do not make a tree.
        """
        with self._database.reading() as connection:
            current = connection.execute("SELECT current_branch FROM sessions WHERE id = ?", (session,)).fetchone()
            turns = connection.execute(_TURNS, (session,)).fetchall()
            branches = connection.execute(
                "SELECT name, tip_id FROM branches WHERE session_id = ? ORDER BY rowid", (session,)
            ).fetchall()
        if current is None:
            raise SessionNotFound(f"session {session}", "it was deleted", _LIST)
        tree = TurnTree(branches=dict(branches), current=current[0])
        if tree.current not in tree.branches:
            raise SessionCorrupt(self._database.place, f"session {session} has no branch {tree.current!r}")
        for turn in map(_turn, turns):
            if turn.parent is not None and turn.parent not in tree.turns:
                raise SessionCorrupt(self._database.place, f"turn {turn.id} answers a turn that is not there")
            tree.put(turn)
        return tree

    def add_exchange(self, session: SessionId, message: Turn, model: str) -> tuple[Turn, Turn]:
        """Write a message and its reply, which begins empty; return both with their numbers.

        A ``message`` that has a number already is only answered.

        Raises:
            SessionNotFound: another process has deleted the session.
        """
        now = time.time()
        with self._database.changing() as connection:
            changed = connection.execute("UPDATE sessions SET updated_s = ? WHERE id = ?", (now, session))
            if not changed.rowcount:
                raise SessionNotFound(f"session {session}", "another process has deleted it", "/new")
            if message.id == NEW:
                message = _insert(connection, session, replace(message, created_s=now))
            reply = Turn(NEW, message.id, "assistant", "", state=TurnState.STREAMING, model=model, created_s=now)
            return message, _insert(connection, session, reply)

    def update_turn(self, turn: Turn) -> None:
        """Write what a reply has become so far."""
        with self._database.changing() as connection:
            connection.execute(
                "UPDATE turns SET text = ?, reasoning = ?, state = ?, finish_reason = ? WHERE id = ?",
                (_storable(turn.text), _storable(turn.reasoning), turn.state.value, turn.finish_reason, turn.id),
            )

    def move_branch(self, session: SessionId, name: str, *, seen: TurnId | None, tip: TurnId | None) -> bool:
        """Move a branch from where the caller last saw it; False: another process has moved it meanwhile."""
        with self._database.changing() as connection:
            moved = connection.execute(
                "UPDATE branches SET tip_id = ? WHERE session_id = ? AND name = ? AND tip_id IS ?",
                (tip, session, name, seen),
            )
        return moved.rowcount > 0

    def add_branch(self, session: SessionId, name: str, tip: TurnId | None) -> bool:
        """Make a branch; False: another process has made one of this name."""
        with self._database.changing() as connection:
            made = connection.execute("INSERT OR IGNORE INTO branches VALUES (?, ?, ?)", (session, name, tip))
        return made.rowcount > 0

    def set_current(self, session: SessionId, name: str) -> None:
        """Note which branch a session shows when it is resumed."""
        with self._database.changing() as connection:
            connection.execute("UPDATE sessions SET current_branch = ? WHERE id = ?", (name, session))

    # --- search ----------------------------------------------------------------------------

    def search(self, text: str, *, limit: int = 50) -> list[Match]:
        """Return turns that hold every word of ``text``, the last used session first.

        Words match from their beginning; where that finds nothing (scripts without spaces), any place counts.

        Raises:
            InvalidParameter: there is no word.
        """
        words = text.split()
        if not words:
            raise InvalidParameter("search text", text, "at least one word")
        with self._database.reading() as connection:
            found = _search_index(connection, words, limit) if self._database.has_fts else []
            found = found or _search_anywhere(connection, words, limit)
        facts = {session: self.facts(session) for session in {row[0] for row in found}}
        return [Match(facts[session], turn, role, content) for session, turn, role, content in found]


def _facts(row: tuple[Any, ...]) -> SessionFacts:
    """Make a session of a row of :data:`_SESSIONS`."""
    number, name, model, system, settings, created_s, updated_s, num_turns, num_branches, text = row
    return SessionFacts(
        id=number,
        name=name,
        model=model,
        system=system,
        settings=ChatSettings.from_json(settings),
        created_s=created_s,
        updated_s=updated_s,
        num_turns=num_turns,
        num_branches=num_branches,
        title=title_of(text),
    )


_Found = list[tuple[SessionId, TurnId, str, str]]


def _search_index(connection: sqlite3.Connection, words: list[str], limit: int) -> _Found:
    """Ask the full-text index; each word is quoted, so none is an operator."""
    query = " ".join('"' + word.replace('"', '""') + '"*' for word in words)
    return connection.execute(
        "SELECT t.session_id, t.id, t.role, t.text FROM turns_fts JOIN turns t ON t.id = turns_fts.rowid"
        " JOIN sessions s ON s.id = t.session_id WHERE turns_fts MATCH ? ORDER BY s.updated_s DESC, t.id LIMIT ?",
        (query, limit),
    ).fetchall()


def _search_anywhere(connection: sqlite3.Connection, words: list[str], limit: int) -> _Found:
    """Look at every turn."""
    each = " AND ".join("instr(lower(t.text), lower(?)) > 0" for _ in words)
    query = (
        "SELECT t.session_id, t.id, t.role, t.text FROM turns t JOIN sessions s ON s.id = t.session_id"  # noqa: S608
        f" WHERE {each} ORDER BY s.updated_s DESC, t.id LIMIT ?"
    )
    return connection.execute(query, (*words, limit)).fetchall()


def _free_name(connection: sqlite3.Connection, session: SessionId) -> str:
    """Return ``chat-N``, or what comes next where a user took that name."""
    number = int(session)
    while connection.execute("SELECT 1 FROM sessions WHERE name = ?", (f"chat-{number}",)).fetchone():
        number += 1
    return f"chat-{number}"


def _refuse_taken(connection: sqlite3.Connection, name: str | None) -> None:
    """Refuse a name that a session has.

    Raises:
        SessionExists: one has it.
    """
    if name is not None and connection.execute("SELECT 1 FROM sessions WHERE name = ?", (name,)).fetchone():
        raise SessionExists(name, "another session has this name", f"choose another name, or see {_LIST}")


def _insert(connection: sqlite3.Connection, session: SessionId, turn: Turn) -> Turn:
    """Write one turn, in the open transaction."""
    row = connection.execute(
        "INSERT INTO turns(session_id, parent_id, role, text, reasoning, state, finish_reason, model, created_s)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            session,
            turn.parent,
            turn.role,
            _storable(turn.text),
            _storable(turn.reasoning),
            turn.state.value,
            turn.finish_reason,
            turn.model,
            turn.created_s,
        ),
    )
    return replace(turn, id=TurnId(int(row.lastrowid or 0)))


def _storable(text: str) -> str:
    """Return text that UTF-8 can hold: a lone surrogate, which a locale may make of a stray byte, cannot be stored."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _turn(row: tuple[int, int | None, str, str, str, str, str, str, float]) -> Turn:
    """Make a turn of a row; one that still streams was cut, or is another process's."""
    number, parent, role, text, reasoning, state, reason, model, created = row
    is_cut = state == TurnState.STREAMING.value
    return Turn(
        TurnId(number),
        None if parent is None else TurnId(parent),
        "user" if role == "user" else "assistant",
        text,
        reasoning,
        TurnState.PARTIAL if is_cut else TurnState(state),
        "interrupted" if is_cut else reason,
        model,
        created,
    )

"""The store's tables. The version stands in SQLite's ``user_version``; each change of form adds one step."""

from __future__ import annotations

import sqlite3

VERSION = 1
"""The form that this version of the program writes."""

TABLES = """
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    model TEXT NOT NULL,
    system TEXT,
    settings TEXT NOT NULL,
    current_branch TEXT NOT NULL,
    created_s REAL NOT NULL,
    updated_s REAL NOT NULL
);
CREATE TABLE turns (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    parent_id INTEGER REFERENCES turns(id),
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
    text TEXT NOT NULL,
    reasoning TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('streaming', 'partial', 'complete')),
    finish_reason TEXT NOT NULL,
    model TEXT NOT NULL,
    created_s REAL NOT NULL
);
CREATE INDEX turns_by_session ON turns(session_id, id);
CREATE INDEX turns_by_parent ON turns(parent_id);
CREATE TABLE branches (
    session_id INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    tip_id INTEGER REFERENCES turns(id),
    PRIMARY KEY (session_id, name)
);
CREATE INDEX branches_by_tip ON branches(tip_id);
"""

SEARCH = """
CREATE VIRTUAL TABLE turns_fts USING fts5(text, content='turns', content_rowid='id');
CREATE TRIGGER turns_fts_insert AFTER INSERT ON turns BEGIN
    INSERT INTO turns_fts(rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER turns_fts_delete AFTER DELETE ON turns BEGIN
    INSERT INTO turns_fts(turns_fts, rowid, text) VALUES ('delete', old.id, old.text);
END;
CREATE TRIGGER turns_fts_update AFTER UPDATE OF text ON turns BEGIN
    INSERT INTO turns_fts(turns_fts, rowid, text) VALUES ('delete', old.id, old.text);
    INSERT INTO turns_fts(rowid, text) VALUES (new.id, new.text);
END;
"""
"""Full-text search, kept in step by triggers; left out where SQLite was built without FTS5."""


def has_fts5(connection: sqlite3.Connection) -> bool:
    """Whether this SQLite can search full texts."""
    options = {row[0] for row in connection.execute("PRAGMA compile_options")}
    return "ENABLE_FTS5" in options


def is_searchable(connection: sqlite3.Connection) -> bool:
    """Whether the store was made with full-text search, and this SQLite can use it."""
    query = "SELECT 1 FROM sqlite_master WHERE name = 'turns_fts'"
    return has_fts5(connection) and connection.execute(query).fetchone() is not None


def create(connection: sqlite3.Connection) -> None:
    """Make the tables in the transaction that is open."""
    script = TABLES + (SEARCH if has_fts5(connection) else "")
    for statement in _statements(script):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _statements(script: str) -> list[str]:
    """Split a script; ``executescript`` would commit the open transaction first."""
    found: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending.strip())
            pending = ""
    return [statement for statement in found if statement]

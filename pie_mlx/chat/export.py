"""A session as Markdown for people, and as JSON for programs; all branches are in both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime

from pie_mlx.chat.store import SessionFacts
from pie_mlx.chat.turns import Turn, TurnId, TurnTree

SCHEMA = "pie-mlx.chat/1"
"""Written into every JSON export."""

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def to_document(facts: SessionFacts, tree: TurnTree) -> dict[str, object]:
    """Return the session as plain JSON values."""
    return {
        "schema": SCHEMA,
        "name": facts.name,
        "model": facts.model,
        "system": facts.system,
        "settings": asdict(facts.settings),
        "created": _time(facts.created_s),
        "updated": _time(facts.updated_s),
        "current_branch": tree.current,
        "branches": dict(tree.branches),
        "turns": [_turn(turn) for turn in tree.turns.values()],
    }


def to_json(facts: SessionFacts, tree: TurnTree) -> str:
    """Return the session as JSON text, in ASCII: no control character can reach a terminal."""
    return json.dumps(to_document(facts, tree), indent=2) + "\n"


def _turn(turn: Turn) -> dict[str, object]:
    """Return a turn as plain JSON values."""
    return {
        "id": turn.id,
        "parent": turn.parent,
        "role": turn.role,
        "text": turn.text,
        "reasoning": turn.reasoning,
        "state": turn.state.value,
        "finish_reason": turn.finish_reason,
        "model": turn.model,
        "created": _time(turn.created_s),
    }


def to_markdown(facts: SessionFacts, tree: TurnTree) -> str:
    """Return the session as Markdown: the current branch whole, then of each other what is not told yet.

    Control characters are written out, so that showing the file cannot change a terminal.
    """
    return "\n".join(_lines(facts, tree)).translate(_CONTROLS) + "\n"


def _lines(facts: SessionFacts, tree: TurnTree) -> Iterator[str]:
    yield f"# {facts.name}"
    yield ""
    yield f"Model {facts.model}, {_time(facts.created_s)}"
    if facts.system:
        yield from ("", "## System", "", facts.system)
    told: set[TurnId] = set()
    names = [tree.current, *(name for name in tree.branches if name != tree.current)]
    for name in names:
        fresh = [turn for turn in tree.path(tree.branches[name]) if turn.id not in told]
        if not fresh:
            continue
        if len(tree.branches) > 1:
            first = fresh[0]
            origin = "" if first.parent is None or name == tree.current else f" (from turn {first.parent})"
            yield from ("", f"# Branch {name}{origin}")
        for turn in fresh:
            told.add(turn.id)
            yield from _turn_lines(turn)


def _turn_lines(turn: Turn) -> Iterator[str]:
    """Yield one turn under its heading."""
    who = "User" if turn.role == "user" else "Assistant"
    mark = f" (partial: {turn.finish_reason})" if turn.is_partial else ""
    yield from ("", f"## {who} [{turn.id}]{mark}", "")
    if turn.reasoning:
        yield from ("<details><summary>Reasoning</summary>", "", turn.reasoning, "", "</details>", "")
    yield turn.text


def _time(seconds: float) -> str:
    """Return a time in ISO 8601, UTC."""
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat(timespec="seconds")

"""``pie-mlx sessions``: the saved conversations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pie_mlx.cli.options import Group, OutputFlags, color_of

if TYPE_CHECKING:
    from pie_mlx.chat.store import SessionFacts, SessionStore
    from pie_mlx.errors import Fact

SCHEMA = "pie-mlx.sessions/1"
SEARCH_SCHEMA = "pie-mlx.session-search/1"

Name = Annotated[str, typer.Argument(help="The session's name.", show_default=False)]


class Form(str, Enum):  # noqa: UP042  (Typer shows the plain value)
    """The forms of an export."""

    md = "md"
    json = "json"


@dataclass(frozen=True)
class ExportFlags(Group):
    """What an export is, and where it goes."""

    panel: ClassVar[str] = "Export"

    form: Annotated[Form, typer.Option("--format", "--form", help="Markdown or JSON.")] = Form.md
    to: Annotated[Path | None, typer.Option("--to", "-o", help="A new file (default: stdout).")] = None


@contextmanager
def _opened_store() -> Iterator[SessionStore]:
    """Open the user's sessions."""
    from pie_mlx.chat.store import SessionStore, default_path

    with SessionStore(default_path()) as store:
        yield store


def ls(*, output: OutputFlags) -> None:
    """List the saved conversations, last used first."""
    from pie_mlx.cli.render import Stdout

    stdout = Stdout(color_of(output))
    with _opened_store() as store:
        found = store.sessions()
    if output.json:
        stdout.json({"schema": SCHEMA, "sessions": [_as_json(facts) for facts in found]})
        return
    rows = [
        (
            facts.name,
            _when(facts.updated_s),
            str(facts.num_turns // 2),
            str(facts.num_branches),
            facts.model,
            facts.title,
        )
        for facts in found
    ]
    stdout.table(("name", "used", "turns", "branches", "model", "begins"), rows, right=(2, 3))


def show(name: Name, *, output: OutputFlags) -> None:
    """Show a conversation: its tree, then the current branch."""
    from pie_mlx.chat.drawing import draw_tree
    from pie_mlx.chat.export import to_document
    from pie_mlx.cli.render import Stdout

    stdout = Stdout(color_of(output))
    with _opened_store() as store:
        facts = store.find(name)
        tree = store.load(facts.id)
    if output.json:
        stdout.json(to_document(facts, tree))
        return
    for line in draw_tree(tree):
        stdout.line(str(line))
    for turn in tree.current_path():
        mark = " (partial)" if turn.is_partial else ""
        stdout.line()
        stdout.line(f"{'you' if turn.role == 'user' else turn.model}{mark}:")
        stdout.line(turn.text)


def search(
    text: Annotated[str, typer.Argument(help="Words that a turn must hold.", show_default=False)],
    *,
    output: OutputFlags,
) -> None:
    """Find turns by their words."""
    from pie_mlx.cli.clean import one_line
    from pie_mlx.cli.render import Stdout

    stdout = Stdout(color_of(output))
    with _opened_store() as store:
        found = store.search(text)
    if output.json:
        matches: list[Fact] = [
            {"session": match.session.name, "turn": match.turn, "role": match.role, "text": match.text}
            for match in found
        ]
        stdout.json({"schema": SEARCH_SCHEMA, "matches": matches})
        return
    rows = [(match.session.name, match.role, one_line(_around(match.text, text))) for match in found]
    stdout.table(("session", "role", "text"), rows)


def rename(name: Name, new: Annotated[str, typer.Argument(help="Its new name.", show_default=False)]) -> None:
    """Give a conversation another name."""
    with _opened_store() as store:
        store.rename(store.find(name).id, new)


def rm(name: Name) -> None:
    """Delete a conversation with all its branches and its saved context."""
    from pie_mlx import config
    from pie_mlx.chat.saving import delete_session
    from pie_mlx.kv.snapshot import SnapshotStore

    with _opened_store() as store:
        delete_session(store, SnapshotStore(config.folder("state") / "snapshots"), store.find(name).id)


def export(name: Name, *, flags: ExportFlags) -> None:
    """Write a conversation with all its branches as Markdown or JSON."""
    from pie_mlx.chat.export import to_json, to_markdown
    from pie_mlx.cli.render import Stdout
    from pie_mlx.errors import UsageError

    with _opened_store() as store:
        facts = store.find(name)
        tree = store.load(facts.id)
    content = (to_json if flags.form is Form.json else to_markdown)(facts, tree)
    if flags.to is None:
        Stdout("never").text(content)
        return
    try:
        with flags.to.open("x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        raise UsageError(f"{flags.to} exists already", "name another file with --to") from None
    except OSError as error:
        raise UsageError(f"{flags.to} cannot be written: {error.strerror}", "name another file with --to") from error


def _as_json(facts: SessionFacts) -> dict[str, Fact]:
    """Return one session as plain JSON values."""
    return {
        "name": facts.name,
        "model": facts.model,
        "title": facts.title,
        "turns": facts.num_turns,
        "branches": facts.num_branches,
        "created_s": facts.created_s,
        "updated_s": facts.updated_s,
    }


def _when(seconds: float) -> str:
    """Return a time as people here write it."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def _around(text: str, words: str, *, reach: int = 60) -> str:
    """Return the part of a text around the first word that was found."""
    at = min((place for word in words.split() if (place := text.lower().find(word.lower())) >= 0), default=0)
    begin, end = max(0, at - reach), at + reach
    return ("…" if begin else "") + text[begin:end] + ("…" if end < len(text) else "")

"""``pie-mlx chat``: talk with a model in the terminal, or by lines from a pipe."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

from pie_mlx.cli.options import EngineFlags, Group, OutputFlags, SamplingFlags


@dataclass(frozen=True)
class ChatFlags(Group):
    """Which conversation, and how it looks."""

    panel: ClassVar[str] = "Chat"

    system: Annotated[str | None, typer.Option("--system", "-s", help="System message.")] = None
    session: Annotated[str | None, typer.Option("--session", help="Continue this session, or begin it.")] = None
    resume: Annotated[bool, typer.Option("--resume", "-r", help="Continue the last session.")] = False
    no_save: Annotated[bool, typer.Option("--no-save", help="Keep nothing on the disk.")] = False
    once: Annotated[str | None, typer.Option("--once", metavar="TEXT", help="Say one message, then leave.")] = None
    seed: Annotated[int | None, typer.Option(help="Seed of the draws (default: random).")] = None
    theme: Annotated[str | None, typer.Option(metavar="dark|light", help="The terminal's background.")] = None


def chat(*, chat: ChatFlags, sampling: SamplingFlags, engine: EngineFlags, output: OutputFlags) -> None:
    """Talk with a model. Conversations are trees: going back, retrying and branching lose nothing."""
    from pie_mlx.cli.chat.opening import Given, run_interactive, run_piped
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.options import load_config
    from pie_mlx.errors import UsageError

    if output.json:
        raise UsageError("a chat has no JSON form", "pie-mlx run --json, or pie-mlx sessions export NAME --form json")
    if chat.resume and chat.session:
        raise UsageError("--resume continues the last session, --session a named one", "give one of the two")
    settings = load_config(engine, sampling, chat, output).settings
    _check_theme(chat.theme)
    stderr, given = Stderr(settings.color), Given(sampling, engine.model, engine.adapter)
    is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if chat.once is None and is_terminal and not _is_dumb():
        run_interactive(chat, settings, given=given, stderr=stderr)
    else:
        run_piped(chat, settings, given=given, stderr=stderr)


def _check_theme(theme: str | None) -> None:
    """Refuse a theme that there is not."""
    from pie_mlx.errors import InvalidParameter

    if theme not in (None, "dark", "light"):
        raise InvalidParameter("--theme", theme, "dark or light")


def _is_dumb() -> bool:
    """Whether the terminal cannot move its cursor."""
    import os

    return os.environ.get("TERM", "") in ("", "dumb")

"""From flags to a running chat: the engine, the store, the session, and the front end that fits the terminal."""

from __future__ import annotations

import codecs
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pie_mlx import config
from pie_mlx.chat.errors import SessionNotFound
from pie_mlx.chat.session import ChatSession
from pie_mlx.chat.settings import ChatSettings
from pie_mlx.chat.store import SessionFacts, SessionStore, default_path
from pie_mlx.cli.options import model_name, open_engine, sampling_of, with_model
from pie_mlx.cli.render import Stdout, is_terminal
from pie_mlx.errors import PieError, UsageError
from pie_mlx.kv.snapshot import SnapshotStore

if TYPE_CHECKING:
    from pie_mlx.cli.chat.markdown import Theme
    from pie_mlx.cli.commands.chat import ChatFlags
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.options import SamplingFlags
    from pie_mlx.engine import Engine

_CHAT_TEMPERATURE = 0.7
"""Where nothing is configured: a retry at 0 would only repeat the reply."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line says beside the chat's own flags; it also counts for a session that is continued."""

    sampling: SamplingFlags
    model: str | None
    adapter: str | None


def run_interactive(flags: ChatFlags, settings: config.Settings, *, given: Given, stderr: Stderr) -> None:
    """Talk on the terminal until the user leaves.

    Raises:
        PieError: the model or the session cannot be opened, or the engine has ended.
    """
    from pie_mlx.cli.chat.keyboard import Interrupts, Keyboard
    from pie_mlx.cli.chat.loop import ChatLoop
    from pie_mlx.cli.chat.screen import Screen

    _speak_utf8()
    screen = Screen(sys.stdout, settings.color)
    history = None if flags.no_save else config.folder("state") / "chat_history"
    with opened(flags, settings, given=given, stderr=stderr) as session, Interrupts() as interrupts:
        keyboard = Keyboard(sys.stdin.fileno(), interrupts)
        loop = ChatLoop(session, screen, keyboard=keyboard, stderr=stderr, theme=_theme(flags.theme), history=history)
        keys = "/help · Ctrl-C stops a reply · Ctrl-D leaves"
        screen.line(f"{session.model} · session {session.facts.name} · {keys}", style="dim")
        loop.run(interrupts)


def _speak_utf8() -> None:
    """Leave ASCII, which is what an unset locale means: the terminal behind it speaks UTF-8."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if codecs.lookup(stream.encoding).name == "ascii":
            stream.reconfigure(encoding="utf-8")  # type: ignore[union-attr]


def run_piped(flags: ChatFlags, settings: config.Settings, *, given: Given, stderr: Stderr) -> None:
    """Answer the lines of standard input, or the one message of ``--once``; with none, load nothing.

    Raises:
        PieError: the model or the session cannot be opened, or a turn failed.
    """
    from pie_mlx.cli.chat.piped import PipedChat, read_lines

    lines = read_lines(sys.stdin.buffer) if sys.stdin is not None else iter(())
    if flags.once is None and is_terminal(sys.stdin):
        stderr.note("each line is a message; Ctrl-D ends")
    if flags.once is not None:
        lines = iter([flags.once])
    first = next(lines, None)
    if first is None:
        return
    with opened(flags, settings, given=given, stderr=stderr) as session:
        PipedChat(session, Stdout(settings.color), stderr).run(itertools.chain([first], lines))


@contextmanager
def opened(flags: ChatFlags, settings: config.Settings, *, given: Given, stderr: Stderr) -> Iterator[ChatSession]:
    """Open store, engine and session; close them in turn.

    Raises:
        PieError: one of them cannot be opened.
    """
    with SessionStore(None if flags.no_save else default_path()) as store:
        name, saved = _wanted(flags, store)
        if saved is not None and given.model is None:
            settings = _with_its_model(settings, saved, stderr, adapter=given.adapter)
        with stderr.waiting(f"loading {model_name(settings)}"):
            engine = open_engine(settings)

        def open_model(model: str) -> Engine:
            with stderr.waiting(f"loading {model}"):
                return open_engine(with_model(settings, model))

        snapshots = None if flags.no_save else SnapshotStore(config.folder("state") / "snapshots")
        session = None
        try:
            if saved is not None:
                session = ChatSession.resume(engine, store, saved.name, open_model=open_model, snapshots=snapshots)
                _apply_flags(session, flags, given.sampling)
            else:
                session = ChatSession.new(
                    engine,
                    store,
                    name=name,
                    system=settings.system,
                    settings=_chat_settings(flags, settings),
                    open_model=open_model,
                    snapshots=snapshots,
                )
            yield session
        finally:
            # /model may have put another engine in the place of the first.
            running = engine if session is None else session.engine
            if session is not None:
                session.close()
            running.close()


def _wanted(flags: ChatFlags, store: SessionStore) -> tuple[str | None, SessionFacts | None]:
    """Return the session's name, and the session if it is there already; found out before anything is loaded.

    Raises:
        UsageError: there is no session to resume.
    """
    if flags.resume:
        last = store.sessions(limit=1)
        if not last:
            raise UsageError("there is no session to resume", "pie-mlx chat")
        return last[0].name, last[0]
    if flags.session is None:
        return None, None
    try:
        found = store.find(flags.session)
    except SessionNotFound:
        return flags.session, None
    return found.name, found


def _with_its_model(
    settings: config.Settings, saved: SessionFacts, stderr: Stderr, *, adapter: str | None = None
) -> config.Settings:
    """Return the settings with the model that a session was held with; without it here, those that were configured.

    A configured adapter stays with the configured model; ``adapter``, from the command line, is for the session's.
    """
    from pie_mlx.models.fetch import locate

    configured = model_name(settings)
    if saved.model == configured:
        return settings
    try:
        locate(saved.model)
    except PieError as error:
        stderr.note(f"session {saved.name} was held with {saved.model}, which is not here: {error.message}")
        return settings
    stderr.note(f"session {saved.name} goes on with {saved.model} (--model {configured} changes that)")
    return settings.model_copy(update={"model": saved.model, "adapter": adapter})


def _chat_settings(flags: ChatFlags, settings: config.Settings) -> ChatSettings:
    """Return a new conversation's settings, as configured."""
    sampling = sampling_of(settings, seed=flags.seed)
    is_unset = settings.temp is None and sampling.is_greedy
    return ChatSettings(
        max_tokens=max(settings.max_tokens, 1),
        temperature=_CHAT_TEMPERATURE if is_unset else sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=flags.seed,
    )


def _apply_flags(session: ChatSession, flags: ChatFlags, given: SamplingFlags) -> None:
    """Let what was given on the command line count for a session that is continued."""
    names = {"temp": "temperature"}
    changes = {names.get(key, key): value for key, value in given.given().items() if value is not None}
    if flags.seed is not None:
        changes["seed"] = flags.seed
    settings = replace(session.settings, **changes) if changes else None  # type: ignore[arg-type]
    if settings is not None or flags.system is not None:
        session.change(settings=settings, system=flags.system)


def _theme(wish: str | None) -> Theme:
    """Return the terminal's background: as told, else as COLORFGBG says, else dark."""
    if wish is not None:
        return "light" if wish == "light" else "dark"
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if background in ("7", "15") else "dark"

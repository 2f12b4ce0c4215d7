"""Open the workbench from the command line: what it looks at, on which terminal, in which colours."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pie_mlx.errors import InvalidParameter, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pie_mlx.chat import ChatSession
    from pie_mlx.config import Settings
    from pie_mlx.engine import Engine
    from pie_mlx.search.run import Run
    from pie_mlx.search.trace import Event, TraceWriter
    from pie_mlx.tui.bridge import Bridge
    from pie_mlx.tui.desk import Sources

_CHAT_TEMPERATURE = 0.7
_THEMES = {"dark": "pie-dark", "light": "pie-light", "contrast": "pie-contrast"}


def check_terminal() -> None:
    """Refuse to start where nobody could see or steer it; the workbench draws on standard error.

    Raises:
        UsageError: standard input or standard error is no terminal, or one without a cursor.
    """
    is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if not is_terminal or os.environ.get("TERM", "") in ("", "dumb"):
        raise UsageError("the workbench needs a terminal", "pie-mlx tot show, pie-mlx chat or pie-mlx run work without")


def theme_name(theme: str | None) -> str | None:
    """Return the workbench's name of a theme.

    Raises:
        InvalidParameter: there is no such theme.
    """
    if theme is not None and theme not in _THEMES:
        raise InvalidParameter("--theme", theme, ", ".join(_THEMES))
    return None if theme is None else _THEMES[theme]


def show(
    sources: Sources,
    settings: Settings,
    *,
    theme: str | None = None,
    start: str | None = None,
    bridge: Bridge | None = None,
) -> None:
    """Run the workbench until the user leaves.

    Raises:
        UsageError: there is no terminal.
        InvalidParameter: there is no such theme.
    """
    check_terminal()
    named = theme_name(theme)
    if settings.color == "never":
        os.environ["NO_COLOR"] = "1"
    from pie_mlx.tui.app import make_app
    from pie_mlx.tui.hangup import TERMINATED

    app = make_app(sources, bridge=bridge, theme=named, start=start)
    before = signal.getsignal(signal.SIGTERM)
    try:
        app.run()
    finally:
        # The loop put the system's own handling in its place when it ended.
        signal.signal(signal.SIGTERM, before)
    if app.return_code == TERMINATED:
        sys.exit(TERMINATED)
    if app.return_code:
        raise UsageError("the workbench ended with an error", "run it again, and report what it printed")


def chat_opener(engine: Engine, settings: Settings) -> Callable[[], ChatSession]:
    """Return what opens a new conversation on ``engine``, saved like those of ``pie-mlx chat``."""

    def open_chat() -> ChatSession:
        from pie_mlx.chat import ChatSession, ChatSettings, SessionStore
        from pie_mlx.chat.store import default_path
        from pie_mlx.cli.options import sampling_of
        from pie_mlx.config import folder
        from pie_mlx.kv.snapshot import SnapshotStore

        sampling = sampling_of(settings)
        is_unset = settings.temp is None and sampling.is_greedy
        chosen = ChatSettings(
            max_tokens=max(settings.max_tokens, 1),
            # Where nothing is configured: a retry at 0 would only repeat the reply.
            temperature=_CHAT_TEMPERATURE if is_unset else sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
        )
        snapshots = SnapshotStore(folder("state") / "snapshots")
        store = SessionStore(default_path())
        return ChatSession.new(engine, store, system=settings.system, settings=chosen, snapshots=snapshots)

    return open_chat


@dataclass(slots=True)
class Searches:
    """Searches that are begun in the workbench: each is told to a trace of its own, as those of ``tot run`` are."""

    engine: Engine
    _begun: list[tuple[Run, TraceWriter]] = field(default_factory=list)

    def begin(self, question: str, listen: Callable[[Event], None]) -> Run:
        """Prepare a search with its defaults.

        Raises:
            PieError: the model cannot search, or the trace cannot be written.
        """
        from pie_mlx.cli.traces import new_trace_path
        from pie_mlx.search.params import SearchParams
        from pie_mlx.search.run import Run
        from pie_mlx.search.tasks import make_task
        from pie_mlx.search.trace import TraceWriter

        params = SearchParams()
        task = make_task("free", question, seed=params.seed)
        run = Run(self.engine, task, params, listen=listen, deltas=True)
        writer = TraceWriter.create(new_trace_path(task.name), run.header())
        run.record(writer)
        self._begun.append((run, writer))
        return run

    def close(self) -> None:
        """End what still runs, and close the traces."""
        for run, writer in self._begun:
            if not run.is_over:
                run.cancel()
                run.outcome()
            writer.close()


def watch_run(
    engine: Engine, settings: Settings, make_run: Callable[[Callable[[Event], None]], Run], *, theme: str | None = None
) -> Run:
    """Run a search in the workbench: ``make_run`` gets the listener; the run is over when this returns.

    Raises:
        UsageError: there is no terminal.
    """
    check_terminal()
    from pie_mlx.tui.bridge import Bridge
    from pie_mlx.tui.desk import Sources

    with closing(Bridge()) as bridge, closing(Searches(engine)) as searches:
        run = make_run(bridge.offer)
        talk = chat_opener(engine, settings)
        sources = Sources(engine=engine, run=run, open_chat=talk, open_search=searches.begin)
        show(sources, settings, theme=theme, bridge=bridge)
        if not run.is_over:
            run.cancel()
    return run

"""``pie-mlx tui`` and ``tot view``: the workbench over an engine, or over a trace."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pie_mlx.cli.options import EngineFlags, Group, OutputFlags, SamplingFlags, load_config, model_name
from pie_mlx.errors import UsageError

if TYPE_CHECKING:
    from pie_mlx.config import Settings


@dataclass(frozen=True)
class ScreenFlags(Group):
    """How the workbench looks."""

    panel: ClassVar[str] = "Screen"

    theme: Annotated[str | None, typer.Option(metavar="dark|light|contrast", help="Colours (default: dark).")] = None


@dataclass(frozen=True)
class AttachFlags(Group):
    """Which engine is looked at."""

    panel: ClassVar[str] = "Screen"

    attach: Annotated[
        str | None, typer.Option(metavar="URL", help="Look at a running server in place of an engine of one's own.")
    ] = None
    api_key: Annotated[str | None, typer.Option(help="The server's key.")] = None


def tui(
    *, screen: ScreenFlags, attached: AttachFlags, sampling: SamplingFlags, engine: EngineFlags, output: OutputFlags
) -> None:
    """Open the workbench: chat, trees and the engine's pages on one screen."""
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.options import open_engine
    from pie_mlx.cli.workbench import Searches, chat_opener, check_terminal, show, theme_name

    settings = load_config(engine, sampling, output).settings
    check_terminal()
    theme_name(screen.theme)
    if attached.attach is not None:
        _attach(attached.attach, attached.api_key, settings, screen.theme)
        return
    with Stderr(settings.color).waiting(f"loading {model_name(settings)}"):
        opened = open_engine(settings)
    from pie_mlx.tui.desk import Sources

    with opened, closing(Searches(opened)) as searches:
        sources = Sources(engine=opened, open_chat=chat_opener(opened, settings), open_search=searches.begin)
        show(sources, settings, theme=screen.theme, start="chat")


def _attach(url: str, api_key: str | None, settings: Settings, theme: str | None) -> None:
    """Look at a running server; one that does not answer is refused before the screen opens."""
    from pie_mlx.cli.workbench import show
    from pie_mlx.tui.desk import Sources
    from pie_mlx.tui.remote import RemoteServer

    server = RemoteServer(url, api_key=api_key)
    server.look()
    show(Sources(remote=server), settings, theme=theme, start="engine")


def view(
    trace: Annotated[
        Path | None, typer.Argument(help="A trace file (default: the latest run's).", show_default=False)
    ] = (None),
    *,
    live: Annotated[bool, typer.Option("--live", help="Follow a run that still writes its trace.")] = False,
    screen: ScreenFlags,
    output: OutputFlags,
) -> None:
    """Look at the tree of a run: browse, filter, compare, replay."""
    from pie_mlx.cli.traces import find_trace
    from pie_mlx.cli.workbench import check_terminal, show

    settings = load_config(output).settings
    path = find_trace(trace)
    if not live and not path.is_file():
        raise UsageError(f"{path}: there is no such file", "--live waits for it")
    check_terminal()
    from pie_mlx.tui.desk import Sources

    show(Sources(trace=path, live=live), settings, theme=screen.theme)

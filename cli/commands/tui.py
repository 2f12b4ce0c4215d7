"""``pie-mlx tui`` and ``tot view``: the workbench over an engine, or over a trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from pie_mlx.cli.options import EngineFlags, Group, OutputFlags, SamplingFlags, load_config, model_name
from pie_mlx.errors import UsageError


@dataclass(frozen=True)
class ScreenFlags(Group):
    """How the workbench looks."""

    panel: ClassVar[str] = "Screen"

    theme: Annotated[str | None, typer.Option(metavar="dark|light|contrast", help="Colours (default: dark).")] = None


def tui(*, screen: ScreenFlags, sampling: SamplingFlags, engine: EngineFlags, output: OutputFlags) -> None:
    """Open the workbench: chat, trees and the engine's pages on one screen."""
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.options import open_engine
    from pie_mlx.cli.workbench import chat_opener, check_terminal, show, theme_name

    settings = load_config(engine, sampling, output).settings
    check_terminal()
    theme_name(screen.theme)
    with Stderr(settings.color).waiting(f"loading {model_name(settings)}"):
        opened = open_engine(settings)
    from pie_mlx.tui.desk import Sources

    with opened:
        sources = Sources(engine=opened, open_chat=chat_opener(opened, settings))
        show(sources, settings, theme=screen.theme, start="chat")


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

"""``pie-mlx config show|path|set`` and ``pie-mlx completion``."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from pie_mlx.cli.options import OutputFlags, load_config

if TYPE_CHECKING:
    from pie_mlx.errors import Fact

SCHEMA = "pie-mlx.config/1"


class Shell(StrEnum):
    """A shell that we write completions for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def show(
    *,
    origin: Annotated[bool, typer.Option("--origin", help="Show where each value comes from.")] = False,
    output: OutputFlags,
) -> None:
    """Show the settings in force."""
    from pie_mlx.cli.render import Stdout
    from pie_mlx.config import Settings

    loaded = load_config(output)
    stdout = Stdout(loaded.settings.color)
    values: dict[str, Fact] = loaded.settings.model_dump()
    origins = {key: str(loaded.origins[key]) for key in values}
    if output.json:
        stdout.json({"schema": SCHEMA, "settings": values, "origins": dict(origins)})
        return
    fields = Settings.model_fields
    rows = [
        (key, _value_text(value), origins[key] if origin else fields[key].description or "")
        for key, value in values.items()
    ]
    stdout.table(("setting", "value", "origin" if origin else "meaning"), rows)


def _value_text(value: Fact) -> str:
    """Return a value as a file would hold it, ``–`` where it is unset."""
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)


def path(*, output: OutputFlags) -> None:
    """Show where the program keeps its files."""
    from pie_mlx import config
    from pie_mlx.cli.logfile import log_path
    from pie_mlx.cli.render import Stdout

    places = {
        "config": config.user_file(),
        "project": config.PROJECT_FILE.absolute(),
        "models": config.folder("config") / "models.toml",
        "state": config.folder("state"),
        "data": config.folder("data"),
        "cache": config.folder("cache"),
        "log": log_path(output.log_file),
    }
    stdout = Stdout(load_config(output).settings.color)
    if output.json:
        stdout.json({"schema": "pie-mlx.paths/1", **{key: str(place) for key, place in places.items()}})
    else:
        stdout.pairs((key, f"{place}{'' if place.exists() else '  (not there yet)'}") for key, place in places.items())


def set_(
    key: Annotated[str, typer.Argument(help="A setting; config show lists them.")],
    value: Annotated[str, typer.Argument(help="Its value.")],
    *,
    project: Annotated[bool, typer.Option("--project", help="Write ./pie-mlx.toml, not the user's file.")] = False,
) -> None:
    """Write a setting into a configuration file; its comments stay."""
    from pie_mlx import config
    from pie_mlx.cli.diagnostics import Stderr

    written = config.set_value(key, value, path=config.PROJECT_FILE if project else None)
    Stderr().line(f"{key} is set in {written}")


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Write a completion script to stdout; for bash: eval "$(pie-mlx completion bash)"."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    from pie_mlx.cli.render import Stdout

    Stdout().line(get_completion_script(prog_name="pie-mlx", complete_var="_PIE_MLX_COMPLETE", shell=shell.value))

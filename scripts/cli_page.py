# ruff: noqa: INP001
"""Write docs/cli.md from the program's own help: one section a command, in the order of ``pie-mlx --help``.

python scripts/cli_page.py           write the page
python scripts/cli_page.py --check   exit 1 if the page is stale
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from pie_mlx.cli.main import PROGRAM, app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

_KINDS = {int: "N", float: "X", Path: "FILE"}

HEAD = """# pie-mlx(1)

<!-- Written by scripts/cli_page.py from the program's help; change the help, then: make docs -->

**{program}**: {about}

Data goes to stdout, talk to stderr; in a pipe nothing is coloured, wrapped or cut. `--json` prints one object with a
`schema` field, and an error as `{{"error": {{"code", "message", "hint", "detail"}}}}`. `{program} COMMAND --help` says
the same as this page.

## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | failure |
| 2 | usage or configuration |
| 3 | the model is missing or cannot be loaded |
| 4 | out of pages: starved, or the pool is too small |
| 5 | a search ran, and its answer is wrong (`--check`) |
| 130 | interrupted |

## Files and variables

Settings come from a flag, else from `PIE_MLX_NAME`, else from `./pie-mlx.toml`, else from the user's file; `{program}
config show --origin` says which. `{program} config path` shows where all files lie, the log among them. The folders
move with `PIE_MLX_CONFIG_DIR`, `PIE_MLX_STATE_DIR`, `PIE_MLX_DATA_DIR`, `PIE_MLX_CACHE_DIR` and
`PIE_MLX_RUNTIME_DIR`; `PIE_MLX_BLAS` names a BLAS for the CPU backend; `NO_COLOR` is honoured. The log holds no prompts
and no replies.
"""


def page() -> str:
    """Return the whole page."""
    root = typer.main.get_command(app)
    parts = [HEAD.format(program=PROGRAM, about=_sentence(root.help))]
    for panel, commands in _panels(root).items():
        parts.append(f"## {panel}\n")
        for name, command in commands:
            parts.extend(_sections(f"{PROGRAM} {name}", command))
    return "\n".join(parts)


def _panels(root: Any) -> dict[str, list[tuple[str, Any]]]:
    """Return the commands by the heading that help shows them under."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for name in root.list_commands(None):
        command = root.commands[name]
        found.setdefault(command.rich_help_panel or "Other", []).append((name, command))
    return found


def _sections(name: str, command: Any) -> Iterator[str]:
    """Yield the section of a command, or of each command of a group."""
    if hasattr(command, "commands"):
        for sub, below in command.commands.items():
            yield from _sections(f"{name} {sub}", below)
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *map(_placeholder, arguments)])
    yield f"### {name}\n\n{_text(command.help)}\n\n    {usage}\n"
    rows = [(f"`{one.name.upper()}`", one.help) for one in arguments]
    rows += [(_spelling(one), one.help) for one in options]
    if rows:
        yield "| | |\n|---|---|\n" + "".join(f"| {left} | {_cell(right)} |\n" for left, right in rows)


def _placeholder(argument: Any) -> str:
    """Return an argument as usage shows it."""
    shown = argument.name.upper() + ("..." if argument.nargs != 1 else "")
    return shown if argument.required else f"[{shown}]"


def _value(option: Any) -> str:
    """Return what an option takes."""
    kind = option.type_descriptor.annotation
    if option.metavar:
        return str(option.metavar)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    return next((word for base, word in _KINDS.items() if kind is base), "TEXT")


def _spelling(option: Any) -> str:
    """Return how an option is written, with what it takes."""
    names = [f"`{name}`" for name in (*option.opts, *option.secondary_opts)]
    takes = "" if option.is_flag else f" `{_value(option)}`"
    return (", ".join(names) + takes).replace("|", "\\|")


def _text(text: str | None) -> str:
    """Return help as a paragraph."""
    return inspect.cleandoc(text or "").strip()


def _sentence(text: str | None) -> str:
    """Return help as one line."""
    return re.sub(r"\s+", " ", _text(text))


def _cell(text: str | None) -> str:
    """Return help as a table's cell."""
    return _sentence(text).replace("|", "\\|")


def main() -> int:
    """Write or check the page; return the exit code."""
    text = page()
    if "--check" in sys.argv[1:]:
        is_current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        sys.stderr.write("" if is_current else "docs/cli.md is stale: make docs\n")
        return 0 if is_current else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

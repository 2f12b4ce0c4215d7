"""``pie-mlx models``, ``pull`` and ``rm``: which models there are, and which are here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pie_mlx.cli.figures import format_bytes, format_count
from pie_mlx.cli.options import OutputFlags, color_of, load_config

if TYPE_CHECKING:
    from pie_mlx.errors import Fact
    from pie_mlx.models.store import Installed

SCHEMA = "pie-mlx.models/1"


def models(*, output: OutputFlags) -> None:
    """List the models that have a name, and those that are here."""
    from pie_mlx.cli.render import Stdout

    facts = _model_facts()
    stdout = Stdout(color_of(output))
    if output.json:
        stdout.json({"schema": SCHEMA, "models": list(facts)})
        return
    header = ("name", "parameters", "kind", "context", "disk", "memory", "here")
    rows = [
        (
            f"{fact['name']}{' (default)' if fact['default'] else ''}",
            str(fact["parameters"] or "–"),
            str(fact["quantization"] or "–"),
            format_count(_number(fact["context_tokens"])),
            format_bytes(_number(fact["disk_bytes"])),
            _memory_cell(fact),
            "✓" if fact["installed"] else "",
        )
        for fact in facts
    ]
    stdout.table(header, rows, right=(3, 4, 5))


def _model_facts() -> list[dict[str, Fact]]:
    """Return one object a model: the registry's in its order, then what is here without a name there."""
    from pie_mlx import platform
    from pie_mlx.models.registry import load_registry
    from pie_mlx.models.store import installed

    registry = load_registry()
    here = {item.name: item for item in installed()}
    total = platform.memory().total_bytes
    facts: list[dict[str, Fact]] = []
    for name, entry in registry:
        need = entry.min_ram_gb
        fits = None if total is None or need is None else total >= need * 0.9e9
        facts.append(
            {
                "name": name,
                "default": name == registry.default_name,
                "source": entry.source,
                "parameters": entry.parameters,
                "quantization": entry.quantization,
                "context_tokens": entry.context,
                "disk_bytes": entry.disk_bytes,
                "memory_bytes": entry.memory_bytes,
                "fits_this_machine": fits,
                "thinking": entry.thinking,
                "licence": entry.licence,
                **_here(here.pop(name, None)),
            }
        )
    return facts + [_unnamed(item) for item in here.values()]


def _here(item: Installed | None) -> dict[str, Fact]:
    """Return whether and where a model is here."""
    return {"installed": item is not None, "path": None if item is None else str(item.path)}


def _unnamed(item: Installed) -> dict[str, Fact]:
    """Return what is known of an installed model that the registry does not name."""
    unknown = ("parameters", "quantization", "context_tokens", "memory_bytes", "fits_this_machine", "licence")
    return {
        "name": item.name,
        "default": False,
        "source": item.source,
        **dict.fromkeys(unknown),
        "disk_bytes": item.size_bytes,
        "thinking": False,
        **_here(item),
    }


def _number(fact: Fact) -> int | None:
    """Return a whole number, None for anything else."""
    return fact if isinstance(fact, int) else None


def _memory_cell(fact: dict[str, Fact]) -> str:
    """Return the memory a model needs, and whether that is too much for this machine."""
    need = format_bytes(_number(fact["memory_bytes"]))
    return f"{need} (too large here)" if fact["fits_this_machine"] is False else need


def pull(
    name: Annotated[str, typer.Argument(help="Registry name, hf:OWNER/NAME, folder or GGUF file.")],
    *,
    offline: Annotated[bool | None, typer.Option("--offline/--online", help="Never use the network.")] = None,
    output: OutputFlags,
) -> None:
    """Download a model, check it and make it ready."""
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.pulling import showing_progress
    from pie_mlx.cli.render import Stdout
    from pie_mlx.config import load
    from pie_mlx.models import fetch

    settings = load({"offline": offline, **output.config_flags()}).settings
    stderr = Stderr(settings.color)
    try:
        with showing_progress(stderr) as progress:
            folder = fetch.pull(name, progress=progress, offline=settings.offline)
    except KeyboardInterrupt:
        stderr.line(f"stopped; pie-mlx pull {name} goes on from here")
        raise
    stdout = Stdout(settings.color)
    if output.json:
        stdout.json({"schema": "pie-mlx.pull/1", "name": name, "path": str(folder)})
        return
    stderr.line(f'{name} is ready; try: pie-mlx run -m {name} "Hello"')
    stdout.line(str(folder))


def rm(
    name: Annotated[str, typer.Argument(help="A model that is here.")],
    *,
    output: OutputFlags,
) -> None:
    """Remove a model that was pulled."""
    from pie_mlx.cli.render import Stdout
    from pie_mlx.models import fetch

    freed = fetch.remove(name)
    stdout = Stdout(load_config(output).settings.color)
    if output.json:
        stdout.json({"schema": "pie-mlx.rm/1", "name": name, "freed_bytes": freed})
    else:
        stdout.line(f"removed {name} ({format_bytes(freed)})")

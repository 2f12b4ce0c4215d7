"""``pie-mlx snapshots``: contexts that were saved with their K/V, and the disk they take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pie_mlx.cli.figures import format_bytes, format_count
from pie_mlx.cli.options import OutputFlags, color_of

if TYPE_CHECKING:
    from pie_mlx.errors import Fact
    from pie_mlx.kv.snapshot import SnapshotStore

SCHEMA = "pie-mlx.snapshots/1"


def _store() -> SnapshotStore:
    """Return the user's snapshots."""
    from pie_mlx import config
    from pie_mlx.kv.snapshot import SnapshotStore

    return SnapshotStore(config.folder("state") / "snapshots")


def ls(*, output: OutputFlags) -> None:
    """List saved contexts; one that cannot be read is listed with the reason."""
    from pie_mlx.cli.render import Stdout
    from pie_mlx.errors import SnapshotError

    store = _store()
    facts: list[dict[str, Fact]] = []
    for name in store.names():
        try:
            found = store.look(name)
        except SnapshotError as error:
            facts.append({"name": name, "error": error.reason})
            continue
        facts.append(
            {
                "name": name,
                "model": found.model,
                "tokens": found.num_tokens,
                "resident_tokens": found.num_resident,
                "bytes": found.num_bytes,
            }
        )
    stdout = Stdout(color_of(output))
    if output.json:
        stdout.json({"schema": SCHEMA, "folder": str(store.folder), "snapshots": list(facts)})
        return
    if not facts:
        stdout.line(f"no snapshots in {store.folder}")
        return
    stdout.table(("name", "model", "tokens", "with K/V", "disk"), [_cells(fact) for fact in facts], right=(2, 3, 4))


def _cells(fact: dict[str, Fact]) -> tuple[str, ...]:
    """Return one line of the table."""
    if "error" in fact:
        return (str(fact["name"]), str(fact["error"]), "–", "–", "–")
    counts = tuple(value if isinstance(value := fact[key], int) else None for key in ("tokens", "resident_tokens"))
    size = fact["bytes"]
    return (
        str(fact["name"]),
        str(fact["model"]),
        *(format_count(count) for count in counts),
        format_bytes(size if isinstance(size, int) else None),
    )


def rm(names: Annotated[list[str], typer.Argument(help="Snapshots to delete.")], *, output: OutputFlags) -> None:
    """Delete saved contexts."""
    from pie_mlx.cli.render import Stdout

    store = _store()
    freed = {name: store.remove(name) for name in names}
    stdout = Stdout(color_of(output))
    if output.json:
        stdout.json({"schema": SCHEMA, "removed": dict(freed)})
        return
    for name, size in freed.items():
        stdout.line(f"removed {name} ({format_bytes(size)})")

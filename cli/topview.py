"""How ``top`` shows a reading: a headline, and tables of contexts, requests and alarms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

_MAX_ROWS = 20
_BAR = 20
_NUMBERS = ("id", "context", "tokens", "pages", "shared", "evicted", "idle s", "age s")


def picture(facts: dict[str, Any], tps: float | None = None) -> RenderableType:
    """Return one look: a headline, contexts, requests and alarms; ``tps`` is the speed since the look before."""
    from rich.console import Group as Rows

    parts: list[RenderableType] = [_headline(facts, tps), _contexts(facts), _requests(facts)]
    if facts["alarms"]:
        rows = [(alarm["level"], alarm["kind"], alarm["message"]) for alarm in facts["alarms"][-5:]]
        parts.append(_table("alarms", ("level", "kind", "what"), rows))
    return Rows(*parts)


def _headline(facts: dict[str, Any], tps: float | None) -> RenderableType:
    """Return the pool, whose it is and what it does in two lines."""
    from rich.text import Text

    from pie_mlx.cli.clean import one_line

    pages = facts["pages"]
    state = "alive" if facts["is_alive"] else "DEAD"
    pool = (
        f"pages {pages['held']}/{pages['total']} held (private {pages['private']}, shared {pages['shared']}, "
        f"cached {pages['cached']}), sharing {pages['sharing_ratio']:.2f}"
    )
    filled = round(_BAR * pages["held"] / max(pages["total"], 1))
    return Text.assemble(
        (one_line(str(facts["model"])), "bold"),
        " · ",
        (state, "green" if facts["is_alive"] else "bold red"),
        f" · {one_line(_second(facts, tps))}\n",
        ("█" * filled, "cyan"),
        ("░" * (_BAR - filled), "dim"),
        f" {pool}\n",
    )


def _second(facts: dict[str, Any], tps: float | None) -> str:
    """Return the line under the headline: whose engine it is, its queues, its speed."""
    parts = []
    if "process" in facts:
        process = facts["process"]
        parts.append(f"{process['command']}, process {process['pid']}")
    for kind, one in facts.get("admission", {}).items():
        parts.append(f"{kind} {one['inside']} inside {one['waiting']} waiting")
    ended = (f"{facts['counters'].get(name, 0):,} {name}" for name in ("completed", "failed", "cancelled"))
    parts.append(f"requests: {', '.join(ended)}")
    if tps is not None:
        parts.append(f"{tps:.1f} tok/s")
    return " · ".join(parts)


def _contexts(facts: dict[str, Any]) -> RenderableType:
    """Return the contexts with most pages first."""
    ordered = sorted(facts["contexts"], key=lambda one: (-one["num_pages"], one["id"]))
    rows = [
        (
            str(one["id"]),
            one["name"],
            str(one["num_tokens"]),
            str(one["num_pages"]),
            str(one["num_pages"] - one["num_private"]),
            str(one["num_evicted_tokens"]),
            f"{one['idle_s']:.1f}",
        )
        for one in ordered
    ]
    return _table("contexts", ("id", "name", "tokens", "pages", "shared", "evicted", "idle s"), rows)


def _requests(facts: dict[str, Any]) -> RenderableType:
    """Return the requests, oldest first, with what each waits for."""
    ordered = sorted(facts["requests"], key=lambda one: -one["age_s"])
    rows = [
        (
            str(one["id"]),
            str(one["context"]),
            one["phase"],
            str(one["completion_tokens"]),
            f"{one['age_s']:.1f}",
            one["waits_for"] or "",
        )
        for one in ordered
    ]
    return _table("requests", ("id", "context", "phase", "tokens", "age s", "waits for"), rows)


def _table(title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> RenderableType:
    """Return a table of at most as many rows as a screen has, and how many there are."""
    from rich.table import Table
    from rich.text import Text

    from pie_mlx.cli.clean import one_line

    shown = f", {_MAX_ROWS} shown" if len(rows) > _MAX_ROWS else ""
    heading = Text(f"{len(rows)} {title if len(rows) != 1 else title[:-1]}{shown}", "bold")
    table = Table(
        title=heading, box=None, title_justify="left", pad_edge=False, header_style="dim", padding=(0, 2, 0, 0)
    )
    for name in header:
        table.add_column(name, no_wrap=True, justify="right" if name in _NUMBERS else "left")
    for row in rows[:_MAX_ROWS]:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    return table

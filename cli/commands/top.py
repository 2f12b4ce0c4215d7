"""``pie-mlx top``: pages, contexts, requests and alarms of a running server, live or once."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import typer

from pie_mlx.cli.options import Group, OutputFlags, color_of
from pie_mlx.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_SCHEMA = "pie-mlx.pages/1"
_TIMEOUT_S = 10.0
_MAX_ROWS = 20
_LARGEST = 64 << 20


@dataclass(frozen=True)
class TopFlags(Group):
    """Which server, and how often."""

    url: Annotated[str, typer.Option(help="The server's address.")] = "http://127.0.0.1:8080"
    api_key: Annotated[str | None, typer.Option(help="The server's key.")] = None
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1, max=3600.0)] = 1.0
    once: Annotated[bool, typer.Option("--once", help="Look once; so it is in a pipe.")] = False


def top(*, look: TopFlags, output: OutputFlags) -> None:
    """Show pages, contexts, requests and alarms of a running server."""
    from pie_mlx.cli.render import Stdout, make_console

    stdout = Stdout(color_of(output))
    facts = fetch(look)
    if output.json:
        stdout.json(facts)
    elif look.once or not stdout.is_terminal:
        stdout.show(picture(facts))
    else:
        _live(look, facts, make_console(sys.stdout, color_of(output)))


def _live(look: TopFlags, facts: dict[str, Any], console: Console) -> None:
    """Draw again and again, until Ctrl-C."""
    from rich.live import Live

    with Live(picture(facts), console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(picture(facts), refresh=True)
            time.sleep(look.interval)
            facts = fetch(look)


def fetch(look: TopFlags) -> dict[str, Any]:
    """Return a server's reading.

    Raises:
        UsageError: the address is none, nobody answers there, or the answer is not a reading.
    """
    if urlsplit(look.url).scheme not in ("http", "https"):
        raise UsageError(f"{look.url!r} is not an address such as http://127.0.0.1:8080")
    headers = {"Authorization": f"Bearer {look.api_key}"} if look.api_key else {}
    request = Request(look.url.rstrip("/") + "/v1/pages", headers=headers)  # noqa: S310  the scheme is checked above
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  as above
            facts = json.loads(answer.read(_LARGEST))
    except HTTPError as error:
        hint = "add --api-key KEY" if error.code == 401 else None
        raise UsageError(f"the server at {look.url} answers {error.code}", hint) from error
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(f"no server answers at {look.url}: {reason}", "start one: pie-mlx serve") from error
    except ValueError as error:
        raise UsageError(f"what answers at {look.url} is not a pie-mlx server") from error
    if not isinstance(facts, dict) or facts.get("schema") != _SCHEMA:
        raise UsageError(f"what answers at {look.url} is not a pie-mlx server of this version")
    return facts


def picture(facts: dict[str, Any]) -> RenderableType:
    """Return one look at a server: a headline, contexts, requests and alarms."""
    from rich.console import Group as Rows

    parts: list[RenderableType] = [_headline(facts), _contexts(facts), _requests(facts)]
    if facts["alarms"]:
        rows = [(alarm["level"], alarm["kind"], alarm["message"]) for alarm in facts["alarms"][-5:]]
        parts.append(_table("alarms", ("level", "kind", "what"), rows))
    return Rows(*parts)


def _headline(facts: dict[str, Any]) -> RenderableType:
    """Return the pool and the queues in two lines."""
    from rich.text import Text

    from pie_mlx.cli.clean import one_line

    pages, waiting = facts["pages"], facts["admission"]
    state = "alive" if facts["is_alive"] else "DEAD"
    pool = (
        f"pages {pages['held']}/{pages['total']} held (private {pages['private']}, shared {pages['shared']}, "
        f"cached {pages['cached']}), sharing {pages['sharing_ratio']:.2f}"
    )
    queues = ", ".join(f"{kind} {one['inside']} inside {one['waiting']} waiting" for kind, one in waiting.items())
    return Text(f"{one_line(str(facts['model']))} · {state} · {pool}\n{queues}")


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
    table = Table(title=f"{len(rows)} {title}{shown}", box=None, title_justify="left", pad_edge=False, expand=False)
    for name in header:
        table.add_column(name, no_wrap=True)
    for row in rows[:_MAX_ROWS]:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    return table

"""``pie-mlx top``: pages, contexts, requests and alarms of a running process or server, live or once."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import typer

from pie_mlx.cli.options import Group, OutputFlags, color_of
from pie_mlx.cli.topview import picture
from pie_mlx.errors import UsageError

if TYPE_CHECKING:
    from pie_mlx.cli.processes import Process
    from pie_mlx.cli.render import ColorWish, Stdout

_SCHEMA = "pie-mlx.pages/1"
_LIST_SCHEMA = "pie-mlx.processes/1"
_TIMEOUT_S = 10.0
_LARGEST = 64 << 20

Look: TypeAlias = Callable[[], dict[str, Any]]
"""Takes a reading."""


@dataclass(frozen=True)
class TopFlags(Group):
    """Which server, and how often."""

    url: Annotated[str | None, typer.Option(help="A server's address, such as http://127.0.0.1:8080.")] = None
    api_key: Annotated[str | None, typer.Option(help="The server's key.")] = None
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1, max=3600.0)] = 1.0
    once: Annotated[bool, typer.Option("--once", help="Look once; so it is in a pipe.")] = False


def top(
    which: Annotated[
        str | None,
        typer.Argument(help="A process id or a server's address (default: what runs here).", show_default=False),
    ] = None,
    *,
    look: TopFlags,
    output: OutputFlags,
) -> None:
    """Show pages, contexts, requests and alarms of what runs: a chat, a search, the workbench, a server."""
    from pie_mlx.cli.render import Stdout

    stdout = Stdout(color_of(output))
    url = look.url or (which if which is not None and "://" in which else None)
    if url is not None:
        if look.url and which is not None:
            raise UsageError("one address or process at a time", "pie-mlx top " + look.url)
        _show(lambda: fetch(url, look.api_key), look, output, stdout)
        return
    with ExitStack() as opened:
        found = [opened.enter_context(process) for process in _find(which)]
        if len(found) > 1:
            _list(found, output, stdout)
        else:
            _show(found[0].look, look, output, stdout)


def _find(which: str | None) -> list[Process]:
    """Return the processes that are meant.

    Raises:
        UsageError: there is none, or ``which`` is no process id.
    """
    from pie_mlx.cli.processes import find

    if which is not None and not (which.isascii() and which.isdigit()):
        raise UsageError(f"{which!r} is neither a process id nor an address such as http://127.0.0.1:8080")
    found = find(None if which is None else int(which))
    if found:
        # One process has one engine at a time; one that it has just left may still answer.
        return list({process.pid: process for process in found}.values())
    if which is not None:
        raise UsageError(f"process {which} runs no engine of yours", "pie-mlx top shows what runs")
    hint = "start pie-mlx chat, tot run, tui or serve; or name a server: pie-mlx top http://HOST:PORT"
    raise UsageError("nothing runs here that can be looked at", hint)


def _list(found: list[Process], output: OutputFlags, stdout: Stdout) -> None:
    """Show which processes there are, for the next call to name one."""
    from pie_mlx.cli.processes import Gone

    rows: list[dict[str, Any]] = []
    for process in found:
        try:
            facts = process.look()
        except Gone:
            continue
        pages = facts["pages"]
        rows.append({**facts["process"], "model": facts["model"], "held": pages["held"], "total": pages["total"]})
    if output.json:
        stdout.json({"schema": _LIST_SCHEMA, "processes": rows})
        return
    cells = [
        (str(row["pid"]), row["command"], row["model"], f"{row['held']}/{row['total']}", _age(row["began_s"]))
        for row in rows
    ]
    stdout.table(("process", "command", "model", "pages", "age"), cells, right=(0, 3, 4))
    if stdout.is_terminal:
        stdout.line(f"\npie-mlx top {rows[-1]['pid']} looks at one of them" if rows else "")


def _age(began_s: float) -> str:
    """Return how long something runs."""
    seconds = max(0, int(time.time() - began_s))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"


def _show(take: Look, look: TopFlags, output: OutputFlags, stdout: Stdout) -> None:
    """Show one reading, or one after the other where a person looks on."""
    from pie_mlx.cli.processes import Gone

    try:
        facts = take()
    except Gone as error:
        raise UsageError("the process does not answer", "pie-mlx top shows what runs") from error
    if output.json:
        stdout.json(facts)
    elif look.once or not stdout.is_terminal:
        stdout.show(picture(facts))
    else:
        _live(take, facts, look.interval, color_of(output))


def _live(take: Look, facts: dict[str, Any], interval_s: float, color: ColorWish) -> None:
    """Draw again and again, until q, Ctrl-C or the process's end."""
    from rich.live import Live

    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.processes import Gone
    from pie_mlx.cli.render import make_console

    console = make_console(sys.stdout, color)
    before, before_s = facts, time.monotonic()
    try:
        with _keys() as wants_to_leave, Live(picture(facts), console=console, auto_refresh=False, screen=True) as live:
            while not wants_to_leave(interval_s):
                facts, now_s = take(), time.monotonic()
                live.update(picture(facts, _speed(before, facts, now_s - before_s)), refresh=True)
                before, before_s = facts, now_s
    except KeyboardInterrupt:
        return
    except Gone:
        Stderr(color).note("the process has ended")


def _speed(before: dict[str, Any], facts: dict[str, Any], seconds: float) -> float:
    """Return the tokens a second between two readings."""
    counts = [one["counters"].get("tokens_committed", 0) for one in (before, facts)]
    return float(counts[1] - counts[0]) / max(seconds, 1e-3)


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Give a function that waits, and says whether q was pressed meanwhile; the terminal is as before afterwards."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _just_wait
        return
    import os
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def wants_to_leave(seconds: float) -> bool:
        until_s = time.monotonic() + seconds
        while select.select([descriptor], [], [], max(0.0, until_s - time.monotonic()))[0]:
            pressed = os.read(descriptor, 64)
            if not pressed or pressed.lower().startswith(b"q"):
                return True
        return False

    tty.setcbreak(descriptor)
    try:
        yield wants_to_leave
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _just_wait(seconds: float) -> bool:
    """Wait; there is no keyboard."""
    time.sleep(seconds)
    return False


def fetch(url: str, api_key: str | None) -> dict[str, Any]:
    """Return a server's reading.

    Raises:
        UsageError: the address is none, nobody answers there, or the answer is not a reading.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"{url!r} is not an address such as http://127.0.0.1:8080")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = Request(url.rstrip("/") + "/v1/pages", headers=headers)  # noqa: S310  the scheme is checked above
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  as above
            facts = json.loads(answer.read(_LARGEST))
    except HTTPError as error:
        hint = "add --api-key KEY" if error.code == 401 else None
        raise UsageError(f"the server at {url} answers {error.code}", hint) from error
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(f"no server answers at {url}: {reason}", "start one: pie-mlx serve") from error
    except ValueError as error:
        raise UsageError(f"what answers at {url} is not a pie-mlx server") from error
    if not isinstance(facts, dict) or facts.get("schema") != _SCHEMA:
        raise UsageError(f"what answers at {url} is not a pie-mlx server of this version")
    return facts

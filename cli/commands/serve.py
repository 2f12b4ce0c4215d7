"""``pie-mlx serve``: the HTTP daemon over one model."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pie_mlx.cli.options import (
    EngineFlags,
    Group,
    OutputFlags,
    SamplingFlags,
    load_config,
    model_name,
    open_engine,
    sampling_of,
    with_model,
)
from pie_mlx.errors import UsageError

if TYPE_CHECKING:
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.config import Settings
    from pie_mlx.engine import Engine
    from pie_mlx.server.daemon import Daemon
    from pie_mlx.server.settings import ServerSettings

SCHEMA = "pie-mlx.serve/1"
_EXIT_AT_ONCE = 143


@dataclass(frozen=True)
class ServerFlags(Group):
    """Where the daemon listens, and what it takes; a flag not given keeps the daemon's own default."""

    panel = "Server"

    host: Annotated[str | None, typer.Option(help="Address to listen on (default: 127.0.0.1).")] = None
    port: Annotated[int | None, typer.Option("--port", "-p", help="Port (default: 8080); 0 takes a free one.")] = None
    api_key: Annotated[str | None, typer.Option(help="Key that clients must send; others on this machine see it.")] = (
        None
    )
    api_key_file: Annotated[Path | None, typer.Option(help="File that holds the key.")] = None
    served_name: Annotated[str | None, typer.Option(help="Name of the model in answers.")] = None
    max_running: Annotated[int | None, typer.Option(help="Completions at the same time (default: 32).")] = None
    max_waiting: Annotated[int | None, typer.Option(help="Completions that may wait (default: 128).")] = None
    max_searches: Annotated[int | None, typer.Option(help="Searches at the same time (default: 4).")] = None
    request_timeout: Annotated[float | None, typer.Option(help="Seconds a request may take (default: 600).")] = None
    drain_timeout: Annotated[float | None, typer.Option(help="Seconds to finish at the end (default: 30).")] = None
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Log prompts and answers.")] = False


def serve(*, server: ServerFlags, engine: EngineFlags, sampling: SamplingFlags, output: OutputFlags) -> None:
    """Serve a model over HTTP: OpenAI's protocol, searches as event streams, metrics."""
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.render import Stdout

    settings = load_config(engine, sampling, output).settings
    chosen = _server_settings(server, settings)
    stderr = Stderr(settings.color)
    _log_to(stderr)
    daemon_class = _daemon_class()
    from pie_mlx.server.shelf import InstalledModels

    def open_other(name: str) -> Engine:
        return open_engine(with_model(settings, name))

    with open_engine(settings) as opened:
        daemon = daemon_class(opened, chosen, InstalledModels(model_name(settings), open_other))

        def tell() -> None:
            facts = {"schema": SCHEMA, "url": daemon.url, "model": chosen.served_name or opened.facts.model}
            if output.json:
                Stdout(settings.color).json({**facts, "pid": os.getpid()})
            stderr.line(f"{facts['model']} is served at {facts['url']} (Ctrl-C drains, a second one ends at once)")

        code = daemon.run(tell)
        if daemon.has_ended_at_once:
            # The device may be busy for a while, and nobody is to wait for it.
            os._exit(_EXIT_AT_ONCE)
    stderr.line("the engine has died: every request got its error" if code else "drained")
    raise typer.Exit(code)


def _daemon_class() -> type[Daemon]:
    """Return the daemon's class.

    Raises:
        UsageError: the packages of the extra are not installed.
    """
    try:
        from pie_mlx.server.daemon import Daemon
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("pie_mlx"):
            raise
        raise UsageError(f"the package {error.name} is not installed", "pip install 'pie-mlx[serve]'") from error
    return Daemon


def _server_settings(flags: ServerFlags, settings: Settings) -> ServerSettings:
    """Return the daemon's settings.

    Raises:
        UsageError: a flag is outside its range, the key cannot be read, or strangers would be let in.
    """
    from pydantic import ValidationError

    from pie_mlx.server.settings import ServerSettings

    given: dict[str, object] = {
        "host": flags.host,
        "port": flags.port,
        "api_key": _key(flags),
        "served_name": flags.served_name,
        "max_running": flags.max_running,
        "max_waiting": flags.max_waiting,
        "max_searches": flags.max_searches,
        "request_timeout_s": flags.request_timeout,
        "drain_timeout_s": flags.drain_timeout,
        "logs_prompts": flags.log_prompts,
        "default_max_tokens": max(settings.max_tokens, 1),
    }
    drawn = sampling_of(settings)
    if settings.temp is not None or not drawn.is_greedy:
        given["temperature"] = drawn.temperature
    given |= {"top_p": drawn.top_p, "top_k": drawn.top_k, "min_p": drawn.min_p}
    try:
        chosen = ServerSettings.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        name = str(first["loc"][0]).removesuffix("_s").replace("_", "-") if first["loc"] else "settings"
        raise UsageError(f"--{name}: {first['msg'].lower()}", "pie-mlx serve --help") from error
    chosen.check()
    return chosen


def _key(flags: ServerFlags) -> str | None:
    """Return the key, from the flag or the file.

    Raises:
        UsageError: both are given, or the file cannot be read or is empty.
    """
    if flags.api_key_file is None:
        return flags.api_key
    if flags.api_key is not None:
        raise UsageError("--api-key and --api-key-file exclude each other")
    try:
        key = flags.api_key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{flags.api_key_file} cannot be read: {error}") from error
    if not key:
        raise UsageError(f"{flags.api_key_file} is empty", "put a key of at least 8 characters into it")
    return key


class _StderrLog(logging.Handler):
    """The daemon's log as lines on stderr."""

    def __init__(self, stderr: Stderr) -> None:
        super().__init__()
        self._stderr = stderr
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, cleaned."""
        self._stderr.line(self.format(record))


def _log_to(stderr: Stderr) -> None:
    """Send the daemon's log to stderr."""
    log = logging.getLogger("pie_mlx.server")
    log.handlers = [_StderrLog(stderr)]
    log.setLevel(logging.INFO)
    log.propagate = False

"""The log file: what the program did and how it failed, for later. It holds no prompts and no replies.

A command's name and its end are one line each; a failure is there with its traceback, also where the screen shows
only its sentence. A usage error quotes what was typed, so of that only the kind is logged.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
import traceback
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from pie_mlx.errors import UsageError

LOG = logging.getLogger("pie_mlx.cli")
_ROOT = logging.getLogger("pie_mlx")
_MAX_BYTES = 1_000_000
_NUM_OLD = 3
_names: list[str] = []
_FORM = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


def default_path() -> Path:
    """Return where the log lies unless a setting says otherwise; it need not exist yet."""
    from pie_mlx.config import folder

    if os.environ.get("PIE_MLX_STATE_DIR"):
        return folder("state") / "pie-mlx.log"
    import platformdirs

    return platformdirs.user_log_path("pie-mlx", appauthor=False) / "pie-mlx.log"


def log_path(flag: str | None = None) -> Path:
    """Return where the log lies: the flag, else the setting, else the system's place for logs.

    Raises:
        ConfigError: a configuration file is wrong.
    """
    from pie_mlx.config import load

    chosen = flag or load().settings.log_file
    return default_path() if chosen is None else Path(chosen).expanduser()


class LogFile(RotatingFileHandler):
    """A log that only its owner can read; what cannot be written is told once."""

    def __init__(self, path: Path) -> None:
        """Write behind what ``path`` holds; the file is opened with the first record."""
        super().__init__(path, maxBytes=_MAX_BYTES, backupCount=_NUM_OLD, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter(_FORM))
        self._is_broken = False

    def _open(self) -> TextIOWrapper:
        """Open the file, making its folder."""
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return TextIOWrapper(os.fdopen(descriptor, "ab"), encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (the name that logging calls)
        """Tell on stderr that there is no log; the command goes on without."""
        if self._is_broken:
            return
        self._is_broken = True
        from pie_mlx.cli.diagnostics import Stderr

        error = sys.exc_info()[1]
        Stderr().note(f"the log {self.baseFilename} cannot be written: {getattr(error, 'strerror', None) or error}")


def check_writable(path: Path) -> None:
    """Open the log as it will be opened.

    Raises:
        UsageError: it cannot be written.
    """
    handler = LogFile(path)
    try:
        handler.stream = handler._open()  # noqa: SLF001  (logging's own name for it)
    except OSError as error:
        raise UsageError(f"the log {path} cannot be written: {error.strerror}", "--log-file FILE") from error
    finally:
        with suppress(OSError):
            handler.close()


def begin(command: str, *, flag: str | None, debug: bool) -> None:
    """Begin to log, once: ``command`` is its name alone.

    Raises:
        UsageError: the file that ``--log-file`` names cannot be written.
    """
    from pie_mlx import __version__
    from pie_mlx.errors import ConfigError

    _names[:] = [command]
    if flag:
        check_writable(Path(flag).expanduser())
    try:
        path = log_path(flag)
    except (ConfigError, UsageError):
        # The command itself says what is wrong with the configuration, or mends it.
        path = default_path()
    _add(path, debug=debug)
    LOG.info("begin %s (pie-mlx %s, Python %s, %s)", command, __version__, platform.python_version(), sys.platform)


def command() -> str:
    """Return the name of the command that runs; the program's own where none has begun."""
    return _names[0] if _names else "pie-mlx"


def _add(path: Path, *, debug: bool) -> None:
    """Let records go to ``path``."""
    if not any(isinstance(handler, LogFile) for handler in _ROOT.handlers):
        _ROOT.addHandler(LogFile(path))
        _ROOT.setLevel(logging.DEBUG if debug else logging.INFO)


def end(code: int, began_s: float) -> None:
    """Log the end of a command, and close the file."""
    for handler in [handler for handler in _ROOT.handlers if isinstance(handler, LogFile)]:
        LOG.info("end %d after %.1f s", code, time.monotonic() - began_s)
        _ROOT.removeHandler(handler)
        # A full disk was told of when the first record was lost; how the command ended does not hang on its log.
        with suppress(OSError):
            handler.close()


def failure(code: str, error: BaseException) -> None:
    """Log a failure with its traceback; of a usage error only its kind, as its sentence quotes what was typed."""
    if getattr(error, "exit_code", 1) == UsageError.exit_code:
        LOG.info("refused: %s", code)
        return
    if not _ROOT.handlers:
        _add(default_path(), debug=False)
    LOG.error("failed: %s\n%s", code, "".join(traceback.format_exception(error)).rstrip("\n"))

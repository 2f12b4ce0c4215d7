"""Talk on stderr: errors with their cause and a command to try, notes, and the JSON form of an error."""

from __future__ import annotations

import math
import sys
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pie_mlx.cli.clean import clean_text, one_line
from pie_mlx.cli.render import ColorWish, Stdout, make_console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pie_mlx.errors import Fact, PieError

_MAX_HOLDERS = 5


@dataclass(frozen=True, slots=True)
class Report:
    """One failure, ready to be shown: what happened, why, and what to try."""

    code: str
    what: str
    why: str | None = None
    hint: str | None = None
    detail: Fact = None

    @classmethod
    def of(cls, error: PieError) -> Report:
        """Report a typed error: its kind is the headline, its sentence with the numbers the cause.

        A usage error's sentence is all there is to say.
        """
        from pie_mlx.errors import UsageError

        facts = error.to_json()
        if isinstance(error, UsageError):
            return cls(error.code, error.message, None, error.hint, facts["detail"])
        return cls(error.code, headline(error.code), error.message, error.hint, facts["detail"])

    def to_json(self) -> dict[str, Fact]:
        """Return ``{"error": {code, message, hint, detail}}``."""
        message = self.why or self.what
        detail = _sayable(self.detail)
        return {"error": {"code": self.code, "message": message, "hint": self.hint, "detail": detail}}


def _sayable(fact: Fact) -> Fact:
    """Return a fact that JSON can say: NaN and infinity, which an error may be about, as text."""
    if isinstance(fact, float) and not math.isfinite(fact):
        return str(fact)
    if isinstance(fact, list):
        return [_sayable(item) for item in fact]
    if isinstance(fact, dict):
        return {key: _sayable(item) for key, item in fact.items()}
    return fact


_HEADLINES = {
    "invalid_parameter": "a parameter is outside its range",
    "config": "the configuration is wrong",
    "model": "the model cannot be used",
    "model_not_found": "there is no such model here",
    "adapter_invalid": "the adapter cannot be used",
    "model_corrupt": "the model's files are damaged",
    "checksum_mismatch": "the download is not what the registry pins",
    "tokenizer_missing": "the model has no tokenizer",
    "unsupported_model": "this kind of model is not supported",
    "chat_template": "the chat template does not fit",
    "download_failed": "the download failed",
    "network_unavailable": "the network is not available",
    "disk_full": "the disk is full",
    "empty_prompt": "the prompt is empty",
    "context_too_long": "the prompt is too long for this model",
    "cancelled": "cancelled",
    "out_of_pages": "the pool has run out of pages",
    "impossible": "this request can never fit into the pool",
    "hog": "one context wants more than the pool can give",
    "starved": "starved: the pages never came free",
    "deadlock": "requests wait for each other",
    "leak": "pages are held that nobody uses",
    "device_failed": "the device failed",
    "step_timeout": "the device does not answer",
    "stalled": "nothing moves",
    "engine_dead": "the engine has ended",
    "session": "the saved sessions cannot be used",
    "session_not_found": "there is no such session",
    "session_exists": "the session's name is taken",
    "session_corrupt": "the file of the saved sessions is damaged",
    "session_version": "the saved sessions are from a newer version",
    "session_busy": "another process is writing the sessions",
    "conversation_too_long": "the conversation does not fit",
    "snapshot": "the snapshot cannot be used",
    "snapshot_missing": "there is no such snapshot",
    "snapshot_corrupt": "the snapshot is damaged",
    "snapshot_mismatch": "the snapshot is of another model",
    "snapshot_version": "the snapshot is from another version",
    "device": "the device cannot be used",
    "invalid_logits": "the model computed no valid probabilities",
    "not_enough_memory": "there is not enough memory",
    "pressure": "the pool is under pressure",
    "evicted": "the context was emptied to make room",
    "context_busy": "the context is in use",
    "context_closed": "the context is closed",
    "trace": "the trace cannot be used",
    "trace_version": "the trace is from another version",
}


def headline(code: str) -> str:
    """Return the first line of an error of this code."""
    return _HEADLINES.get(code, code.replace("_", " "))


class Stderr:
    """Standard error of one command."""

    def __init__(self, color: ColorWish = "auto") -> None:
        """Write to ``sys.stderr``."""
        self.console = make_console(sys.stderr, color)

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads it."""
        return sys.stderr.isatty()

    def line(self, text: str, *, style: str = "") -> None:
        """Write one line, cleaned and taken literally."""
        from rich.text import Text

        self.console.print(Text(clean_text(text), style=style), soft_wrap=True)

    def piece(self, text: str, *, style: str = "") -> None:
        """Write a bit of a line, cleaned and taken literally."""
        from rich.text import Text

        self.console.print(Text(clean_text(text), style=style), end="", soft_wrap=True)

    def note(self, text: str) -> None:
        """Say something that the user should know and that is no failure."""
        self._labelled("note:", text, "yellow")

    def labelled(self, label: str, text: str) -> None:
        """Write a line of a summary."""
        self._labelled(f"{label:<6}", text, "bold")

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show a person that something takes its time; say nothing to a file."""
        if not self.console.is_terminal:
            yield
            return
        from rich.text import Text

        with self.console.status(Text(clean_text(text), style="dim")):
            yield

    def report(self, report: Report) -> None:
        """Show a failure: ``error: what``, ``why: cause``, the holders of a starvation, ``try: command``."""
        self._labelled("error:", report.what, "bold red")
        if report.why and report.why != report.what:
            self._labelled("  why:", report.why, "bold")
        for line in _holder_lines(report.detail):
            self.line(f"       {line}", style="dim")
        if report.hint:
            self._labelled("  try:", report.hint, "bold green")

    def traceback(self, error: BaseException) -> None:
        """Show where an error came from."""
        for line in traceback.format_exception(error):
            self.line(line.rstrip("\n"), style="dim")

    def _labelled(self, label: str, text: str, style: str) -> None:
        """Write one line that begins with a coloured word."""
        from rich.text import Text

        self.console.print(Text.assemble((label, style), " ", one_line(text)), soft_wrap=True)


def _holder_lines(detail: Fact) -> list[str]:
    """Return a line for each of the largest holders of pages in a starvation's facts."""
    holders = detail.get("holders") if isinstance(detail, dict) else None
    if not isinstance(holders, list):
        return []
    lines = [
        f"{holder['name']} holds {holder['pages']} pages ({holder['shared_pages']} shared), "
        f"idle {holder['idle_s']:.1f} s"
        for holder in holders
        if isinstance(holder, dict)
    ]
    rest = len(lines) - _MAX_HOLDERS
    return lines[:_MAX_HOLDERS] + ([f"and {rest} more"] if rest > 0 else [])


def show_failure(report: Report, *, as_json: bool, color: ColorWish) -> None:
    """Show a failure where it belongs: one object on stdout with ``--json``, else lines on stderr."""
    if as_json:
        Stdout(color).json(report.to_json())
    else:
        Stderr(color).report(report)

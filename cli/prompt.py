"""Where a prompt comes from: the command line, stdin and attached files, joined in that order."""

from __future__ import annotations

import select
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pie_mlx.errors import UsageError

if TYPE_CHECKING:
    from pie_mlx.cli.diagnostics import Stderr

MAX_FILE_BYTES = 4_000_000
"""A larger attachment could not fit into any context that we run."""
_PATIENCE_S = 2.0
_FENCE = "```"


def gather_prompt(argument: str | None, files: Sequence[Path], *, stderr: Stderr, joins_stdin: bool = True) -> str:
    """Return the prompt: PROMPT (``-`` is stdin), what a pipe brings, and each file under its name.

    Without ``joins_stdin``, stdin is read for ``-`` alone.

    Raises:
        UsageError: there is nothing to say, or a part of it is not readable text.
    """
    parts = [] if argument in (None, "-") else [checked_text("the prompt", _undo_surrogates(argument or ""))]
    piped = _read_stdin(stderr, wanted=argument == "-") if joins_stdin or argument == "-" else ""
    if piped.strip():
        parts.append(piped)
    attached = [_attachment(path) for path in files]
    prompt = "\n\n".join(part.strip("\n") for part in (*parts, *attached))
    if not prompt.strip():
        raise UsageError("there is no prompt", 'pie-mlx run "Why is the sky blue?", or pipe text into pie-mlx run -')
    return prompt


def _undo_surrogates(text: str) -> bytes:
    """Return the bytes that an argument was typed as, whatever the locale made of them."""
    return text.encode("utf-8", "surrogateescape")


def checked_text(name: str, content: bytes) -> str:
    """Return ``content`` as text, without a byte order mark.

    Raises:
        UsageError: it is not UTF-8, or holds NUL bytes.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text (byte {error.start})", "convert it, if it is text") from error
    if "\0" in text:
        raise UsageError(f"{name} looks binary: it holds NUL bytes", "attach text only")
    return text.replace("\r\n", "\n")


def _read_stdin(stderr: Stderr, *, wanted: bool) -> str:
    """Read all of stdin where it is a pipe or a file, or where ``-`` asked for it; a terminal is not waited for."""
    stream = sys.stdin
    if stream is None or stream.closed or not (wanted or _brings_data(stream.buffer)):
        return ""
    if stream.isatty():
        stderr.note("reading the prompt from this terminal; Ctrl-D ends it")
    elif not select.select([stream], [], [], _PATIENCE_S)[0]:
        stderr.note("waiting for standard input (add </dev/null if there is none)")
    return checked_text("standard input", stream.buffer.read())


def _brings_data(stream: BinaryIO) -> bool:
    """Whether stdin is a pipe, a socket or a regular file; a terminal and /dev/null are neither."""
    import os

    mode = os.fstat(stream.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _attachment(path: Path) -> str:
    """Return a file as part of a prompt, under its name.

    Raises:
        UsageError: it cannot be read, is too large, or is not text.
    """
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder", "attach its files one by one: --file A --file B")
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            limit = f"{MAX_FILE_BYTES / 1e6:.0f} MB"
            raise UsageError(f"{path} has {size / 1e6:.1f} MB, over the limit of {limit}", "attach a smaller part")
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the path") from error
    text = checked_text(str(path), content).strip("\n")
    fence = _FENCE
    while fence in text:
        fence += "`"
    return f"File {path.name}:\n{fence}\n{text}\n{fence}"

"""Text files that go with a message."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pie_mlx.errors import UsageError

MAX_FILE_BYTES = 1_000_000
"""A larger file could not fit into the context of any model that a chat runs."""
_FENCE = "```"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file's name and text."""

    name: str
    text: str

    def as_text(self) -> str:
        """Return the file as part of a message: fenced, under its name."""
        fence = _FENCE
        while fence in self.text:
            fence += "`"
        body = self.text.strip("\n")
        return f"File {self.name}:\n{fence}\n{body}\n{fence}"


def read_attachment(path: Path) -> Attachment:
    """Read a text file as UTF-8, whatever the locale, without a byte order mark and with plain line ends.

    Raises:
        UsageError: it cannot be read, is too large, or is not text.
    """
    try:
        path = path.expanduser()
        if path.is_dir():
            raise UsageError(f"{path} is a folder", "attach its files one by one")
        if not path.is_file():
            raise UsageError(f"there is no file {path}", "check the path")
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise UsageError(f"{path} has {size:,} bytes, over the limit of {MAX_FILE_BYTES:,}", "attach a part of it")
        content = path.read_bytes()
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "check the path") from error
    if b"\0" in content:
        raise UsageError(f"{path} looks binary: it holds NUL bytes", "attach text only")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})", "convert it, if it is text") from error
    return Attachment(path.name, text.replace("\r\n", "\n").replace("\r", "\n"))

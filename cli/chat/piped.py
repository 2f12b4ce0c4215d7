"""The chat without a terminal: each line of standard input is a turn, answers go to standard output as they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from pie_mlx.chat.commands import Call, parse, run
from pie_mlx.chat.results import Copied, EditPrompt, Exported, Generating, Leave, Moved, Result, Said, TreeDrawn
from pie_mlx.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pie_mlx.chat.reply import Reply
    from pie_mlx.chat.session import ChatSession
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.render import Stdout


def read_lines(stream: BinaryIO) -> Iterator[str]:
    """Yield lines that say something, as UTF-8 whatever the locale; a backslash at the end joins the next line.

    Raises:
        UsageError: a line is not UTF-8.
    """
    pending = ""
    for number, raw in enumerate(stream, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            reason = f"line {number} of standard input is not UTF-8 text (byte {error.start})"
            raise UsageError(reason, "convert it to UTF-8 first") from error
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1] + "\n"
            continue
        whole, pending = pending + line, ""
        if whole.strip():
            yield whole
    if pending.strip():
        yield pending.rstrip("\n")


class PipedChat:
    """A chat whose other side is a program or a file."""

    def __init__(self, session: ChatSession, stdout: Stdout, stderr: Stderr) -> None:
        """Answer on ``stdout``; all talk goes to ``stderr``."""
        self._session = session
        self._stdout = stdout
        self._stderr = stderr

    def run(self, lines: Iterable[str]) -> None:
        """Take the lines as turns and commands, until one leaves or there are no more.

        Raises:
            PieError: the first failure ends the chat: later turns would answer to something else.
        """
        self._tell_notices()
        for line in lines:
            parsed = parse(line)
            if isinstance(parsed, Call):
                result = run(self._session, parsed)
                if isinstance(result, Leave):
                    return
                self._show(result)
            else:
                self._show_reply(self._session.send(parsed.text))
            self._tell_notices()

    def _show(self, result: Result) -> None:
        """Show what a command came to: talk, unless it is a reply."""
        if isinstance(result, Generating):
            self._show_reply(result.reply)
        elif isinstance(result, Said | Moved):
            for line in result.text.split("\n"):
                self._stderr.line(line)
        elif isinstance(result, TreeDrawn):
            for drawn in result.lines:
                self._stderr.line(str(drawn))
        elif isinstance(result, Exported):
            self._stderr.line(f"wrote {result.path} ({result.num_bytes:,} bytes)")
        else:
            assert isinstance(result, Copied | EditPrompt), "leaving is handled before"
            raise UsageError("this command needs a terminal", "run pie-mlx chat in a terminal")

    def _show_reply(self, reply: Reply) -> None:
        """Write an answer as it comes, and end its line."""
        last = ""
        with reply:
            for piece in reply:
                if piece.answer:
                    self._stdout.text(piece.answer)
                    last = piece.answer
        if not last.endswith("\n"):
            self._stdout.line()

    def _tell_notices(self) -> None:
        """Tell what the user should know, on stderr."""
        for notice in self._session.take_notices():
            self._stderr.note(notice)

"""What can go wrong with saved sessions and with the use of a chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pie_mlx.errors import ContextTooLong, PieError, UsageError


@dataclass(eq=False)
class SessionError(PieError):
    """A saved session, or the store that holds it, cannot be used."""

    code: ClassVar[str] = "session"
    session: str
    reason: str
    suggestion: str | None = None

    @property
    def message(self) -> str:
        """Name the session, or the store's file, and what is wrong."""
        return f"{self.session}: {self.reason}"

    @property
    def hint(self) -> str | None:
        """The suggestion, as given."""
        return self.suggestion


class SessionNotFound(SessionError):  # noqa: N818  (named by what happened, as all errors are)
    """No saved session has this name."""

    code: ClassVar[str] = "session_not_found"
    exit_code: ClassVar[int] = 2


class SessionExists(SessionError):  # noqa: N818  (named by what happened, as all errors are)
    """Another session has this name already."""

    code: ClassVar[str] = "session_exists"
    exit_code: ClassVar[int] = 2


class SessionCorrupt(SessionError):  # noqa: N818  (named by what happened, as all errors are)
    """The store's file is damaged or is no store."""

    code: ClassVar[str] = "session_corrupt"


class SessionVersion(SessionError):  # noqa: N818  (named by what happened, as all errors are)
    """The store was written by a newer version in a form that this one cannot read."""

    code: ClassVar[str] = "session_version"


class SessionBusy(SessionError):  # noqa: N818  (named by what happened, as all errors are)
    """Another process holds the store's write lock for too long."""

    code: ClassVar[str] = "session_busy"


class ReplyRunning(UsageError):  # noqa: N818  (as above)
    """The conversation cannot move while a reply is being generated."""

    code: ClassVar[str] = "reply_running"

    def __init__(self) -> None:
        """Say it."""
        super().__init__("a reply is being generated", "stop it first (Ctrl-C)")


@dataclass(eq=False)
class ConversationTooLong(ContextTooLong):
    """The conversation, or its newest message alone, leaves no room for a reply."""

    code: ClassVar[str] = "conversation_too_long"
    cause: str = ""

    @property
    def message(self) -> str:
        """Give both numbers, and what the limit comes from."""
        return f"the conversation has {self.num_tokens:,} tokens, but only {self.limit_tokens:,} fit ({self.cause})"

    @property
    def hint(self) -> str | None:
        """What makes room."""
        return "shorten the message, go back with /undo, begin with /new, or drop old turns with /set overflow trim"

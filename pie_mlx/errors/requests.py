"""One request: exit codes 1, 2 and 130."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pie_mlx.errors.base import PieError


@dataclass(eq=False)
class EmptyPrompt(PieError):
    """A request on a context that has no token: there is nothing to continue."""

    code: ClassVar[str] = "empty_prompt"
    exit_code: ClassVar[int] = 2

    @property
    def message(self) -> str:
        """Say that the prompt is empty."""
        return "the prompt is empty: a model needs at least one token to continue"


@dataclass(eq=False)
class ContextTooLong(PieError):
    """The sequence does not fit the model's context; not a memory problem."""

    code: ClassVar[str] = "context_too_long"
    exit_code: ClassVar[int] = 2
    num_tokens: int
    limit_tokens: int

    @property
    def message(self) -> str:
        """Give both numbers."""
        return f"the prompt has {self.num_tokens} tokens, but the model's context ends at {self.limit_tokens}"

    @property
    def hint(self) -> str | None:
        """Shorten it: the pool's size does not matter here."""
        return "shorten the prompt, or choose a model with a longer context (pie-mlx models)"


@dataclass(eq=False)
class Cancelled(PieError):
    """The user, or the owner of the context, ended the request."""

    code: ClassVar[str] = "cancelled"
    exit_code: ClassVar[int] = 130
    by: str = "user"

    @property
    def message(self) -> str:
        """Say who cancelled."""
        return f"cancelled by {self.by}"


@dataclass(eq=False)
class ContextClosed(PieError):
    """A closed context was used."""

    code: ClassVar[str] = "context_closed"
    context: str

    @property
    def message(self) -> str:
        """Name the context."""
        return f"context {self.context} is closed"


@dataclass(eq=False)
class ContextBusy(PieError):
    """A context runs one request at a time; fork it to run two."""

    code: ClassVar[str] = "context_busy"
    context: str

    @property
    def message(self) -> str:
        """Name the context."""
        return f"context {self.context} already runs a request"

    @property
    def hint(self) -> str | None:
        """Forking is free."""
        return "fork the context: a fork copies nothing"


@dataclass(eq=False)
class InvalidLogits(PieError):
    """The model returned NaN or infinite logits; no token can be drawn from them."""

    code: ClassVar[str] = "invalid_logits"
    position: int

    @property
    def message(self) -> str:
        """Give the position."""
        return f"the model returned NaN logits at position {self.position}"

    @property
    def hint(self) -> str | None:
        """Weights or dtype are to blame."""
        return "check the weights (pie-mlx info MODEL) and the device (pie-mlx doctor)"

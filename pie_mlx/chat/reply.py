"""A reply while it is generated: reasoning and answer told apart; it ends complete, partial or in an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pie_mlx.chat.settings import ChatSettings
from pie_mlx.chat.turns import Turn
from pie_mlx.engine.completion import Completion
from pie_mlx.engine.request import Request
from pie_mlx.errors import Cancelled, PieError
from pie_mlx.models.reasoning import ReasoningSplitter, SplitText

INTERRUPTED = "cancelled"
"""The finish reason of a reply that its reader stopped."""
SAME_REPLY = "at temperature 0 the reply stays the same: /set temperature 0.7"
"""What the user should know when a whole greedy reply is generated again."""


@dataclass(frozen=True, slots=True)
class ReplyPiece:
    """A bit of a reply; one of the two texts may be empty, and both are where a token shows nothing yet."""

    reasoning: str
    answer: str


@dataclass(frozen=True, slots=True)
class ReplyText:
    """All of a reply so far."""

    reasoning: str
    answer: str
    finish_reason: str | None
    """None while it runs."""


class Reply:
    """A reply in the making. Iterate it, or poll it; :meth:`stop` may be called from any thread."""

    def __init__(
        self,
        request: Request,
        turn: Turn,
        splitter: ReasoningSplitter,
        *,
        decode: Callable[[tuple[int, ...]], str],
        on_change: Callable[[Reply], None],
    ) -> None:
        """Follow ``request``; ``on_change`` hears of every piece and of the end, before the reader does."""
        self.turn = turn
        """The turn that the reply fills; its text is the one at the start."""
        self._request = request
        self._splitter = splitter
        self._decode = decode
        self._on_change = on_change
        self._raw = ""
        self._reasoning: list[str] = []
        self._answer: list[str] = []
        self._is_stopped = threading.Event()
        self._finish_reason: str | None = None
        self._error: PieError | None = None

    def __enter__(self) -> Self:
        """Return the reply itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, keeping what there is: a reader that fails must not leave it running."""
        self.close()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._finish_reason is not None

    @property
    def text(self) -> ReplyText:
        """What there is so far."""
        return ReplyText("".join(self._reasoning), "".join(self._answer), self._finish_reason)

    @property
    def error(self) -> PieError | None:
        """What it failed with, None if it did not."""
        return self._error

    @property
    def phase(self) -> str:
        """What the engine does for it: waiting, prefilling, decoding or another phase of a request."""
        return self._request.phase

    @property
    def completion(self) -> Completion:
        """The engine's figures so far: tokens, times, what was cached."""
        return self._request.partial

    def stop(self) -> None:
        """End generation now; the reader still gets what there is, and the turn is kept as partial."""
        self._is_stopped.set()
        self._request.cancel()

    def close(self) -> None:
        """Stop it if it still runs, and read it to its end. Idempotent."""
        if self.is_over:
            return
        self.stop()
        while not self.is_over:
            try:
                self.poll()
            except PieError:
                if not self.is_over:
                    raise

    def __iter__(self) -> Iterator[ReplyPiece]:
        """Yield pieces as they come.

        Raises:
            PieError: generation failed; what there was is kept as a partial turn.
        """
        while (piece := self.poll()) is not None:
            yield piece

    def poll(self, timeout_s: float | None = None) -> ReplyPiece | None:
        """Return the next piece, waiting up to ``timeout_s``; None is the end, also after :meth:`stop`.

        Raises:
            TimeoutError: no piece came in time; the reply goes on.
            PieError: generation failed; what there was is kept as a partial turn.
        """
        if self._error is not None:
            raise self._error
        if self.is_over:
            return None
        try:
            piece = self._request.poll(timeout_s)
        except PieError as error:
            return self._end_early(error)
        if piece is not None:
            self._raw += piece.text
            return self._take(self._splitter.push(piece.text), None)
        return self._take(self._splitter.finish(), self._request.partial.finish_reason)

    def _end_early(self, error: PieError) -> ReplyPiece:
        """End with what there is, after a stop or a failure.

        Raises:
            PieError: it was a failure.
        """
        # Tokens are recorded before their text is certain; what was held back for a stop text belongs to the reply.
        whole = self._decode(self._request.partial.tokens).rstrip("\ufffd")
        rest = whole.removeprefix(self._raw) if whole.startswith(self._raw) else ""
        first, last = self._splitter.push(rest), self._splitter.finish()
        split = SplitText(first.reasoning + last.reasoning, first.answer + last.answer)
        if isinstance(error, Cancelled) and self._is_stopped.is_set():
            return self._take(split, INTERRUPTED)
        self._error = error
        self._take(split, error.code)
        raise error

    def _take(self, split: SplitText, finish_reason: str | None) -> ReplyPiece:
        """Record a piece, tell, and return it."""
        self._reasoning.append(split.reasoning)
        self._answer.append(split.answer)
        self._finish_reason = finish_reason
        self._on_change(self)
        return ReplyPiece(split.reasoning, split.answer)


def ending_notices(turn: Turn, settings: ChatSettings) -> tuple[str, ...]:
    """Return what the user should know about how a reply ended."""
    if turn.finish_reason == INTERRUPTED:
        if turn.text:
            return ("stopped; the reply is kept as it is (/retry generates it again)",)
        return ("stopped before the answer began: the model will not see this message again (/retry answers it)",)
    if turn.finish_reason == "context_full":
        return ("the reply filled the context and ends here",)
    if turn.finish_reason == "length":
        limit = f"max_tokens {settings.max_tokens} (/set max_tokens N)"
        return (f"all of {limit} went into reasoning: there is no answer",) if not turn.text else (f"cut at {limit}",)
    if turn.finish_reason == "stop" and not turn.text.strip():
        return ("the model ended its reply without a word",)
    return ()

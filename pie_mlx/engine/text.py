"""Text of a request while it is generated: detokenizer and stop strings as one stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pie_mlx.models.stops import StopMatcher


class TextPieces(Protocol):
    """A streaming detokenizer: pieces join to the decoded whole."""

    def push(self, token: int) -> str:
        """Take a token; return the text that is now certain."""
        ...

    def finish(self) -> str:
        """Return what was held back."""
        ...


class Codec(Protocol):
    """What the engine needs of a tokenizer; :class:`pie_mlx.models.tokenizer.Tokenizer` is one."""

    def stream(self) -> TextPieces:
        """Return a new streaming detokenizer."""
        ...


class StoppingText:
    """Text up to the first of ``stops``; what could still become a stop is held back."""

    def __init__(self, codec: Codec, stops: Sequence[str]) -> None:
        """Start with no text.

        Raises:
            InvalidParameter: a stop string is empty, or there are too many.
        """
        self._pieces = codec.stream()
        self._matcher = StopMatcher(stops)
        self._has_stopped = False

    def push(self, token: int) -> tuple[str, bool]:
        """Take a token; return the text that is now certain, and whether a stop string has matched."""
        text, self._has_stopped = self._matcher.push(self._pieces.push(token))
        return text, self._has_stopped

    def finish(self) -> str:
        """Return the text that was held back; nothing behind a stop."""
        if self._has_stopped:
            return ""
        text, matched = self._matcher.push(self._pieces.finish())
        return text if matched else text + self._matcher.finish()

"""Stop strings in text that arrives piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from pie_mlx.errors import InvalidParameter
from pie_mlx.models.reasoning import first_to_end, held_back

MAX_STOPS = 16


class StopMatcher:
    """Cuts streamed text before the first stop string, wherever tokens begin and end."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Watch for ``stops``; none is allowed.

        Raises:
            InvalidParameter: a stop string is empty, or there are more than :data:`MAX_STOPS`.
        """
        if isinstance(stops, str):
            raise InvalidParameter("stop", stops, "a list of texts")
        if len(stops) > MAX_STOPS:
            raise InvalidParameter("stop", f"{len(stops)} texts", f"at most {MAX_STOPS} texts")
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                raise InvalidParameter("stop", stop, "a text that is not empty")
        self._stops = tuple(stops)
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that was found, None while none was."""
        return self._matched

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece; return the text that may be shown, and whether a stop string was found.

        What may be the beginning of a stop string is held back. After a match nothing more comes.
        """
        if self._matched is not None:
            return "", True
        text = self._held + text
        found = first_to_end(text, self._stops)
        if found is not None:
            at, self._matched = found
            self._held = ""
            return text[:at], True
        keep = held_back(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def finish(self) -> str:
        """Return what was held back: the text ended, so it was no stop string."""
        held, self._held = self._held, ""
        return held

"""A written rating, the last resort: let the model write, then read one number strictly.

The number is the last anchored match on the last line that is not empty, and it must lie in the range. A
judge whose text was cut off before it, or that wrote prose, gives no value: never 0, and never a digit out of
the middle of a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pie_mlx.search.node import Score
from pie_mlx.search.scoring.base import Judge, Scorer, Subject, TextReading, failed_score

_RATING = re.compile(
    r"(?:^|(?:rating|score|value)\s*(?:is|:|=)?\s*)(?P<number>[-+]?\d+(?:\.\d+)?)(?:\s*/\s*(?P<top>\d+))?\s*\.?\s*$",
    re.IGNORECASE | re.ASCII,
)


def parse_rating(text: str, low: float, high: float) -> float | None:
    """Return the rating that ``text`` ends with, None where there is none in ``[low, high]``.

    A fraction (``8/10``) counts only where its lower number is ``high``.
    """
    lines = [line.strip(" \t*_`") for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    match = _RATING.search(lines[-1])
    if match is None or (match["top"] is not None and float(match["top"]) != high):
        return None
    number = float(match["number"])
    return number if low <= number <= high else None


class RatingScorer(Scorer):
    """Asks for a number from ``low`` to ``high`` and maps it to 0 … 1."""

    def __init__(
        self,
        question: Callable[[Subject], tuple[int, ...]],
        *,
        low: float = 1.0,
        high: float = 10.0,
        max_tokens: int = 24,
    ) -> None:
        """Judge after the prompt that ``question`` writes, in at most ``max_tokens`` tokens."""
        self._question = question
        self._low, self._high = low, high
        self._max_tokens = max_tokens

    @property
    def kind(self) -> str:
        """The name that its scores carry."""
        return "rating"

    def score(self, subjects: Sequence[Subject], judge: Judge) -> list[Score]:
        """Let the model write one verdict a subject and read them."""
        readings = judge.write(
            [subject.node for subject in subjects],
            [self._question(subject) for subject in subjects],
            max_tokens=self._max_tokens,
            seeds=[subject.seed for subject in subjects],
        )
        return [self._read(reading) for reading in readings]

    def _read(self, reading: TextReading) -> Score:
        """Read one verdict; one that the token limit cut off counts only where its line is complete."""
        if reading.error is not None:
            return failed_score(self.kind, reading.error)
        text = reading.text if reading.finish != "length" else reading.text.rpartition("\n")[0]
        rating = parse_rating(text, self._low, self._high)
        return Score(None if rating is None else (rating - self._low) / (self._high - self._low), self.kind)

"""Scores that need no model: the task's exact checker, its own estimate, and, when allowed, its known truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pie_mlx.search.node import Score
from pie_mlx.search.scoring.base import Judge, Scorer, Subject


class CheckerScorer(Scorer):
    """Asks the task; a state that the task has no word on has no value."""

    def __init__(self, value_of: Callable[[Subject], float | None], *, kind: str = "exact") -> None:
        """Score by ``value_of``: the checker, the task's estimate or its oracle, which ``kind`` names."""
        self._value_of = value_of
        self._kind = kind

    @property
    def kind(self) -> str:
        """The name that its scores carry."""
        return self._kind

    def score(self, subjects: Sequence[Subject], judge: Judge) -> list[Score]:
        """Score each subject by itself."""
        return [Score(self._value_of(subject), self._kind) for subject in subjects]

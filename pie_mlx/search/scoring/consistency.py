"""Self-consistency: an answer's value is the share of samples that agree with it (Wang et al. 2022)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from pie_mlx.search.node import Score
from pie_mlx.search.scoring.base import Judge, Scorer, Subject


class ConsistencyScorer(Scorer):
    """Votes by normalised answers; a sample without a readable answer has no vote and no value."""

    def __init__(self, answer_of: Callable[[Subject], str | None]) -> None:
        """Compare what ``answer_of`` reads from a leaf."""
        self._answer_of = answer_of

    @property
    def kind(self) -> str:
        """The name that its scores carry."""
        return "consistency"

    def score(self, subjects: Sequence[Subject], judge: Judge) -> list[Score]:
        """Give every sample the share of the readable samples that agree with it."""
        answers = [self._answer_of(subject) for subject in subjects]
        votes: dict[str, int] = defaultdict(int)
        for answer in answers:
            if answer is not None:
                votes[answer] += 1
        total = sum(votes.values())
        return [Score(None if answer is None else votes[answer] / total, self.kind) for answer in answers]

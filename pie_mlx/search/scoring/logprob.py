"""Mean log-probability of a thought's tokens: free, because decoding measured it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pie_mlx.search.node import Score
from pie_mlx.search.scoring.base import Judge, Scorer, Subject


class LogprobScorer(Scorer):
    """Value = exp(mean log-probability): the geometric mean of the tokens' probabilities, 0 to 1."""

    @property
    def kind(self) -> str:
        """The name that its scores carry."""
        return "logprob"

    def score(self, subjects: Sequence[Subject], judge: Judge) -> list[Score]:
        """Score from what was measured while decoding; a thought without tokens has no value."""
        return [self._of(subject.logprobs) for subject in subjects]

    def _of(self, logprobs: tuple[float, ...]) -> Score:
        """Score one thought."""
        if not logprobs or not all(map(math.isfinite, logprobs)):
            return Score(None, self.kind)
        return Score(math.exp(sum(logprobs) / len(logprobs)), self.kind)

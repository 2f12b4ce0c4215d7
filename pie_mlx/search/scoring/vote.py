"""A vote among siblings by letters, with the options turned round so that no place has an advantage.

Every round shows the candidates in another cyclic order and reads the letters' probabilities; a candidate's
value is its mean share over all rounds, so it does not depend on where it stood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pie_mlx.errors import InvalidParameter
from pie_mlx.search.node import Score, id_path
from pie_mlx.search.scoring.base import Judge, LabelQuestion, LabelReading, Scorer, Subject, failed_score

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class VoteScorer(Scorer):
    """Lets the model choose among the candidates, one cyclic order a round."""

    def __init__(self, question: Callable[[Sequence[Subject], Sequence[str]], LabelQuestion]) -> None:
        """Vote by the prompt that ``question`` writes for ordered candidates and their letters."""
        self._question = question

    @property
    def kind(self) -> str:
        """The name that its scores carry."""
        return "vote"

    def score(self, subjects: Sequence[Subject], judge: Judge) -> list[Score]:
        """Score all candidates against each other; a single one wins without a vote.

        Raises:
            InvalidParameter: there are more candidates than letters.
        """
        if len(subjects) > len(LETTERS):
            raise InvalidParameter("candidates of a vote", len(subjects), f"at most {len(LETTERS)}")
        if len(subjects) < 2:
            return [Score(1.0, self.kind) for _ in subjects]
        ordered = sorted(range(len(subjects)), key=lambda i: id_path(subjects[i].node))
        orders = [ordered[turn:] + ordered[:turn] for turn in range(len(ordered))]
        questions = [self._question([subjects[i] for i in order], LETTERS[: len(order)]) for order in orders]
        # The vote hangs on the first candidate's context: all rounds share its prompt.
        readings = judge.labels([subjects[ordered[0]].node] * len(orders), questions)
        return self._count(len(subjects), orders, readings)

    def _count(self, num: int, orders: list[list[int]], readings: list[LabelReading]) -> list[Score]:
        """Average the shares of each candidate over the rounds; one failed round spoils the balance of all."""
        failed = next((reading.error for reading in readings if reading.error is not None), None)
        if failed is not None:
            return [failed_score(self.kind, failed) for _ in range(num)]
        shares = [0.0] * num
        masses = [sum(reading.probs) for reading in readings]
        if min(masses) <= 0.0:
            return [Score(None, self.kind, mass=0.0) for _ in range(num)]
        for order, reading, mass in zip(orders, readings, masses, strict=True):
            for candidate, prob in zip(order, reading.probs, strict=True):
                shares[candidate] += prob / mass / len(orders)
        mean_mass = min(sum(masses) / len(masses), 1.0)
        return [Score(share, self.kind, mass=mean_mass) for share in shares]

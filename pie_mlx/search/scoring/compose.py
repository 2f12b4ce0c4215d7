"""Scorers made of scorers: first that answers, weighted mean, and a cache by state key."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from pie_mlx.errors import InvalidParameter
from pie_mlx.search.node import NodeId, Score, id_path
from pie_mlx.search.scoring.base import Judge, Scorer, Subject


class FirstOf(Scorer):
    """Asks the scorers in turn; each sees only the nodes that the earlier ones had no value for."""

    def __init__(self, *scorers: Scorer) -> None:
        """Ask ``scorers`` in this order.

        Raises:
            InvalidParameter: there is none.
        """
        if not scorers:
            raise InvalidParameter("scorers", 0, "at least one scorer")
        self._scorers = scorers

    @property
    def kind(self) -> str:
        """The last scorer's name: the one that answers where no exact one does."""
        return self._scorers[-1].kind

    def score(self, subjects: Sequence[Subject], judge: Judge) -> list[Score]:
        """Return each subject's first score with a value, else its last one."""
        scores: list[Score] = self._scorers[0].score(subjects, judge)
        for scorer in self._scorers[1:]:
            open_ = [i for i, score in enumerate(scores) if score.value is None and score.error is None]
            if not open_:
                break
            for i, score in zip(open_, scorer.score([subjects[i] for i in open_], judge), strict=True):
                scores[i] = score
        return scores


class WeightedMean(Scorer):
    """Σ weight · value / Σ weight; one missing value makes the mean missing, for a part is not the whole."""

    def __init__(self, parts: Sequence[tuple[Scorer, float]]) -> None:
        """Mix ``parts``: scorer and weight.

        Raises:
            InvalidParameter: there are no parts, or a weight is not above 0.
        """
        if not parts or any(weight <= 0 for _, weight in parts):
            raise InvalidParameter("weights", [weight for _, weight in parts], "at least one, all above 0")
        self._parts = tuple(parts)

    @property
    def kind(self) -> str:
        """The parts' names, joined."""
        return "+".join(scorer.kind for scorer, _ in self._parts)

    def score(self, subjects: Sequence[Subject], judge: Judge) -> list[Score]:
        """Score by every part and mix."""
        columns = [scorer.score(subjects, judge) for scorer, _ in self._parts]
        return [self._mix(row) for row in zip(*columns, strict=True)]

    def _mix(self, row: tuple[Score, ...]) -> Score:
        """Mix one node's scores."""
        error = next((score.error for score in row if score.error is not None), None)
        masses = [score.mass for score in row if score.mass is not None]
        mass = min(masses, default=None)
        total = 0.0
        for score, (_, weight) in zip(row, self._parts, strict=True):
            if score.value is None:
                return Score(None, self.kind, mass=mass, error=error)
            total += weight * score.value
        return Score(total / sum(weight for _, weight in self._parts), self.kind, mass=mass)


class Cached(Scorer):
    """Gives equal states one score; a missing value is asked for again, a failure too."""

    def __init__(self, scorer: Scorer) -> None:
        """Remember what ``scorer`` says by state key."""
        self._scorer = scorer
        self._by_key: dict[str, Score] = {}

    @property
    def kind(self) -> str:
        """The inner scorer's name."""
        return self._scorer.kind

    def learn(self, key: str, score: Score) -> None:
        """Remember a score that was read from a trace."""
        if key and score.value is not None:
            self._by_key.setdefault(key, score)

    def score(self, subjects: Sequence[Subject], judge: Judge) -> list[Score]:
        """Ask once for each new key of the level: for its first node in tree order, however they are listed."""
        asked: dict[str, Subject] = {}
        for subject in sorted(subjects, key=lambda s: id_path(s.node)):
            if subject.key not in self._by_key:
                asked.setdefault(subject.key or subject.node, subject)
        fresh: dict[NodeId, Score] = {}
        if asked:
            scores = self._scorer.score(list(asked.values()), judge)
            fresh = {subject.node: score for subject, score in zip(asked.values(), scores, strict=True)}
        for subject in asked.values():
            self.learn(subject.key, fresh[subject.node])
        return [
            fresh[subject.node]
            if subject.node in fresh
            else replace(self._by_key.get(subject.key) or fresh[asked[subject.key].node], cached=True)
            for subject in subjects
        ]

"""Legal moves by the model's own probability: the task lists them, the model says which one it would write.

Every legal move of a state is a label here: log P(its words | path, lead) is read for all of them in one batch of
prefills on forks, nothing is decoded. Value = the move's share among the legal moves of its state; ``mass`` is how
likely the model is to write any legal move at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pie_mlx.errors import PieError
from pie_mlx.search.node import NodeId, Score
from pie_mlx.search.scoring.base import Judge, Scorer, Subject, failed_score


@dataclass(frozen=True, slots=True)
class MoveReading:
    """Log-probability of each legal move's words behind a state, or the engine's error."""

    logprobs: Mapping[str, float]
    error: PieError | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    """A state whose legal moves are to be ranked."""

    parent: NodeId
    nodes: tuple[NodeId, ...]
    """The moves that are nodes: the first of them is charged for the state's own tokens."""


Rank = Callable[[Sequence[Ranking]], list[MoveReading]]
"""Reads the moves of several states together."""


class MoveScorer(Scorer):
    """Scores a legal move by its share of the probability among all legal moves of its state."""

    def __init__(self, parent: Callable[[Subject], NodeId], move: Callable[[Subject], str], rank: Rank) -> None:
        """Rank with ``rank``; ``parent`` and ``move`` name the state and the move that made a node."""
        self._parent = parent
        self._move = move
        self._rank = rank

    @property
    def kind(self) -> str:
        """The name that its scores carry."""
        return "move"

    def score(self, subjects: Sequence[Subject], judge: Judge) -> list[Score]:
        """Score all subjects; the moves of all their states land in one batch."""
        del judge
        states: dict[NodeId, list[NodeId]] = {}
        for subject in subjects:
            states.setdefault(self._parent(subject), []).append(subject.node)
        readings = self._rank([Ranking(parent, tuple(nodes)) for parent, nodes in states.items()])
        by_parent = dict(zip(states, readings, strict=True))
        return [self._of(self._move(subject), by_parent[self._parent(subject)]) for subject in subjects]

    def _of(self, move: str, reading: MoveReading) -> Score:
        """Score one move."""
        if reading.error is not None:
            return failed_score(self.kind, reading.error)
        own = reading.logprobs.get(move, -math.inf)
        mass = sum(math.exp(value) for value in reading.logprobs.values())
        # A state whose moves are all out of the model's reach ranks nothing; shares of zero would be noise.
        if not math.isfinite(own) or mass <= 0.0:
            return Score(None, self.kind, mass=mass)
        return Score(math.exp(own) / mass, self.kind, mass=min(mass, 1.0))

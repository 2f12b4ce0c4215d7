"""What a scorer is, what it may read, and the rules that every score keeps.

A score belongs to the state, not to the order of judging: :meth:`Scorer.score` gets all nodes of a level at
once and must give each node the value it would get alone. A verdict that cannot be read is a score without a
value; a failure of the engine is a score with an ``error``. Neither is ever 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pie_mlx.errors import PieError
from pie_mlx.search.node import NodeId, Score

LOW_MASS = 0.2
"""Below this share of the vocabulary, the labels were not what the model wanted to say: shown as a warning."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One node as a scorer sees it."""

    node: NodeId
    key: str
    """Equal keys are equal states and share a score; empty where there is none."""
    state: object
    """The task's state."""
    text: str
    """The whole path's text, thoughts joined by newlines, without the prompt."""
    tokens: tuple[int, ...]
    """The node's sequence: prompt and thoughts."""
    logprobs: tuple[float, ...] = ()
    """Log-probabilities of the last thought's tokens, as they were drawn."""
    finished: bool = False
    """Whether the node is a finished leaf: a candidate for the answer."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LabelQuestion:
    """A judging prompt as tokens, and the label tokens that may follow it."""

    tokens: tuple[int, ...]
    """The whole sequence to be judged: shares as long a prefix with the node as the template allows."""
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LabelReading:
    """Answer to a :class:`LabelQuestion`: probabilities over the whole vocabulary, or the engine's error."""

    probs: tuple[float, ...] = ()
    error: PieError | None = None


@dataclass(frozen=True, slots=True)
class TextReading:
    """What the model wrote after a judging prompt, or the engine's error."""

    text: str = ""
    finish: str = ""
    error: PieError | None = None


class Judge(Protocol):
    """The model as scorers reach it: every call takes all siblings, so that they land in one batch."""

    def labels(self, nodes: Sequence[NodeId], questions: Sequence[LabelQuestion]) -> list[LabelReading]:
        """Read label probabilities after each question, on a fork of its node that is closed again."""
        ...

    def write(
        self, nodes: Sequence[NodeId], questions: Sequence[tuple[int, ...]], *, max_tokens: int, seeds: Sequence[int]
    ) -> list[TextReading]:
        """Write text after each question, on a fork of its node that is closed again."""
        ...


class Scorer(Protocol):
    """Gives values to nodes."""

    @property
    def kind(self) -> str:
        """The name that its scores carry."""
        ...

    def score(self, subjects: Sequence[Subject], judge: Judge) -> list[Score]:
        """Return one score a subject, in order."""
        ...


def failed_score(kind: str, error: PieError) -> Score:
    """Return the score of a node whose judging failed in the engine: no value, and the reason."""
    return Score(None, kind, error=f"{error.code}: {error.message}")

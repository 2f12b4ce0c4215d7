"""Label probabilities: ask for a word, read how likely each allowed word is, decode nothing.

The node is forked, the judging suffix appended, and one prefill gives the distribution of the next token.
Value = Σ weight · p over the labels, with p normalised over them; ``mass`` is their share of the whole
vocabulary. The token that counts is the first one of each label *in context*: tokenizers merge a label with
what stands before it, so the label tokens are found by encoding the prompt's tail together with each label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pie_mlx.errors import InvalidParameter
from pie_mlx.search.node import Score
from pie_mlx.search.scoring.base import Judge, LabelQuestion, LabelReading, Scorer, Subject, failed_score


class Encoder(Protocol):
    """The half of a tokenizer that labels need."""

    def encode(self, text: str) -> list[int]:
        """Encode plain text; text that looks like a special token is plain text too."""
        ...


@dataclass(frozen=True, slots=True)
class LabelTokens:
    """How a judging prompt ends, and the one token by which each label starts."""

    tail: tuple[int, ...]
    """Tokens of the prompt's tail, up to where the labels part."""
    labels: tuple[int, ...]


def label_tokens(encoder: Encoder, tail: str, labels: Sequence[str]) -> LabelTokens:
    """Find the tokens that truly follow ``tail`` where each label is written after it.

    Raises:
        InvalidParameter: fewer than two labels, or two of them start with the same token in this context.
    """
    if len(set(labels)) < 2 or len(set(labels)) != len(labels) or not all(labels):
        raise InvalidParameter("labels", list(labels), "at least two different words")
    try:
        return _part(encoder, tail, labels)
    except InvalidParameter:
        # Some tokenizers write the blank before a word as a token of its own: it then belongs to the tail.
        if not all(label.startswith(" ") and label.strip() for label in labels):
            raise
        return _part(encoder, tail + " ", [label.lstrip() for label in labels])


def _part(encoder: Encoder, tail: str, labels: Sequence[str]) -> LabelTokens:
    """Find where the labels part behind ``tail``; raises as :func:`label_tokens`."""
    bare = encoder.encode(tail)
    joined = [encoder.encode(tail + label) for label in labels]
    shared = _common_prefix([bare, *joined])
    firsts: dict[int, str] = {}
    for label, ids in zip(labels, joined, strict=True):
        if len(ids) <= shared:
            raise InvalidParameter("labels", label, "a word that adds a token of its own for this tokenizer")
        other = firsts.setdefault(ids[shared], label)
        if other != label:
            allowed = f"words whose first tokens differ for this tokenizer (both start with token {ids[shared]})"
            raise InvalidParameter("labels", [other, label], allowed)
    return LabelTokens(tuple(bare[:shared]), tuple(firsts))


def _common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """Return how many leading tokens all sequences have in common."""
    length = 0
    for column in zip(*sequences, strict=False):
        if len(set(column)) > 1:
            break
        length += 1
    return length


def weigh(labels: Sequence[str], weights: Sequence[float], reading: LabelReading, kind: str) -> Score:
    """Turn probabilities into a score; labels without any probability give no value."""
    if reading.error is not None:
        return failed_score(kind, reading.error)
    mass = sum(reading.probs)
    if mass <= 0.0:
        return Score(None, kind, mass=0.0)
    shares = [p / mass for p in reading.probs]
    value = sum(weight * share for weight, share in zip(weights, shares, strict=True))
    return Score(value, kind, mass=min(mass, 1.0), label_probs=dict(zip(labels, shares, strict=True)))


class LabelScorer(Scorer):
    """Judges states by words with weights, for instance ``good 1, fair 0.5, bad 0``."""

    def __init__(
        self,
        weights: Mapping[str, float],
        question: Callable[[Subject, Sequence[str]], LabelQuestion],
        *,
        kind: str = "labels",
    ) -> None:
        """Judge by ``weights`` (label to weight) after the prompt that ``question`` writes for a node."""
        self._labels = tuple(weights)
        self._weights = tuple(weights.values())
        self._question = question
        self._kind = kind

    @property
    def kind(self) -> str:
        """The name that its scores carry."""
        return self._kind

    def score(self, subjects: Sequence[Subject], judge: Judge) -> list[Score]:
        """Score all subjects by one batch of prefills.

        Raises:
            InvalidParameter: the labels do not part at their first token.
        """
        questions = [self._question(subject, self._labels) for subject in subjects]
        readings = judge.labels([subject.node for subject in subjects], questions)
        return [weigh(self._labels, self._weights, reading, self._kind) for reading in readings]

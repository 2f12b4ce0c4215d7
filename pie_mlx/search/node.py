"""One node of a search tree: its path id, status, scores and counts.

A **path id** names the way from the root: ``0`` is the root, ``0.2`` its third child, ``0.2.1`` that child's
second. It is stable over replay and resume, and seeds the branch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, NewType

from msgspec import Meta, Struct

from pie_mlx.errors import Fact, InvalidParameter, UsageError

NodeId = NewType("NodeId", str)
"""A node's path id."""
_PATH = re.compile(r"0(\.(0|[1-9][0-9]{0,8}))*", re.ASCII)
Named = Annotated[NodeId, Meta(pattern=rf"^{_PATH.pattern}\Z")]
"""A path id in a trace, checked when it is read."""
Count = Annotated[int, Meta(ge=0)]
"""A whole number in a trace, checked when it is read."""

ROOT = NodeId("0")
_NOT_WORDS = re.compile(r"[\W_]+")


def plain(text: str) -> str:
    """Return a text as near-duplicates compare it: case, blanks and punctuation do not count."""
    return _NOT_WORDS.sub(" ", text).strip().casefold()


def parse_node_id(text: str) -> NodeId:
    """Return ``text`` as a path id.

    Raises:
        UsageError: it is not of the form ``0.2.1``.
    """
    if not _PATH.fullmatch(text):
        raise UsageError(f"{text[:40]!r} is not a node: a node is a path such as 0, 0.2 or 0.2.1")
    return NodeId(text)


def child_id(parent: NodeId, index: int) -> NodeId:
    """Return the id of the child of ``parent`` at ``index``, from 0."""
    return NodeId(f"{parent}.{index}")


def parent_id(node: NodeId) -> NodeId | None:
    """Return the parent's id, None for the root."""
    head, dot, _ = node.rpartition(".")
    return NodeId(head) if dot else None


def id_path(node: NodeId) -> tuple[int, ...]:
    """Return the child indices below the root: ``0.2.1`` gives ``(2, 1)``; sorts by tree order."""
    return tuple(int(part) for part in node.split(".")[1:])


class NodeStatus(StrEnum):
    """Where a node stands; :data:`MOVES` says which way it may go on."""

    # Enum's own hash is a Python function, and a tree looks statuses up several times an event.
    __hash__ = str.__hash__

    WRITING = "writing"
    """Its thought is being written."""
    OPEN = "open"
    """Its thought is complete; it may be scored, expanded or pruned."""
    EXPANDING = "expanding"
    """Some child of it is being written."""
    EXPANDED = "expanded"
    """It has children, and all of them are written."""
    DONE = "done"
    """A finished leaf: a candidate for the answer."""
    ACCEPTED = "accepted"
    """The answer."""
    PRUNED = "pruned"
    """Given up; its context is closed."""
    DUPLICATE = "duplicate"
    """Its state is that of another node, which stands for both."""
    INVALID = "invalid"
    """Its thought could not be parsed, or is not a legal step."""
    FAILED = "failed"
    """The engine failed on it: starved or a device error."""


_S = NodeStatus
MOVES: Mapping[NodeStatus, frozenset[NodeStatus]] = {
    _S.WRITING: frozenset({_S.OPEN, _S.DONE, _S.INVALID, _S.FAILED, _S.PRUNED}),
    _S.OPEN: frozenset({_S.EXPANDING, _S.DONE, _S.ACCEPTED, _S.PRUNED, _S.DUPLICATE, _S.INVALID, _S.FAILED}),
    _S.EXPANDING: frozenset({_S.EXPANDED, _S.OPEN, _S.PRUNED, _S.FAILED, _S.ACCEPTED}),
    _S.EXPANDED: frozenset({_S.EXPANDING, _S.OPEN, _S.DONE, _S.ACCEPTED, _S.PRUNED, _S.FAILED}),
    _S.DONE: frozenset({_S.ACCEPTED, _S.EXPANDING, _S.OPEN, _S.PRUNED, _S.DUPLICATE, _S.FAILED}),
    _S.ACCEPTED: frozenset({_S.DONE}),
    _S.PRUNED: frozenset({_S.OPEN, _S.EXPANDING, _S.ACCEPTED}),
    _S.DUPLICATE: frozenset({_S.OPEN, _S.PRUNED, _S.ACCEPTED}),
    _S.INVALID: frozenset({_S.OPEN, _S.PRUNED}),
    _S.FAILED: frozenset({_S.WRITING, _S.OPEN, _S.EXPANDING, _S.PRUNED}),
}
"""The legal moves of a node; a user's steering (edit, lock, expand again) is what leads out of the last rows."""

FINAL = frozenset({_S.PRUNED, _S.DUPLICATE, _S.INVALID, _S.FAILED})
"""Statuses that no strategy expands."""


class Score(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What one scorer says of a node; a missing value is None, never 0."""

    value: float | None
    """Higher is better; None where the judge gave no readable verdict."""
    kind: str
    """The scorer's name: ``labels``, ``exact``, ``ptrue`` …"""
    mass: float | None = None
    """Share of the whole vocabulary's probability that fell on the labels, 0 to 1."""
    label_probs: Mapping[str, float] = {}
    """Label to probability, normalised over the labels."""
    cached: bool = False
    """Whether the value was taken from an equal state."""
    error: str | None = None
    """Why there is no value, where the engine is to blame."""

    def __post_init__(self) -> None:
        """Refuse what cannot be ranked.

        Raises:
            InvalidParameter: the value or the mass is text, a boolean, NaN or infinite.
        """
        numbers: tuple[tuple[str, object], ...] = (("score value", self.value), ("score mass", self.mass))
        for name, number in numbers:
            if number is None:
                continue
            if not isinstance(number, int | float) or isinstance(number, bool) or not math.isfinite(number):
                raise InvalidParameter(name, number, "a finite number or None")

    def to_json(self) -> dict[str, Fact]:
        """Return the fields that are set, as JSON."""
        out: dict[str, Fact] = {"value": self.value, "kind": self.kind}
        if self.mass is not None:
            out["mass"] = self.mass
        if self.label_probs:
            out["label_probs"] = dict(self.label_probs)
        if self.cached:
            out["cached"] = True
        if self.error is not None:
            out["error"] = self.error
        return out


class TokenCounts(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Tokens that a node cost."""

    prompt: Count = 0
    """Tokens of the context before the thought."""
    cached: Count = 0
    """Those of them whose K/V was already there."""
    completion: Count = 0
    """Tokens of the thought."""

    def __add__(self, other: TokenCounts) -> TokenCounts:
        """Add two counts."""
        return TokenCounts(self.prompt + other.prompt, self.cached + other.cached, self.completion + other.completion)


class NodePages(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Pages that a node's context views."""

    total: Count = 0
    shared: Count = 0
    """Those that another table views too."""


NO_TOKENS = TokenCounts()
NO_PAGES = NodePages()


class Node(Struct, eq=False, gc=False):
    """A node as the events told it, equal to itself alone.

    Changed only by :class:`~pie_mlx.search.tree.Tree` and replay.
    """

    id: NodeId
    parent: NodeId | None
    depth: int
    status: NodeStatus = NodeStatus.WRITING
    text: str = ""
    """The thought; while it is written, what is there of it."""
    reasoning: str = ""
    """What the model wrote inside its think block."""
    seed: int = 0
    key: str = ""
    """The task's state key; equal keys are equal states. Empty where the task has none."""
    finish: str = ""
    """Why the thought ended: stop, length, context_full, failed, or user."""
    reason: str = ""
    """Why it is invalid, pruned or failed."""
    tokens: TokenCounts = NO_TOKENS
    pages: NodePages = NO_PAGES
    scores: dict[str, Score] = {}
    """By kind, the latest set last."""
    children: list[NodeId] = []
    num_writing: int = 0
    """Children that are being written."""
    duplicate_of: NodeId | None = None
    locked: bool = False
    """Held in the beam by the user."""
    selected: bool = False
    """In the frontier that was chosen last."""

    @property
    def score(self) -> Score | None:
        """The score set last, which ranks the node; None before any."""
        return next(reversed(self.scores.values()), None)

    @property
    def value(self) -> float | None:
        """The ranking score's value; None where there is none."""
        score = self.score
        return None if score is None else score.value

    def set_score(self, score: Score) -> None:
        """Record a score as the latest; one of the same kind is replaced."""
        self.scores.pop(score.kind, None)
        self.scores[score.kind] = score


def rank_key(node: Node) -> tuple[bool, float, tuple[int, ...]]:
    """Sort key, best first: no value is last, equal values keep tree order."""
    value = node.value
    return (value is None, 0.0 if value is None else -value, id_path(node.id))

"""Glyphs and words of a node's status: shapes differ, so that colour is never needed."""

from __future__ import annotations

from dataclasses import dataclass

from pie_mlx.search.tree import Node, NodeStatus, Score, Tree

_S = NodeStatus


@dataclass(frozen=True, slots=True)
class Look:
    """How a status is drawn: its glyph, and the role that its colour plays."""

    glyph: str
    role: str


LOOKS = {
    _S.WRITING: Look("◌", "busy"),
    _S.OPEN: Look("○", "info"),
    _S.EXPANDING: Look("◐", "busy"),
    _S.EXPANDED: Look("●", "info"),
    _S.DONE: Look("◆", "good"),
    _S.ACCEPTED: Look("★", "best"),
    _S.PRUNED: Look("×", "dim"),
    _S.DUPLICATE: Look("≡", "dim"),
    _S.INVALID: Look("!", "warn"),
    _S.FAILED: Look("✗", "bad"),
}
LOCKED, FRONTIER = "▪", "▸"
DULL = frozenset({_S.PRUNED, _S.DUPLICATE, _S.INVALID})


def value_text(score: Score | None) -> str:
    """Return a score's number, ``?`` where the judge gave none, empty where nobody judged."""
    if score is None:
        return ""
    if score.error is not None:
        return "err"
    if score.value is None:
        return "?"
    value = score.value
    return f"{value:.2f}" if -10 < value < 100 else f"{value:.3g}"


def thought(node: Node, tree: Tree) -> str:
    """Return what stands behind a node's id: its text, the question at the root, or why there is none."""
    text = node.text or (tree.question if node.parent is None else "")
    if node.status is _S.DUPLICATE:
        return f"= {node.duplicate_of}  {text}"
    if node.status in (_S.INVALID, _S.FAILED) and node.reason:
        return f"{text}  ({node.reason})" if text else node.reason
    return text


class Range:
    """The span of the values seen so far: what a full and an empty score bar mean."""

    __slots__ = ("high", "low")

    def __init__(self) -> None:
        """Start with 0 to 1, where probabilities live."""
        self.low, self.high = 0.0, 1.0

    def take(self, value: float | None) -> None:
        """Widen the span by a value."""
        if value is not None:
            self.low, self.high = min(self.low, value), max(self.high, value)

    def share(self, value: float) -> float:
        """Return where a value lies in the span, 0 to 1."""
        return (value - self.low) / (self.high - self.low)

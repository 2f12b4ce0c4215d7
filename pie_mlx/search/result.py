"""What a run gives back: the answer, how it ended, every node, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from pie_mlx.errors import Cancelled, Fact, PieError
from pie_mlx.search.node import Node, NodeId, TokenCounts
from pie_mlx.search.trace_events import FinishReason

RESULT_SCHEMA = "pie-mlx.tot-result/1"


@dataclass(frozen=True, slots=True)
class NodeResult:
    """One node at the end of the run."""

    id: NodeId
    parent: NodeId | None
    depth: int
    text: str
    score: float | None
    """None is not 0: there was no score, or it could not be read."""
    status: str
    tokens: int
    """Tokens of the thought."""
    pages: int
    """Pages that its context viewed when the thought was complete."""

    @classmethod
    def of(cls, node: Node) -> NodeResult:
        """Take a node of the tree as it stands."""
        return cls(
            node.id,
            node.parent,
            node.depth,
            node.text,
            node.value,
            str(node.status),
            node.tokens.completion,
            node.pages.total,
        )

    def to_json(self) -> dict[str, Fact]:
        """Return the node as JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The pool before, in and after the run, in pages; what the prefix cache alone holds counts as free."""

    total: int
    peak: int
    """Most pages held at once by contexts, as read after every step of the search."""
    free_before: int
    free_after: int
    sharing_ratio: float
    """Views per held page at the moment of the peak; 1.0 is no sharing."""

    def to_json(self) -> dict[str, Fact]:
        """Return the counts as JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of one run; ``error`` is kept typed where the run could not go on."""

    answer: str | None
    solved: bool | None
    """None where the task cannot check."""
    finish_reason: FinishReason
    node: NodeId | None
    """The node of the answer."""
    nodes: tuple[NodeResult, ...]
    tokens: TokenCounts
    wall_s: float
    pages: PoolUse
    alarms: tuple[str, ...]
    notices: tuple[str, ...]
    seed: int
    oracle: bool
    """Whether the task's known truth steered the search."""
    calls: int
    """Requests sent to the model."""
    num_solved: int
    """Finished candidates that are right."""
    num_finished: int
    """Finished candidates."""
    duplicate_share: float | None = None
    """Share of the thoughts that said what an earlier sibling says; None without any thought."""
    error: PieError | None = field(default=None)

    @property
    def exit_code(self) -> int:
        """0 for a run that ended by itself, else the error's own code."""
        if self.error is not None:
            return self.error.exit_code
        return Cancelled.exit_code if self.finish_reason is FinishReason.CANCELLED else 0

    def to_json(self) -> dict[str, Fact]:
        """Return the result as one JSON object with its schema."""
        out: dict[str, Fact] = {
            "schema": RESULT_SCHEMA,
            "answer": self.answer,
            "solved": self.solved,
            "finish_reason": str(self.finish_reason),
            "nodes": [node.to_json() for node in self.nodes],
            "tokens": {
                "prompt": self.tokens.prompt,
                "cached": self.tokens.cached,
                "completion": self.tokens.completion,
            },
            "wall_s": self.wall_s,
            "pages": self.pages.to_json(),
            "alarms": list(self.alarms),
            "duplicate_share": self.duplicate_share,
        }
        if self.oracle:
            out["oracle"] = True
        if self.error is not None:
            out["error"] = self.error.to_json()
        return out

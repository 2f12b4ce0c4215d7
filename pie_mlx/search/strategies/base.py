"""What a strategy is: pure choice logic over three verbs.

A strategy is a generator of **actions**: :class:`Expand` these nodes, :class:`Evaluate` those, keep
:class:`Select` of the level, :class:`Prune` the rest. The run carries each one out and sends back the usable
children of every expanded node (an empty list for the other verbs). Checking is not asked for: a node that is
finished is checked when it is written, and :meth:`View.solved` knows the verdict.

A strategy ends by returning. It must return where nothing can go on: it never asks for the same empty work
twice. It reads the tree at every decision, so that pruned, edited, inserted and locked nodes count at once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pie_mlx.search.node import FINAL, Node, NodeId, NodeStatus, rank_key
from pie_mlx.search.params import SearchParams
from pie_mlx.search.tree import Tree


@dataclass(frozen=True, slots=True)
class Ask:
    """A wish for ``breadth`` more children of ``node``."""

    node: NodeId
    breadth: int


@dataclass(frozen=True, slots=True)
class Expand:
    """Write children; all of them are asked for together. Answer: the new usable children of each asked node."""

    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Score nodes together; those that have the run's score already cost nothing."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Select:
    """Make ``nodes`` the frontier, best first."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Prune:
    """Give up nodes and what lives below them: their pages are free at once."""

    nodes: tuple[NodeId, ...]
    reason: str


INDEPENDENT = frozenset({"best_of_n", "self_consistency"})
"""Strategies whose samples are votes: equal ones are counted, not merged, and judged in the end."""

Action: TypeAlias = Expand | Evaluate | Select | Prune
Plan: TypeAlias = Generator[Action, list[list[NodeId]], None]


class View(Protocol):
    """What a strategy may see."""

    @property
    def tree(self) -> Tree:
        """The tree so far."""
        ...

    @property
    def params(self) -> SearchParams:
        """The run's parameters."""
        ...

    def may_grow(self, node: NodeId) -> bool:
        """Whether the task lets anything follow a node."""
        ...

    def take_added(self) -> list[NodeId]:
        """Return the nodes that the user wrote since the last call: candidates besides a level's own."""
        ...

    def solved(self, node: NodeId) -> bool | None:
        """Whether a finished node is right; None where it is not finished or the task cannot tell."""
        ...

    def answer_key(self, node: NodeId) -> str | None:
        """The normalised answer of a finished node, by which samples agree; None where it has none."""
        ...


class Strategy(Protocol):
    """One way of searching."""

    def plan(self, view: View) -> Plan:
        """Yield actions until nothing is left to do."""
        ...


def usable(node: Node) -> bool:
    """Whether a node counts: written, and not pruned, invalid, failed or a duplicate."""
    return node.status not in FINAL and node.status is not NodeStatus.WRITING


def expandable(view: View, node: Node) -> bool:
    """Whether a node may get children."""
    finished = node.status in (NodeStatus.DONE, NodeStatus.ACCEPTED)
    return usable(node) and not finished and view.may_grow(node.id)


def children(view: View, nodes: Iterable[NodeId]) -> list[Node]:
    """Return the usable children of ``nodes``, in tree order: those of a user's hand included."""
    found = [view.tree[child] for node in nodes for child in view.tree[node].children]
    return [node for node in found if usable(node)]


def best(nodes: Iterable[Node], num: int) -> list[Node]:
    """Return the best ``num`` nodes, best first, and every locked one besides; no value ranks last."""
    ranked = sorted(nodes, key=rank_key)
    kept = ranked[:num]
    return kept + [node for node in ranked[num:] if node.locked]


def ids(nodes: Sequence[Node]) -> tuple[NodeId, ...]:
    """Return the nodes' ids."""
    return tuple(node.id for node in nodes)


def others(nodes: Iterable[Node], kept: Iterable[Node]) -> tuple[NodeId, ...]:
    """Return the ids of the unfinished nodes that are not in ``kept``: what a level gives up."""
    stays = {node.id for node in kept}
    return tuple(node.id for node in nodes if node.id not in stays and node.status is not NodeStatus.DONE)

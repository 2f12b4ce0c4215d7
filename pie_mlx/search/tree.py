"""The search tree: nodes by path id, status moves, walks without recursion, and the best path.

A tree is what the events of a run fold into (:mod:`pie_mlx.search.replay`): the live view, ``show``, ``replay``
and ``resume`` all read the same one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec import Struct

from pie_mlx.search.errors import TreeError
from pie_mlx.search.node import (
    FINAL,
    MOVES,
    ROOT,
    Count,
    Node,
    NodeId,
    NodePages,
    NodeStatus,
    Score,
    TokenCounts,
    child_id,
    id_path,
    parent_id,
    parse_node_id,
    rank_key,
)

__all__ = [
    "FINAL",
    "MOVES",
    "ROOT",
    "Node",
    "NodeId",
    "NodePages",
    "NodeStatus",
    "Outcome",
    "PoolCounts",
    "Score",
    "TokenCounts",
    "Tree",
    "child_id",
    "id_path",
    "parent_id",
    "parse_node_id",
    "rank_key",
]


class PoolCounts(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The pool at one moment, in pages; ``free + private + shared + cached`` are the pool."""

    free: Count = 0
    private: Count = 0
    """Viewed by one table."""
    shared: Count = 0
    """Viewed by more than one table."""
    cached: Count = 0
    """Held by the prefix index alone, free when wanted."""
    evicted: Count = 0
    """Given back under pressure so far, to be computed again."""
    viewed: Count = 0
    """Page views of all tables: what it would take without sharing."""

    @property
    def held(self) -> int:
        """Pages that some table views."""
        return self.private + self.shared

    @property
    def sharing_ratio(self) -> float:
        """Views per held page; 1.0 is no sharing."""
        return self.viewed / self.held if self.held else 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    reason: str
    answer: str | None
    solved: bool | None
    node: NodeId | None = None
    error: str | None = None


class Tree:
    """Nodes of one run, and what else its events told: the frontier, the pool, whether it is paused, how it ended."""

    __slots__ = (
        "_accepted",
        "_by_key",
        "_selected",
        "alarms",
        "nodes",
        "notices",
        "num_steps",
        "outcome",
        "paused",
        "pool",
        "question",
    )

    def __init__(self) -> None:
        """Make an empty tree."""
        self.nodes: dict[NodeId, Node] = {}
        self.question = ""
        self.pool = PoolCounts()
        self.paused = False
        self.num_steps = 0
        self.alarms: list[str] = []
        self.notices: list[str] = []
        self.outcome: Outcome | None = None
        self._selected: tuple[NodeId, ...] = ()
        self._accepted: NodeId | None = None
        self._by_key: dict[str, NodeId] = {}

    def __len__(self) -> int:
        """Count the nodes."""
        return len(self.nodes)

    def __contains__(self, node: object) -> bool:
        """Whether the id is in the tree."""
        return node in self.nodes

    def __getitem__(self, node: NodeId) -> Node:
        """Return a node.

        Raises:
            TreeError: there is none of this id.
        """
        found = self.nodes.get(node)
        if found is None:
            raise TreeError(node, "there is no such node")
        return found

    @property
    def root(self) -> Node:
        """The root.

        Raises:
            TreeError: the tree is empty.
        """
        return self[ROOT]

    def next_child(self, parent: NodeId) -> NodeId:
        """Return the id that the next child of ``parent`` gets."""
        children = self[parent].children
        return child_id(parent, id_path(children[-1])[-1] + 1 if children else 0)

    def add(self, node: NodeId, *, seed: int = 0, status: NodeStatus = NodeStatus.WRITING) -> Node:
        """Add a node under the parent that its id names; a parent of a node being written is expanding.

        Raises:
            TreeError: the id is taken, its parent is missing, or the parent may not be expanded.
        """
        if node in self.nodes:
            raise TreeError(node, "the node is there already")
        above = parent_id(node)
        parent = None if above is None else self[above]
        if parent is None and node != ROOT:
            raise TreeError(node, "a tree has one root, 0")
        made = Node(node, above, 0 if parent is None else parent.depth + 1, status, seed=seed)
        if parent is not None:
            self._adopt(parent, made)
        self.nodes[node] = made
        return made

    def _adopt(self, parent: Node, child: Node) -> None:
        """Hang a child under its parent."""
        if parent.status is not NodeStatus.EXPANDING:
            self.turn(parent, NodeStatus.EXPANDING)
        parent.children.append(child.id)
        if child.status is NodeStatus.WRITING:
            parent.num_writing += 1
        elif not parent.num_writing:
            self.turn(parent, NodeStatus.EXPANDED)

    def move(self, node: NodeId, status: NodeStatus) -> None:
        """Give a node its next status; see :meth:`turn`.

        Raises:
            TreeError: there is no such node, or :data:`MOVES` does not allow it.
        """
        self.turn(self[node], status)

    def turn(self, node: Node, status: NodeStatus) -> None:
        """Give a node of this tree its next status: the one place where a status changes.

        Raises:
            TreeError: :data:`MOVES` does not allow it.
        """
        was = node.status
        if status not in MOVES[was]:
            raise TreeError(node.id, f"a node that is {was} cannot become {status}")
        node.status = status
        if node.parent is not None and (was is NodeStatus.WRITING or status is NodeStatus.WRITING):
            self._count_writing(self.nodes[node.parent], 1 if status is NodeStatus.WRITING else -1)

    def _count_writing(self, parent: Node, change: int) -> None:
        """Follow how many children are being written: the last one written makes the parent expanded."""
        parent.num_writing += change
        if change > 0 and parent.status is not NodeStatus.EXPANDING:
            self.turn(parent, NodeStatus.EXPANDING)
        elif not parent.num_writing and parent.status is NodeStatus.EXPANDING:
            self.turn(parent, NodeStatus.EXPANDED)

    def prune(self, node: NodeId, reason: str = "") -> list[NodeId]:
        """Prune a node and what lives below it; return the nodes that moved. The accepted node stays."""
        pruned = []
        for found in list(self.walk(node)):
            if (found.status in FINAL and found.id != node) or found.status is NodeStatus.ACCEPTED:
                continue
            if found.status is not NodeStatus.PRUNED:
                self.move(found.id, NodeStatus.PRUNED)
                pruned.append(found.id)
            found.reason, found.pages, found.selected = reason, NodePages(), False
        return pruned

    def accept(self, node: NodeId) -> None:
        """Make a node the answer; one accepted before is a mere candidate again."""
        if node == self._accepted:
            return
        self.move(node, NodeStatus.ACCEPTED)
        if self._accepted is not None:
            self.move(self._accepted, NodeStatus.DONE)
        self._accepted = node

    def select(self, nodes: Iterable[NodeId]) -> None:
        """Make ``nodes`` the frontier."""
        chosen = [self[node] for node in nodes]
        for old in self._selected:
            self[old].selected = False
        for node in chosen:
            node.selected = True
        self._selected = tuple(node.id for node in chosen)

    @property
    def selected(self) -> tuple[NodeId, ...]:
        """The frontier that was chosen last, best first."""
        return self._selected

    def walk(self, start: NodeId = ROOT) -> Iterator[Node]:
        """Yield ``start`` and all below it, parents first, children in order; an empty tree yields nothing."""
        stack = [start] if self.nodes else []
        while stack:
            node = self[stack.pop()]
            yield node
            stack.extend(reversed(node.children))

    def path(self, node: NodeId) -> list[Node]:
        """Return the nodes from the root to ``node``, both included."""
        found = [self[node]]
        while (above := found[-1].parent) is not None:
            found.append(self[above])
        return found[::-1]

    def leaves(self) -> Iterator[Node]:
        """Yield the nodes without children, in tree order."""
        return (node for node in self.walk() if not node.children)

    def level(self, depth: int) -> list[Node]:
        """Return the nodes of one depth, in tree order."""
        return [node for node in self.walk() if node.depth == depth]

    def ranked(self, *statuses: NodeStatus) -> list[Node]:
        """Return the nodes in any of ``statuses`` (all without one), best first; no value ranks last."""
        wanted = statuses or tuple(NodeStatus)
        return sorted((node for node in self.nodes.values() if node.status in wanted), key=rank_key)

    def best(self) -> Node | None:
        """Return the answer, or the best finished node; an unfinished one never wins."""
        for status in (NodeStatus.ACCEPTED, NodeStatus.DONE):
            found = _first(node for node in self.nodes.values() if node.status is status)
            if found is not None:
                return found
        return None

    def best_path(self) -> list[Node]:
        """Return the path to :meth:`best`; before there is one, to the best node still alive, the deeper first."""
        best = self.best()
        if best is None:
            alive = [node for node in self.nodes.values() if node.status not in FINAL and node.value is not None]
            deepest = max((node.depth for node in alive), default=0)
            best = _first(node for node in alive if node.depth == deepest)
        return [] if best is None else self.path(best.id)

    def counts(self) -> dict[NodeStatus, int]:
        """Count the nodes of each status that occurs."""
        return dict(Counter(node.status for node in self.nodes.values()))

    def tokens(self) -> TokenCounts:
        """Sum the tokens of all nodes."""
        total = TokenCounts()
        for node in self.nodes.values():
            total += node.tokens
        return total

    def set_key(self, node: NodeId, key: str) -> None:
        """Give a node its state key; an empty one is none."""
        found = self[node]
        if found.key and self._by_key.get(found.key) == node:
            del self._by_key[found.key]
        found.key = key
        if key:
            self._by_key.setdefault(key, node)

    def find_key(self, key: str) -> Node | None:
        """Return the first node that got this state key, None where none did."""
        found = self._by_key.get(key)
        return None if found is None else self.nodes[found]


def _first(nodes: Iterable[Node]) -> Node | None:
    """Return the node that ranks first; paths, which cost most, are compared only where values are equal."""
    valued = [(node, node.value) for node in nodes]
    top = max((value for _node, value in valued if value is not None), default=None)
    return min((node for node, value in valued if value == top), key=rank_key, default=None)

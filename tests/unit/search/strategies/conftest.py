"""A search without a model: strategies act on a real tree whose values the test gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pie_mlx.search.node import FINAL, ROOT, NodeId, NodeStatus, Score, id_path
from pie_mlx.search.params import SearchParams
from pie_mlx.search.strategies.base import Action, Evaluate, Expand, Select, Strategy, View
from pie_mlx.search.tree import Tree

Value = Callable[[tuple[int, ...]], float | None]


class World(View):
    """Carries actions out in memory: a node's value is a function of its path."""

    def __init__(self, params: SearchParams, *, depth: int = 3, value: Value = lambda path: float(path[-1])) -> None:
        """Make a root; nodes at ``depth`` are finished."""
        self.actions: list[Action] = []
        self._tree = Tree()
        self._params = params
        self._depth = depth
        self._value = value
        self.dead: set[tuple[int, ...]] = set()
        """Paths whose thought cannot be read."""
        self.barren: set[tuple[int, ...]] = set()
        """Paths that get no children."""
        self.answers: dict[tuple[int, ...], str | None] = {}
        self._tree.add(ROOT, status=NodeStatus.OPEN)

    @property
    def tree(self) -> Tree:
        """The tree."""
        return self._tree

    @property
    def params(self) -> SearchParams:
        """The parameters."""
        return self._params

    def may_grow(self, node: NodeId) -> bool:
        """Whether the node is above the last level."""
        return len(id_path(node)) < self._depth

    def take_added(self) -> list[NodeId]:
        """Return nothing: no user is here."""
        return []

    def solved(self, node: NodeId) -> bool | None:
        """Nothing is known."""
        del node
        return None

    def answer_key(self, node: NodeId) -> str | None:
        """Return the answer that the test gave."""
        return self.answers.get(id_path(node))

    def run(self, strategy: Strategy, *, limit: int = 2000) -> World:
        """Drive a strategy to its end; one that does not end fails the test."""
        plan = strategy.plan(self)
        action = next(plan, None)
        while action is not None:
            self.actions.append(action)
            assert len(self.actions) < limit, "the strategy spins"
            try:
                action = plan.send(self._carry_out(action))
            except StopIteration:
                action = None
        return self

    def _carry_out(self, action: Action) -> list[list[NodeId]]:
        """Do one action."""
        if isinstance(action, Expand):
            return [self._grow(ask.node, ask.breadth) for ask in action.asks]
        if isinstance(action, Evaluate):
            for node in action.nodes:
                self._tree[node].set_score(Score(self._value(id_path(node)), "test"))
        elif isinstance(action, Select):
            self._tree.select(action.nodes)
        else:
            for node in action.nodes:
                self._tree.prune(node, action.reason)
        return []

    def _grow(self, parent: NodeId, breadth: int) -> list[NodeId]:
        """Add children."""
        made = []
        for _ in range(0 if id_path(parent) in self.barren else breadth):
            node = self._tree.next_child(parent)
            path = id_path(node)
            status = NodeStatus.DONE if len(path) == self._depth else NodeStatus.OPEN
            self._tree.add(node)
            self._tree.move(node, NodeStatus.INVALID if path in self.dead else status)
            made.append(node)
        return [node for node in made if self._tree[node].status not in FINAL]

    def expanded(self) -> list[tuple[int, ...]]:
        """Return the paths that were expanded, in order."""
        return [id_path(ask.node) for a in self.actions if isinstance(a, Expand) for ask in a.asks]

    def selected(self) -> list[list[tuple[int, ...]]]:
        """Return every chosen frontier."""
        return [[id_path(node) for node in a.nodes] for a in self.actions if isinstance(a, Select)]


@pytest.fixture(scope="session")
def world() -> type[World]:
    """Return the class of model-free searches."""
    return World

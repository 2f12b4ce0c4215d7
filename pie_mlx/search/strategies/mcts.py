"""Monte Carlo tree search with UCT (Kocsis and Szepesvári 2006): select, expand, roll out, back up.

Selection walks from the root down, one level at a time, and compares siblings only.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeAlias

from pie_mlx.search.node import ROOT, Node, NodeId, id_path, rank_key
from pie_mlx.search.strategies.base import (
    Action,
    Ask,
    Evaluate,
    Expand,
    Plan,
    Select,
    Strategy,
    View,
    children,
    expandable,
    ids,
)


@dataclass(slots=True)
class _Visits:
    """How often a node was passed, and the sum of the values found below it."""

    num: int = 0
    total: float = 0.0


@dataclass(slots=True)
class _Statistics:
    """Visits by node, for the life of one plan."""

    by_node: dict[NodeId, _Visits] = field(default_factory=dict)
    expanded: set[NodeId] = field(default_factory=set)
    """Nodes with all their children: one that a roll-out only passed through has just one."""
    exhausted: set[NodeId] = field(default_factory=set)
    """Nodes below which nothing is left to find."""

    def of(self, node: NodeId) -> _Visits:
        """Return a node's visits."""
        return self.by_node.setdefault(node, _Visits())


RollOut: TypeAlias = Generator[Action, list[list[NodeId]], float | None]


class Mcts(Strategy):
    """Runs ``rollouts`` descents; ends sooner where the whole tree is exhausted."""

    def plan(self, view: View) -> Plan:
        """Yield the four phases of each descent."""
        statistics = _Statistics()
        for _ in range(view.params.rollouts):
            if ROOT in statistics.exhausted:
                return
            path = self._select(view, statistics)
            yield Select((path[-1],))
            yield from self._descend(view, statistics, path)

    def _select(self, view: View, statistics: _Statistics) -> list[NodeId]:
        """Walk down level by level to a node that was not expanded yet, or is finished."""
        path = [ROOT]
        while path[-1] in statistics.expanded:
            below = [n for n in children(view, [path[-1]]) if n.id not in statistics.exhausted]
            if not below:
                break
            path.append(min(below, key=lambda n: self._order(view, statistics, n, path[-1])).id)
        return path

    def _order(self, view: View, statistics: _Statistics, node: Node, parent: NodeId) -> tuple[float, tuple[int, ...]]:
        """Sort key of siblings, the next to visit first: unvisited ones, locked first, then the highest UCT."""
        visits = statistics.of(node.id)
        if visits.num == 0:
            no_value, value, path = rank_key(node)
            return (-math.inf if node.locked else -1e9 + (1e6 if no_value else value), path)
        spread = math.sqrt(math.log(max(statistics.of(parent).num, 1)) / visits.num)
        return (-(visits.total / visits.num + view.params.exploration * spread), id_path(node.id))

    def _descend(self, view: View, statistics: _Statistics, path: list[NodeId]) -> Plan:
        """Expand the leaf, roll one child out to the end, and back the value up."""
        leaf = view.tree[path[-1]]
        if expandable(view, leaf) and leaf.id not in statistics.expanded:
            yield Expand((Ask(leaf.id, max(view.params.breadth - len(children(view, [leaf.id])), 1)),))
            statistics.expanded.add(leaf.id)
            yield Evaluate(ids(children(view, [leaf.id])))
            fresh = sorted(children(view, [leaf.id]), key=rank_key)
            if fresh:
                path = [*path, fresh[0].id]
                end = yield from self._roll_out(view, fresh[0])
                self._back_up(statistics, path, end)
                self._close(view, statistics, path)
                return
        self._back_up(statistics, path, leaf.value if leaf in children(view, [leaf.parent or ROOT]) else None)
        statistics.exhausted.add(leaf.id)
        self._close(view, statistics, path[:-1])

    def _roll_out(self, view: View, start: Node) -> RollOut:
        """Write one child a level down to a finished node; return the value at the end, None where there is none."""
        here = start
        while expandable(view, here):
            yield Expand((Ask(here.id, 1),))
            below = children(view, [here.id])
            if not below:
                return None
            here = below[-1]
        yield Evaluate((here.id,))
        return view.tree[here.id].value

    def _back_up(self, statistics: _Statistics, path: list[NodeId], value: float | None) -> None:
        """Add a visit to the whole path; an end without a value adds nothing to the sum."""
        for node in path:
            visits = statistics.of(node)
            visits.num += 1
            visits.total += 0.0 if value is None else value

    def _close(self, view: View, statistics: _Statistics, path: list[NodeId]) -> None:
        """Mark, from the bottom up, every node of the path that has nothing left below it."""
        for node in reversed(path):
            below = children(view, [node])
            is_grown = node in statistics.expanded or not expandable(view, view.tree[node])
            if is_grown and all(child.id in statistics.exhausted for child in below):
                statistics.exhausted.add(node)

"""Beam search, the breadth-first tree of thoughts (Yao et al. 2023): level by level, keep the best few."""

from __future__ import annotations

from pie_mlx.search.node import ROOT, Node, NodeId
from pie_mlx.search.strategies.base import (
    Ask,
    Evaluate,
    Expand,
    Plan,
    Prune,
    Select,
    Strategy,
    View,
    best,
    children,
    expandable,
    ids,
    others,
    usable,
)


class Beam(Strategy):
    """Expands every node of the frontier, scores the level, keeps ``beam`` nodes and prunes the others."""

    def plan(self, view: View) -> Plan:
        """Yield the levels' actions; a level without a node to expand ends the search."""
        frontier: list[Node] = [view.tree[ROOT]]
        entered: set[NodeId] = set()
        while parents := [node for node in frontier if expandable(view, node)]:
            yield Expand(tuple(Ask(node.id, view.params.breadth) for node in parents))
            entered.update(ids(parents))
            added = set(view.take_added())
            yield Evaluate(ids(_level(view, parents, added, entered)))
            level = _level(view, parents, added, entered)
            frontier = best((node for node in level if expandable(view, node)), view.params.beam)
            finished = [node for node in level if not expandable(view, node)]
            yield Select(ids(frontier or best(finished, view.params.beam)))
            yield Prune(others(level, frontier + finished), "outside the beam")


def _level(view: View, parents: list[Node], added: set[NodeId], entered: set[NodeId]) -> list[Node]:
    """Return the usable children of ``parents``, what the user added, and locked nodes that wait elsewhere."""
    level = {node.id: node for node in children(view, ids(parents))}
    for node in view.tree.walk():
        if node.id not in entered and usable(node) and (node.id in added or (node.locked and expandable(view, node))):
            level.setdefault(node.id, node)
    return list(level.values())

"""Greedy: at each level write ``breadth`` thoughts and follow the best one; no way back."""

from __future__ import annotations

from pie_mlx.search.node import ROOT, Node
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
)


class Greedy(Strategy):
    """A beam of one that follows the best thought, finished or not."""

    def plan(self, view: View) -> Plan:
        """Yield one level's actions after the other, down to a finished node or a dead end."""
        here: list[Node] = [view.tree[ROOT]]
        while here and expandable(view, here[0]):
            parents = [node for node in here if expandable(view, node)]
            yield Expand(tuple(Ask(node.id, view.params.breadth) for node in parents))
            yield Evaluate(ids(children(view, ids(parents))))
            level = children(view, ids(parents))
            here = best(level, 1)
            yield Select(ids(here))
            yield Prune(others(level, here), "not the best")

"""Best-first search: always expand the best open node, wherever it stands in the tree."""

from __future__ import annotations

from pie_mlx.search.node import Node, NodeId, rank_key
from pie_mlx.search.strategies.base import (
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


class BestFirst(Strategy):
    """Expands one node at a time; each node once, unless the user asks again."""

    def plan(self, view: View) -> Plan:
        """Yield actions while an open node is left; the deeper of two equal values goes first."""
        expanded: set[NodeId] = set()
        while open_ := [n for n in view.tree.walk() if expandable(view, n) and n.id not in expanded]:
            here = min(open_, key=_order)
            expanded.add(here.id)
            yield Select((here.id,))
            yield Expand((Ask(here.id, view.params.breadth),))
            yield Evaluate(ids(children(view, [here.id])))


def _order(node: Node) -> tuple[bool, float, int, tuple[int, ...]]:
    """Order open nodes: locked and valued first, by value, then depth, then place in the tree."""
    no_value, value, path = rank_key(node)
    return (no_value and not node.locked, value, -node.depth, path)

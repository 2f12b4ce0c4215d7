"""Depth-first search with backtracking: follow the best thought, leave a branch whose value is too low."""

from __future__ import annotations

from pie_mlx.search.node import ROOT, Node, NodeId, NodeStatus, rank_key
from pie_mlx.search.strategies.base import (
    Ask,
    Evaluate,
    Expand,
    Plan,
    Prune,
    Select,
    Strategy,
    View,
    children,
    expandable,
    ids,
)


class DepthFirst(Strategy):
    """Expands a node once, visits its children best first, and prunes a subtree when it leaves it."""

    def plan(self, view: View) -> Plan:
        """Yield actions along an explicit stack; an empty stack is the end."""
        stack: list[NodeId] = [ROOT]
        entered: set[NodeId] = set()
        while stack:
            here = view.tree[stack[-1]]
            if here.id in entered or not expandable(view, here):
                stack.pop()
                yield from self._leave(view, here)
                continue
            entered.add(here.id)
            yield Select((here.id,))
            yield Expand((Ask(here.id, view.params.breadth),))
            yield Evaluate(ids(children(view, [here.id])))
            stack.extend(reversed(self._worth(view, here)))

    def _worth(self, view: View, here: Node) -> list[NodeId]:
        """Return the children to visit, best first; a locked one is visited whatever its value."""
        floor = view.params.keep_above
        return [
            node.id
            for node in sorted(children(view, [here.id]), key=rank_key)
            if floor is None or node.locked or (node.value is not None and node.value >= floor)
        ]

    def _leave(self, view: View, here: Node) -> Plan:
        """Prune a subtree that is behind us; a finished node stays as a candidate."""
        finished = any(node.status in (NodeStatus.DONE, NodeStatus.ACCEPTED) for node in view.tree.walk(here.id))
        if here.id != ROOT and not finished and here.status is not NodeStatus.PRUNED:
            yield Prune((here.id,), "dead end")

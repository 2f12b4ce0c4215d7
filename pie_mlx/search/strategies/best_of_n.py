"""Best of n: independent samples to the end, then the best by score."""

from __future__ import annotations

from pie_mlx.search.node import ROOT, Node
from pie_mlx.search.strategies.base import (
    Ask,
    Evaluate,
    Expand,
    Plan,
    Select,
    Strategy,
    View,
    best,
    children,
    expandable,
    ids,
    usable,
)


class BestOfN(Strategy):
    """Writes ``breadth`` chains side by side, one child a level each, and scores the finished leaves."""

    def plan(self, view: View) -> Plan:
        """Yield the chains' growth, then one judgement over all leaves."""
        yield from grow_chains(view)
        leaves = finished_leaves(view)
        yield Evaluate(ids(leaves))
        yield Select(ids(best(finished_leaves(view), 1)))


def grow_chains(view: View) -> Plan:
    """Grow ``breadth`` chains from the root until each is finished, invalid or at full depth."""
    yield Expand((Ask(ROOT, view.params.breadth),))
    ends: list[Node] = children(view, [ROOT])
    while growing := [node for node in ends if expandable(view, node)]:
        yield Expand(tuple(Ask(node.id, 1) for node in growing))
        ends = children(view, ids(growing))


def finished_leaves(view: View) -> list[Node]:
    """Return the usable leaves that cannot grow any more, in tree order."""
    return [node for node in view.tree.leaves() if node.id != ROOT and usable(node) and not expandable(view, node)]

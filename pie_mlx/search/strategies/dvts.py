"""Diverse verifier tree search: independent subtrees, each followed greedily (Beeching et al. 2024)."""

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
    usable,
)


class Dvts(Strategy):
    """Starts ``beam`` subtrees of ``breadth`` first thoughts and keeps the best one of each at every level."""

    def plan(self, view: View) -> Plan:
        """Yield one level of all subtrees at a time: they are written in one batch, but never compete."""
        trees, breadth = view.params.beam, view.params.breadth
        yield Expand((Ask(ROOT, trees * breadth),))
        firsts = children(view, [ROOT])
        yield Evaluate(ids(firsts))
        groups = [firsts[i::trees] for i in range(trees)]
        while True:
            alive = [[node for node in group if usable(node)] for group in groups]
            heads: list[Node] = [node for group in alive for node in best(group, 1)]
            yield Select(ids(heads))
            yield Prune(others((node for group in alive for node in group), heads), "not the best of its subtree")
            growing = [node for node in heads if expandable(view, node)]
            if not growing:
                return
            yield Expand(tuple(Ask(node.id, breadth) for node in growing))
            yield Evaluate(ids(children(view, ids(growing))))
            groups = [children(view, [node.id]) for node in growing]

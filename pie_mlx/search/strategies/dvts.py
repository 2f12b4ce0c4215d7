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
)


class Dvts(Strategy):
    """Starts ``beam`` subtrees of ``breadth`` first thoughts and keeps the best one of each at every level."""

    def plan(self, view: View) -> Plan:
        """Yield one level of all subtrees at a time: they are written in one batch, but never compete."""
        trees, breadth = view.params.beam, view.params.breadth
        yield Expand((Ask(ROOT, trees * breadth),))
        firsts = children(view, [ROOT])
        yield Evaluate(ids(firsts))
        groups = [[n for n in children(view, [ROOT]) if n in firsts[i::trees]] for i in range(trees)]
        while True:
            heads: list[Node] = []
            dropped: list[Node] = []
            for group in groups:
                kept = best((node for node in group if node in _alive(view, group)), 1)
                heads += kept
                dropped += [node for node in group if node not in kept]
            yield Select(ids(heads))
            yield Prune(others(_alive(view, dropped), []), "not the best of its subtree")
            growing = [node for node in heads if expandable(view, node)]
            if not growing:
                return
            yield Expand(tuple(Ask(node.id, breadth) for node in growing))
            yield Evaluate(ids(children(view, ids(growing))))
            groups = [children(view, [node.id]) for node in growing]


def _alive(view: View, nodes: list[Node]) -> list[Node]:
    """Return those of ``nodes`` that still count."""
    return [node for node in nodes if node in children(view, [node.parent or ROOT])]

"""Self-consistency: independent samples to the end, then the answer that most of them reach (Wang et al. 2022)."""

from __future__ import annotations

from collections import defaultdict

from pie_mlx.search.node import Node, id_path
from pie_mlx.search.strategies.base import Evaluate, Plan, Select, Strategy, View, ids
from pie_mlx.search.strategies.best_of_n import finished_leaves, grow_chains


class SelfConsistency(Strategy):
    """Counts each readable answer once, or weighs it by its value; ties go to the answer that came first."""

    def plan(self, view: View) -> Plan:
        """Yield the chains' growth, the scores where votes are weighted, and the winner."""
        yield from grow_chains(view)
        yield Evaluate(ids(finished_leaves(view)))
        winner = majority(view, finished_leaves(view))
        yield Select(() if winner is None else (winner.id,))


def majority(view: View, leaves: list[Node]) -> Node | None:
    """Return the first leaf of the answer with most votes; a leaf without an answer has none."""
    votes: dict[str, float] = defaultdict(float)
    first: dict[str, Node] = {}
    for leaf in leaves:
        answer = view.answer_key(leaf.id)
        if answer is None:
            continue
        weight = 1.0 if view.params.self_weight == "count" else leaf.value
        votes[answer] += 0.0 if weight is None else weight
        first.setdefault(answer, leaf)
    if not first:
        return None
    return min(first.items(), key=lambda item: (-votes[item[0]], id_path(item[1].id)))[1]

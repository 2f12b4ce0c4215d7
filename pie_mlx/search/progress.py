"""Carrying out a strategy's actions, and what the strategy may see of the outcome."""

from __future__ import annotations

from collections.abc import Sequence

from pie_mlx.events import Alarm
from pie_mlx.search.core import SearchCore
from pie_mlx.search.expansion import Expander
from pie_mlx.search.judging import EngineJudge, subject_of
from pie_mlx.search.node import FINAL, Node, NodeId, NodeStatus, Score, TokenCounts
from pie_mlx.search.params import SearchParams
from pie_mlx.search.scoring.base import LOW_MASS, Scorer
from pie_mlx.search.strategies.base import Action, Evaluate, Expand, Select, View
from pie_mlx.search.trace_events import AlarmRaised, Noticed, Pruned, Scored, Selected
from pie_mlx.search.tree import Tree
from pie_mlx.search.verbs import Verbs


class Progress(View):
    """The search as its strategy sees it, and the hand that carries out what the strategy wants."""

    def __init__(
        self, core: SearchCore, verbs: Verbs, expander: Expander, judge: EngineJudge, scorer: Scorer | None
    ) -> None:
        """Join the parts."""
        self._core = core
        self._verbs = verbs
        self._expander = expander
        self._judge = judge
        self._scorer = scorer
        self._best: float | None = None
        self._alarms = core.engine.listen()

    # --- what a strategy sees ----------------------------------------------------------------

    @property
    def tree(self) -> Tree:
        """The tree so far."""
        return self._core.tree

    @property
    def params(self) -> SearchParams:
        """The run's parameters."""
        return self._core.params

    def may_grow(self, node: NodeId) -> bool:
        """Whether the task lets anything follow a node."""
        return self._core.rules.may_grow(node)

    def take_added(self) -> list[NodeId]:
        """Return the nodes that the user wrote since the last call."""
        return self._verbs.take_added()

    def solved(self, node: NodeId) -> bool | None:
        """Whether a finished node is right, where the run may know."""
        return self._core.rules.solved(node) if self._core.rules.steers_by_check else None

    def answer_key(self, node: NodeId) -> str | None:
        """Return the form of a node's answer that votes compare."""
        return self._core.rules.answer_key(node)

    # --- what the run asks -------------------------------------------------------------------

    def candidates(self) -> list[Node]:
        """Return the finished nodes that may be the answer, in tree order."""
        rules = self._core.rules
        return [
            node
            for node in self.tree.walk()
            if node.id in rules and rules[node.id].terminal and (node.status not in FINAL)
        ]

    def has_solution(self) -> bool:
        """Whether some finished node is known to be right."""
        return any(self.solved(node.id) for node in self.candidates())

    def carry_out(self, action: Action) -> list[list[NodeId]]:
        """Do what the strategy wants; return the new usable children of an expansion."""
        reply: list[list[NodeId]] = []
        if isinstance(action, Expand):
            reply = self._expander.expand(action.asks)
            self._core.spending.expansions_without_gain += 1
        elif isinstance(action, Evaluate):
            self._evaluate(action.nodes)
        elif isinstance(action, Select):
            self._core.tell(Selected(nodes=action.nodes))
        else:
            self._prune(action.nodes, action.reason)
        self.tell_alarms()
        if not isinstance(action, Select):
            self._core.read_pages()
        return reply

    def tell_alarms(self) -> None:
        """Pass on what the watchdog said since the last time."""
        for event in self._alarms.drain():
            if isinstance(event, Alarm):
                self._core.tell(AlarmRaised(kind=event.kind, message=event.message))

    def close(self) -> None:
        """Stop listening to the engine."""
        self._alarms.close()

    # --- pruning -----------------------------------------------------------------------------

    def _prune(self, nodes: Sequence[NodeId], reason: str) -> None:
        """Give up nodes; a locked one and one that a user has pruned meanwhile stay as they are."""
        core = self._core
        for node in nodes:
            found = core.tree[node]
            if found.status is NodeStatus.PRUNED or found.locked:
                continue
            freed = core.workspace.close([below.id for below in core.tree.walk(node)])
            core.tell(Pruned(node=node, freed_pages=freed, reason=reason))
            core.attend()

    # --- scoring -----------------------------------------------------------------------------

    def _evaluate(self, nodes: Sequence[NodeId]) -> None:
        """Score what has no score yet, together; tell in the order of the nodes."""
        core, scored = self._core, self._verbs.scored
        wanted = [node for node in nodes if node not in scored and core.tree[node].status not in FINAL]
        if self._scorer is None or not wanted:
            return
        known = [core.journal.known_score(node) for node in wanted]
        if all(known):
            events = [event for event in known if event is not None]
        else:
            subjects = [subject_of(core, core.tree[node]) for node in wanted]
            scores = self._scorer.score(subjects, self._judge)
            events = [self._scored(node, score) for node, score in zip(wanted, scores, strict=True)]
        self._judge.forget_early()
        for event in events:
            core.attend()
            if core.tree[event.node].status in FINAL:
                continue  # pruned while it was judged: nobody asks for its score
            core.tell(event)
            scored.add(event.node)
            self._note(event.node, event.score)
        self._let_go(wanted)

    def _scored(self, node: NodeId, score: Score) -> Scored:
        """Return the event of a score with what its judging cost."""
        return Scored(node=node, score=score, tokens=self._judge.costs.pop(node, TokenCounts()))

    def _note(self, node: NodeId, score: Score) -> None:
        """Follow the best value, and warn of verdicts that say little."""
        core = self._core
        if score.error is not None:
            core.tell(AlarmRaised(kind="judge", message=f"node {node} was not judged: {score.error}"))
        elif score.value is None:
            core.tell(Noticed(text=f"node {node}: the judge gave no readable verdict ({score.kind})"))
        elif score.mass is not None and score.mass < LOW_MASS:
            core.notice_once(f"the judge hardly uses its labels: mass {score.mass:.2f} at node {node}")
        if score.value is not None and (self._best is None or score.value > self._best):
            self._best = score.value
            core.spending.expansions_without_gain = 0

    def _let_go(self, nodes: Sequence[NodeId]) -> None:
        """Close the contexts of finished nodes: they are judged, and nothing follows them."""
        core = self._core
        core.workspace.close([node for node in nodes if node in core.rules and core.rules[node].terminal])

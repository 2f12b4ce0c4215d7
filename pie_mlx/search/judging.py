"""The model as a judge: forks of nodes, one prefill each, closed again; and which scorer a run uses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from pie_mlx.engine import Completion, Context, Request
from pie_mlx.errors import InvalidParameter, PieError, PressureError
from pie_mlx.search.core import SearchCore
from pie_mlx.search.node import FINAL, ROOT, Node, NodeId, TokenCounts, parent_id
from pie_mlx.search.prompts import P_TRUE_QUESTION, RATING_QUESTION, VOTE_REQUEST
from pie_mlx.search.ranking import MoveReader
from pie_mlx.search.scoring.base import Judge, LabelQuestion, LabelReading, Scorer, Subject, TextReading
from pie_mlx.search.scoring.checker import CheckerScorer
from pie_mlx.search.scoring.compose import Cached, FirstOf
from pie_mlx.search.scoring.consistency import ConsistencyScorer
from pie_mlx.search.scoring.label import LabelScorer
from pie_mlx.search.scoring.logprob import LogprobScorer
from pie_mlx.search.scoring.move import MoveScorer
from pie_mlx.search.scoring.p_true import p_true_scorer
from pie_mlx.search.scoring.rating import RatingScorer
from pie_mlx.search.scoring.vote import VoteScorer
from pie_mlx.search.spending import count_tokens
from pie_mlx.search.strategies.base import INDEPENDENT

_R = TypeVar("_R", LabelReading, TextReading)


class EngineJudge(Judge):
    """Judges on the engine; a judgement that fails is an answer with an error, the others stand."""

    def __init__(self, core: SearchCore) -> None:
        """Judge for ``core``."""
        self._core = core
        self.costs: dict[NodeId, TokenCounts] = {}
        """Tokens by node since they were last taken."""
        self._early: dict[tuple[NodeId, tuple[int, ...]], Completion] = {}
        """Judgements by node and question that were made before they were asked for."""
        self._is_early = False

    def labels(self, nodes: Sequence[NodeId], questions: Sequence[LabelQuestion]) -> list[LabelReading]:
        """Read label probabilities, all questions in one batch as far as the pool holds them."""

        def read(completion: Completion) -> LabelReading:
            assert completion.label_probs is not None, "a labels request answers with probabilities"
            return LabelReading(completion.label_probs)

        return self._ask(
            nodes,
            [question.tokens for question in questions],
            lambda fork, at: fork.submit_labels(questions[at].labels),
            read,
            lambda error: LabelReading(error=error),
        )

    def write(
        self, nodes: Sequence[NodeId], questions: Sequence[tuple[int, ...]], *, max_tokens: int, seeds: Sequence[int]
    ) -> list[TextReading]:
        """Let the model write a verdict after each question."""
        sampling = self._core.params.sampling
        return self._ask(
            nodes,
            questions,
            lambda fork, at: fork.submit(max_tokens=max_tokens, sampling=sampling(seeds[at]), stop=("\n",)),
            lambda completion: TextReading(completion.text, completion.finish_reason),
            lambda error: TextReading(error=error),
            max_tokens=max_tokens,
        )

    def judge_early(self, scorer: Scorer, subjects: Sequence[Subject]) -> None:
        """Make the judgements that ``scorer`` will ask for, while the contexts of ``subjects`` are still open.

        They are kept, and counted when they are asked for: budgets and events are those of a pool that had room
        for all.
        """
        self._is_early = True
        try:
            scorer.score(subjects, self)
        finally:
            self._is_early = False

    def forget_early(self) -> None:
        """Drop the judgements that nobody asked for; like what is computed twice, they cost time and no budget."""
        self._early.clear()

    def _ask(
        self,
        nodes: Sequence[NodeId],
        sequences: Sequence[tuple[int, ...]],
        submit: Callable[[Context, int], Request],
        read: Callable[[Completion], _R],
        fail: Callable[[PieError], _R],
        *,
        max_tokens: int = 0,
    ) -> list[_R]:
        """Fork, submit and read in groups that the pool is likely to hold."""
        core = self._core
        readings: dict[int, _R] = {}
        for at, key in enumerate(zip(nodes, sequences, strict=True)):
            if not self._is_early and (made := self._early.pop(key, None)) is not None:
                self._count(*key, made)
                readings[at] = read(made)
        # What is open goes first: once judged, it can make room for what has to be computed again.
        rest = [at for at in range(len(nodes)) if at not in readings]
        rest.sort(key=lambda at: not core.workspace.is_open(nodes[at]))
        judged: list[NodeId] = []
        while rest:
            group, rest = self._part([(at, nodes[at], sequences[at]) for at in rest], judged, max_tokens)
            asked = [self._start(nodes[at], sequences[at], submit, at) for at in group]
            for at, started in zip(group, asked, strict=True):
                outcome = self._outcome(started)
                if isinstance(outcome, PressureError) and not self._is_early:
                    outcome = self._ask_alone(nodes[at], sequences[at], submit, at)
                readings[at] = fail(outcome) if isinstance(outcome, PieError) else read(outcome)
                self._note(nodes[at], sequences[at], outcome)
            judged += [nodes[at] for at in group]
        return [readings[at] for at in range(len(nodes))]

    def _part(
        self, rest: list[tuple[int, NodeId, tuple[int, ...]]], judged: list[NodeId], max_tokens: int
    ) -> tuple[list[int], list[int]]:
        """Part the questions (place, node, sequence) into those that go together now, and the others.

        Where the pool does not hold them all, leaves that are judged give up their pages as far as that helps,
        then the last of those that wait: better than what the pool would take of itself, the next to be judged.
        """
        workspace = self._core.workspace
        costs, waiting = [], set()
        for _, node, sequence in rest:
            # Of several forks of a node only one goes on in the page that they share.
            costs.append(workspace.pages_behind(node, sequence, max_tokens) + (node in waiting))
            waiting.add(node)
        available = self._core.available_pages()
        spent = [node for node in judged if node not in waiting]
        available += workspace.close_leaves(spent, enough=sum(costs) - available)
        later = [node for _, node, _ in reversed(rest) if node != rest[0][1]]
        available += workspace.close_leaves(later, enough=costs[0] - available)
        num = max(1, sum(total <= available for total in itertools.accumulate(costs)))
        places = [at for at, _, _ in rest]
        return places[:num], places[num:]

    def _start(
        self, node: NodeId, tokens: tuple[int, ...], submit: Callable[[Context, int], Request], at: int
    ) -> tuple[Context, Request] | PieError:
        """Fork one node, put the question there and submit; a refusal is the outcome."""
        fork = self._core.workspace.fork(node)
        fork.rebase(tokens)
        try:
            return fork, submit(fork, at)
        except PieError as error:
            self._core.workspace.release(fork)
            return error

    def _outcome(self, started: tuple[Context, Request] | PieError) -> Completion | PieError:
        """Wait for one judgement and close its fork."""
        if isinstance(started, PieError):
            return started
        fork, request = started
        try:
            return self._core.wait(request)
        except PieError as error:
            return error
        finally:
            self._core.workspace.release(fork)

    def _ask_alone(
        self, node: NodeId, tokens: tuple[int, ...], submit: Callable[[Context, int], Request], at: int
    ) -> Completion | PieError:
        """Judge again what pressure ended, with every other context closed."""
        core = self._core
        core.notice_once("low residency: contexts are closed between thoughts and computed again when wanted")
        core.workspace.close_all_but(())
        return self._outcome(self._start(node, tokens, submit, at))

    def _note(self, node: NodeId, sequence: tuple[int, ...], outcome: Completion | PieError) -> None:
        """Count what was asked for, keep what will be; a failure costs nothing, and is asked for again."""
        if isinstance(outcome, PieError):
            return
        if self._is_early:
            self._early[node, sequence] = outcome
        else:
            self._count(node, sequence, outcome)

    def _count(self, node: NodeId, sequence: tuple[int, ...], outcome: Completion) -> None:
        """Count what a judgement cost; its new tokens are those behind the node's own."""
        own = max(len(sequence) - len(self._core.workspace.tokens(node)), 1)
        counts = count_tokens(outcome, own)
        self._core.spending.add(counts)
        self.costs[node] = self.costs.get(node, TokenCounts()) + counts


def subject_of(core: SearchCore, node: Node) -> Subject:
    """Show a written node to a scorer."""
    position = core.rules[node.id]
    return Subject(
        node=node.id,
        key=node.key,
        state=position.state,
        text=core.rules.path_text(node.id),
        tokens=core.workspace.tokens(node.id),
        logprobs=core.logprobs.get(node.id, ()),
        finished=position.terminal,
        seed=node.seed,
    )


def judge_early(core: SearchCore, judge: EngineJudge, nodes: Sequence[NodeId]) -> None:
    """Judge written nodes before their level is complete, where that serves.

    A vote is among all of a level, and strategies of whole answers judge in their end.
    """
    written = [core.tree[node] for node in nodes if node in core.rules and core.tree[node].status not in FINAL]
    if not written or core.params.scorer == "vote" or core.params.strategy in INDEPENDENT:
        return
    # One that remembers scores would take these for asked: a scorer of their own.
    scorer = build_scorer(core, {})
    if scorer is not None:
        judge.judge_early(scorer, [subject_of(core, node) for node in written])


def build_scorer(core: SearchCore, costs: dict[NodeId, TokenCounts]) -> Scorer | None:
    """Return the scorer that the parameters name; None scores nothing. What it spends itself goes to ``costs``.

    Raises:
        InvalidParameter: the task has not what the scorer needs, or its labels start alike for this tokenizer.
    """
    name, task = core.params.scorer, core.rules.task
    if name == "none":
        return None
    if name == "auto" and core.params.strategy == "self_consistency" and core.params.self_weight == "count":
        name = "consistency"
    if name == "checker" and not task.has_check and task.score(task.start()) is None:
        raise InvalidParameter("scorer", name, f"another one: task {task.name!r} has neither check nor score")
    if name == "oracle" and task.oracle(task.start()) is None:
        raise InvalidParameter("scorer", name, f"another one: task {task.name!r} has no known truth")
    if name == "auto" and core.params.propose == "legal":
        name = "move"
    if name == "move":
        return FirstOf(_checker(core), _by_move(core, costs))
    if name == "auto":
        return FirstOf(_checker(core), Cached(_by_labels(core)))
    if name == "checker":
        return FirstOf(_checker(core), CheckerScorer(lambda s: task.score(s.state), kind="estimate"))
    return _SCORERS[name](core)


def _checker(core: SearchCore) -> Scorer:
    """The exact checker's value of a finished node."""

    def value(subject: Subject) -> float | None:
        check = core.rules[subject.node].check if core.rules.steers_by_check else None
        return None if check is None else check.value

    return CheckerScorer(value)


def _by_labels(core: SearchCore) -> Scorer:
    """The task's own judging question, read as label probabilities."""
    task, dialogue = core.rules.task, core.dialogue
    first = task.judging(task.start())
    weights = first.labels
    # Labels that this tokenizer cannot tell apart are refused here, before any token is spent.
    root = Subject(ROOT, "", task.start(), "", dialogue.root)
    dialogue.label_question(root, tuple(weights), first.question)
    return LabelScorer(weights, lambda s, labels: dialogue.label_question(s, labels, task.judging(s.state).question))


def _by_move(core: SearchCore, costs: dict[NodeId, TokenCounts]) -> Scorer:
    """The model's own choice among the legal moves."""
    reader = MoveReader(core, costs)
    return MoveScorer(lambda s: parent_id(s.node) or ROOT, lambda s: core.tree[s.node].text, reader.rank)


def _by_oracle(core: SearchCore) -> Scorer:
    """The task's known truth."""

    def value(subject: Subject) -> float | None:
        truth = core.rules.task.oracle(subject.state)
        return None if truth is None else float(truth)

    return CheckerScorer(value, kind="oracle")


_SCORERS: dict[str, Callable[[SearchCore], Scorer]] = {
    "label": lambda core: Cached(_by_labels(core)),
    "p_true": lambda core: Cached(
        p_true_scorer(lambda s, labels: core.dialogue.label_question(s, labels, P_TRUE_QUESTION))
    ),
    "vote": lambda core: VoteScorer(lambda s, letters: core.dialogue.vote_question(s, letters, VOTE_REQUEST)),
    "logprob": lambda _core: LogprobScorer(),
    "consistency": lambda core: ConsistencyScorer(lambda s: core.rules.answer_key(s.node)),
    "rating": lambda core: RatingScorer(lambda s: s.tokens + core.dialogue.encode(RATING_QUESTION.rstrip(" "))),
    "oracle": _by_oracle,
}

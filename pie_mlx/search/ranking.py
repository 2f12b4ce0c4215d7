"""Reading the probabilities of legal moves on the engine: a fork a state, a fork a move, one batch of prefills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pie_mlx.engine import Context, Request
from pie_mlx.errors import PieError, PressureError
from pie_mlx.search.concurrency import estimate, waves
from pie_mlx.search.core import SearchCore
from pie_mlx.search.node import NodeId, TokenCounts
from pie_mlx.search.scoring.move import MoveReading, Ranking
from pie_mlx.search.spending import count_tokens


@dataclass(frozen=True, slots=True)
class _Move:
    """One move to be read."""

    at: int
    """Index of its state."""
    text: str
    words: tuple[int, ...]
    """The move's tokens behind the lead."""
    charged: NodeId
    """The node that its cost is told with."""


class MoveReader:
    """Ranks the legal moves of states for :class:`MoveScorer`; costs are added to ``costs`` by node."""

    def __init__(self, core: SearchCore, costs: dict[NodeId, TokenCounts]) -> None:
        """Read for ``core``."""
        self._core = core
        self._costs = costs

    def rank(self, rankings: Sequence[Ranking]) -> list[MoveReading]:
        """Read all moves of all states, as many at a time as the pool is likely to hold."""
        core = self._core
        moves = [move for at, ranking in enumerate(rankings) for move in self._moves(at, ranking)]
        need = estimate(
            prompt_tokens=0,
            branches=len(moves),
            thought_tokens=max((len(move.words) for move in moves), default=1),
            judge_tokens=0,
            page_size=core.page_size,
        )
        bases: dict[int, Context] = {}
        found: list[dict[str, float]] = [{} for _ in rankings]
        errors: dict[int, PieError] = {}
        try:
            for group in waves(len(moves), need.fitting(core.available_pages())):
                for move in (moves[at] for at in group):
                    if move.at not in bases:
                        bases[move.at] = self._base(rankings[move.at])
                self._read([moves[at] for at in group], bases, found, errors)
            core.read_pages()
        finally:
            for base in bases.values():
                core.workspace.release(base)
        return [MoveReading(found[at], errors.get(at)) for at in range(len(rankings))]

    def _moves(self, at: int, ranking: Ranking) -> list[_Move]:
        """Return the legal moves of a state as tokens; a move that is a node pays for itself."""
        core = self._core
        state, lead = core.rules[ranking.parent].state, core.rules.lead(ranking.parent)
        start = len(core.dialogue.lead(lead))
        payers = {core.tree[node].text: node for node in ranking.nodes}
        return [
            _Move(at, text, core.dialogue.line(lead, text)[start:], payers.get(text, ranking.nodes[0]))
            for text in dict.fromkeys([*core.rules.task.legal_moves(state), *payers])
        ]

    def _base(self, ranking: Ranking) -> Context:
        """Open a state with its lead: all its moves share that."""
        core = self._core
        base = core.workspace.fork(ranking.parent)
        lead = core.dialogue.lead(core.rules.lead(ranking.parent))
        base.append(lead)
        try:
            core.wait_quietly(base.prefill())
        except PieError:
            return base  # the moves ask for the same tokens: each gets this refusal as its own outcome
        counts = TokenCounts(prompt=len(lead))
        core.spending.add(counts)
        self._charge(ranking.nodes[0], counts)
        return base

    def _read(
        self,
        moves: Sequence[_Move],
        bases: dict[int, Context],
        found: list[dict[str, float]],
        errors: dict[int, PieError],
    ) -> None:
        """Read one group side by side; what pressure ended is read again alone."""
        started = [self._start(move, bases[move.at]) for move in moves]
        for move, one in zip(moves, started, strict=True):
            outcome = self._outcome(move, one)
            if isinstance(outcome, PressureError):
                self._core.notice_once("low residency: contexts are closed between thoughts and computed again")
                self._core.workspace.close_all_but(())
                outcome = self._outcome(move, self._start(move, bases[move.at]))
            if isinstance(outcome, PieError):
                errors.setdefault(move.at, outcome)
            else:
                found[move.at][move.text] = outcome

    def _start(self, move: _Move, base: Context) -> tuple[Context, Request] | PieError:
        """Fork the state and submit one move; a refusal is the outcome."""
        fork = self._core.workspace.fork_of(base)
        try:
            return fork, fork.submit_logprobs(move.words)
        except PieError as error:
            self._core.workspace.release(fork)
            return error

    def _outcome(self, move: _Move, started: tuple[Context, Request] | PieError) -> float | PieError:
        """Wait for one move, close its fork and return its log-probability."""
        if isinstance(started, PieError):
            return started
        fork, request = started
        try:
            completion = self._core.wait(request)
        except PieError as error:
            return error
        finally:
            self._core.workspace.release(fork)
        counts = count_tokens(completion, len(move.words))
        self._core.spending.add(counts)
        self._charge(move.charged, counts)
        return sum(completion.logprobs)

    def _charge(self, node: NodeId, counts: TokenCounts) -> None:
        """Add a cost to a node's."""
        self._costs[node] = self._costs.get(node, TokenCounts()) + counts

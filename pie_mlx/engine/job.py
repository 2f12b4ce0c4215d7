"""A job: the engine's side of a request. Its phase is an enum and moves in one method."""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

from pie_mlx.engine.completion import Completion, FinishReason, Piece
from pie_mlx.engine.sequence import Sequence
from pie_mlx.errors import PieError
from pie_mlx.ids import RequestId
from pie_mlx.kv.prefix_index import PageKey
from pie_mlx.sampling import Sampling


class Phase(enum.Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PREEMPTED = "preempted"
    RESTORING = "restoring"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_running(self) -> bool:
        """Whether the request takes part in steps."""
        return self in (Phase.PREFILLING, Phase.DECODING, Phase.RESTORING)

    @property
    def is_over(self) -> bool:
        """Whether the one terminal event has been sent."""
        return self in (Phase.FINISHED, Phase.FAILED, Phase.CANCELLED)


_OVER = {Phase.FINISHED, Phase.FAILED, Phase.CANCELLED}
_MOVES: dict[Phase, set[Phase]] = {
    Phase.WAITING: {Phase.PREFILLING, *_OVER},
    Phase.PREFILLING: {Phase.DECODING, Phase.PREEMPTED, *_OVER},
    Phase.DECODING: {Phase.PREEMPTED, *_OVER},
    Phase.PREEMPTED: {Phase.RESTORING, *_OVER},
    Phase.RESTORING: {Phase.DECODING, Phase.PREEMPTED, *_OVER},
}


class Allowed(Protocol):
    """Restricts the next token, as a constrained decoder does; called on the engine thread."""

    def allowed(self) -> Tokens[int] | None:
        """Return the ids that may come next; None is all."""
        ...

    def accept(self, token: int) -> None:
        """Take note of the token that was drawn."""
        ...


@dataclass(frozen=True, slots=True)
class GenerateGoal:
    """Up to ``max_tokens`` new tokens; ``max_tokens`` 0 only makes all but the last token resident."""

    max_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    constraint: Allowed | None = None


@dataclass(frozen=True, slots=True)
class LabelsGoal:
    """Probabilities of labels after the sequence."""

    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogprobsGoal:
    """Log-probabilities of the sequence's last ``num_targets`` tokens, which leave it at the end."""

    num_targets: int


Goal = GenerateGoal | LabelsGoal | LogprobsGoal


def num_unwanted(goal: Goal) -> int:
    """Return 1 where nobody asks what follows the sequence's last token, which then is not computed; else 0."""
    return int(isinstance(goal, LogprobsGoal) or (isinstance(goal, GenerateGoal) and goal.max_tokens == 0))


def num_leaving(goal: Goal) -> int:
    """Return how many tokens of the sequence leave it when the request ends."""
    return goal.num_targets if isinstance(goal, LogprobsGoal) else 0


class TextStreamLike(Protocol):
    """What the engine needs of a streaming detokenizer with stop strings."""

    def push(self, token: int) -> tuple[str, bool]:
        """Take a token; return the text that is now certain, and whether a stop string has matched."""
        ...

    def finish(self) -> str:
        """Return the text that was held back."""
        ...


Delivery = Piece | Completion | PieError


@dataclass(slots=True, eq=False)
class Job:
    """One request: goal, phase, what came out so far, and the queue to its owner."""

    id: RequestId
    sequence: Sequence
    goal: Goal
    num_prompt: int
    text: TextStreamLike | None = None
    deliveries: SimpleQueue[Delivery] = field(default_factory=SimpleQueue)
    phase: Phase = Phase.WAITING
    after: Job | None = None
    """The request that computes this one's prefix now: it waits for that prefill, not beside it."""
    ahead: list[PageKey] = field(default_factory=list)
    """Keys of its sequence's pages, computed or not, as far as it was asked for them."""
    submitted_s: float = field(default_factory=time.perf_counter)
    first_token_s: float | None = None
    ended_s: float | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    label_probs: tuple[float, ...] | None = None
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    num_preemptions: int = 0
    has_progressed: bool = True
    reason: FinishReason | None = None
    error: PieError | None = None

    def move(self, phase: Phase) -> None:
        """Go to ``phase``; any move that the life of a request does not have is a fault of ours."""
        assert phase in _MOVES.get(self.phase, set()), f"request {self.id} cannot go {self.phase} → {phase}"
        self.phase = phase

    @property
    def num_to_compute(self) -> int:
        """Tokens to compute before the next result; a last token whose logits nobody wants is not."""
        return self.sequence.num_outstanding - num_unwanted(self.goal)

    @property
    def first_wanted(self) -> int:
        """Position of the first token whose logits are wanted: no cached page may reach over it."""
        if isinstance(self.goal, LogprobsGoal):
            return self.num_prompt - self.goal.num_targets - 1 + len(self.scores)
        return len(self.sequence.tokens) - 1

    @property
    def num_lasting(self) -> int:
        """Computed tokens that stay in the sequence when the request ends: the targets of a scoring leave it."""
        resident, leaving = self.sequence.num_resident, num_leaving(self.goal)
        return min(resident, self.num_prompt - leaving) if leaving else resident

    @property
    def wants_token(self) -> bool:
        """Whether it generates: its context then needs a place for one token more."""
        return isinstance(self.goal, GenerateGoal) and self.goal.max_tokens > 0

    @property
    def is_prefilled(self) -> bool:
        """Whether only the last token is outstanding: the next step answers."""
        return self.sequence.num_outstanding <= 1

    def completion(self) -> Completion:
        """Return what there is so far, as a completion."""
        end = self.ended_s if self.ended_s is not None else time.perf_counter()
        return Completion(
            text="".join(self.pieces),
            tokens=tuple(self.tokens),
            finish_reason=self.reason or "cancelled",
            logprobs=tuple(self.scores if isinstance(self.goal, LogprobsGoal) else self.logprobs),
            top_logprobs=tuple(self.top_logprobs),
            label_probs=self.label_probs,
            prompt_tokens=self.num_prompt,
            cached_tokens=self.cached_tokens,
            prefilled_tokens=self.prefilled_tokens,
            ttft_s=None if self.first_token_s is None else self.first_token_s - self.submitted_s,
            wall_s=end - self.submitted_s,
            num_preemptions=self.num_preemptions,
        )

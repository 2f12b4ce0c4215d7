"""From logits to outcomes: what a step's segments want, computed in one evaluation and read once."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from pie_mlx.backend.base import (
    FloatArray,
    IntArray,
    LabelProbs,
    Logprobs,
    Outcome,
    Prefilled,
    RowFailed,
    Sampled,
    Want,
    WantLabels,
    WantLogprobs,
    WantNothing,
    WantToken,
)
from pie_mlx.backend.mlx.exponential import logsumexp
from pie_mlx.backend.mlx.planner import StepPlan
from pie_mlx.backend.mlx.sampling import Draw, check_allowed, draw_tokens
from pie_mlx.errors import InvalidLogits, InvalidParameter

_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class _Answer:
    """Logits rows ``start:stop`` belong to segment ``segment`` of the plan."""

    segment: int
    start: int
    stop: int


class Readout:
    """The rows whose logits a plan needs, and the outcomes that come of them."""

    def __init__(self, plan: StepPlan) -> None:
        """Collect the rows in the plan's order."""
        self._plan = plan
        self._read: _Read | None = None
        self._health = mx.zeros(0)
        self._answers: list[_Answer] = []
        rows: list[int] = []
        for at, segment in enumerate(plan.segments):
            want = segment.want
            if not isinstance(want, WantNothing):
                count = len(want.targets) if isinstance(want, WantLogprobs) else 1
                self._answers.append(_Answer(at, len(rows), len(rows) + count))
                rows.extend(range(plan.starts[at + 1] - count, plan.starts[at + 1]))
        self.rows: IntArray = np.array(rows, dtype=np.int32)
        """Rows of the plan whose logits are needed, in the order of the answers."""
        self.unhealthy = False
        """Whether a row went wrong: others that attended over the same keys may then be wrong with it."""

    def build(self, logits: mx.array, health: mx.array) -> None:
        """Build what is needed of ``logits`` ``[len(rows), vocab]``.

        ``health`` ``[rows of the plan]`` is not finite where a row went wrong.
        """
        self._health = health
        if self._answers:
            self._read = _Read(logits.astype(mx.float32), self._targets(), self._host_rows())

    def replace_plan(self, plan: StepPlan) -> None:
        """Take another plan of the same shape: its wants decide what is drawn."""
        self._plan = plan

    def arrays(self) -> list[mx.array]:
        """Return what has to be evaluated."""
        return [self._health, *(() if self._read is None else self._read.arrays())]

    def finish(self) -> list[Outcome]:
        """Return one outcome a segment, in the order of the step as it was asked for; all arrays are evaluated."""
        outcomes: list[Outcome] = [Prefilled() for _ in self._plan.segments]
        if self._read is not None:
            self._read.look()
            draws = self._draw(self._read)
            for answer in self._answers:
                outcomes[self._plan.places[answer.segment]] = self._outcome(answer, self._read, draws)
        wrong = np.flatnonzero(~np.isfinite(np.array(self._health)))
        self.unhealthy |= len(wrong) > 0
        for row in reversed(wrong.tolist()):
            at = int(np.searchsorted(self._plan.starts, row, side="right")) - 1
            outcomes[self._plan.places[at]] = RowFailed(InvalidLogits(int(self._plan.positions[row])))
        return outcomes

    def _targets(self) -> IntArray:
        """Return the id whose log-probability each row wants, 0 where it wants something else."""
        targets = np.zeros(len(self.rows), dtype=np.int32)
        for answer in self._answers:
            want = self._plan.segments[answer.segment].want
            if isinstance(want, WantLogprobs):
                targets[answer.start : answer.stop] = want.targets
        return targets

    def _host_rows(self) -> list[int]:
        """Return the rows whose whole logits the host has to see."""
        return [answer.start for answer in self._answers if not is_simple(self._plan.segments[answer.segment].want)]

    def _failure(self, answer: _Answer, read: _Read) -> RowFailed | None:
        """Return why an answer's rows cannot be read."""
        segment = self._plan.segments[answer.segment]
        wrong = np.flatnonzero(~np.isfinite(read.lse[answer.start : answer.stop]))
        if len(wrong):
            self.unhealthy = True
            first = segment.position + len(segment.tokens) - (answer.stop - answer.start)
            return RowFailed(InvalidLogits(first + int(wrong[0])))
        fault = self._wrong_ids(answer, read.vocab_size)
        return None if fault is None else RowFailed(fault)

    def _wrong_ids(self, answer: _Answer, vocab_size: int) -> InvalidParameter | None:
        """Return which ids of a want are outside the vocabulary."""
        want = self._plan.segments[answer.segment].want
        if isinstance(want, WantToken):
            return check_allowed(want, vocab_size)
        name, ids = ("targets", want.targets.tolist()) if isinstance(want, WantLogprobs) else ("labels", [])
        if isinstance(want, WantLabels):
            ids = list(want.labels)
        wrong = [i for i in ids if not 0 <= i < vocab_size]
        return InvalidParameter(name, wrong[:5], f"token ids from 0 to {vocab_size - 1}") if wrong else None

    def _draw(self, read: _Read) -> dict[int, Draw | None]:
        """Draw the tokens of all rows that the host decides; by first row of the answer."""
        wants: dict[int, WantToken] = {}
        for answer in self._answers:
            want = self._plan.segments[answer.segment].want
            if isinstance(want, WantToken) and not is_simple(want) and self._failure(answer, read) is None:
                wants[answer.start] = want
        if not wants:
            return {}
        rows = list(wants)
        draws = draw_tokens(read.host_logits(rows), read.lse[rows], list(wants.values()))
        return dict(zip(rows, draws, strict=True))

    def _outcome(self, answer: _Answer, read: _Read, draws: dict[int, Draw | None]) -> Outcome:
        """Answer one segment."""
        failure = self._failure(answer, read)
        if failure is not None:
            return failure
        segment = self._plan.segments[answer.segment]
        want, row = segment.want, answer.start
        if isinstance(want, WantLogprobs):
            picked = read.target_logits[row : answer.stop] - read.lse[row : answer.stop]
            return Logprobs(tuple(np.maximum(picked, _LOWEST).tolist()))
        if isinstance(want, WantLabels):
            logits = read.host_logits([row])[0, list(want.labels)].astype(np.float64)
            return LabelProbs(tuple(np.exp(logits - read.lse[row]).tolist()))
        if row not in draws:
            return Sampled(int(read.best[row]), float(read.best_logits[row] - read.lse[row]))
        draw = draws[row]
        if draw is None:
            return RowFailed(InvalidLogits(segment.position + len(segment.tokens) - 1))
        return Sampled(draw.token, draw.logprob, draw.top)


def is_simple(want: Want) -> bool:
    """Whether the device's own answers do: greedy without alternatives, and log-probabilities."""
    if isinstance(want, WantToken):
        return want.sampling.is_greedy and want.sampling.num_logprobs == 0 and want.allowed is None
    return isinstance(want, WantLogprobs)


class _Read:
    """What the device computes of the logits, and its values once they are evaluated."""

    def __init__(self, logits: mx.array, targets: IntArray, host_rows: list[int]) -> None:
        """Prepare lazily from ``logits`` ``[rows, vocab]`` in float32."""
        self.vocab_size = logits.shape[1]
        self._place = {row: at for at, row in enumerate(host_rows)}
        wanted = np.clip(targets, 0, self.vocab_size - 1)
        target_logits = mx.take_along_axis(logits, mx.array(wanted)[:, None], axis=1)[:, 0]
        self._device = [logsumexp(logits), mx.argmax(logits, axis=1), mx.max(logits, axis=1), target_logits]
        everything = len(host_rows) == len(logits)
        self._host = None if not host_rows else logits if everything else logits[mx.array(host_rows)]

    def arrays(self) -> list[mx.array]:
        """Return what has to be evaluated."""
        return [*self._device, *([] if self._host is None else [self._host])]

    def look(self) -> None:
        """Look at the values from the host; they are evaluated."""
        self.lse: FloatArray = np.array(self._device[0])
        self.best: IntArray = np.array(self._device[1])
        self.best_logits: FloatArray = np.array(self._device[2])
        self.target_logits: FloatArray = np.array(self._device[3])
        self._logits: FloatArray = np.zeros((0, self.vocab_size), np.float32)
        if self._host is not None:
            self._logits = np.array(self._host, copy=False)

    def host_logits(self, rows: list[int]) -> FloatArray:
        """Return the logits of some of the host's rows, ``[len(rows), vocab]``."""
        places = [self._place[row] for row in rows]
        return self._logits if places == list(range(len(self._logits))) else self._logits[places]

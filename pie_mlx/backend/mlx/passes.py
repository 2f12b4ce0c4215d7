"""A pass from its graph to its outcomes, and the pass that is built before its tokens are known.

Building the graph of a step takes Python some milliseconds, in which the device would idle. The next step is known
but for its tokens while the present one still runs: the same rows, each one token on. So its graph is built then,
over input ids that are written just before it is launched. Nothing of a built pass is evaluated before that: where
the next step turns out to be another one, the graph is dropped and nothing has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np

from pie_mlx.backend.base import Outcome, RowFailed, Segment, WantToken
from pie_mlx.backend.mlx.arena import Arena
from pie_mlx.backend.mlx.forward import Forward, PassResult
from pie_mlx.backend.mlx.planner import PlanSettings, StepPlan, plan_step
from pie_mlx.backend.mlx.readout import Readout, is_simple
from pie_mlx.backend.mlx.state import RowState


class Pass:
    """One forward pass: built, launched, finished."""

    def __init__(self, segments: Sequence[Segment], settings: PlanSettings, forward: Forward, arena: Arena) -> None:
        """Plan the segments and build the graph; the arena stays as it was."""
        self.plan: StepPlan = plan_step(segments, settings)
        self._segments = segments
        self._readout = Readout(self.plan)
        self._result: PassResult = forward.build(self.plan, arena, self._readout.rows)
        self._readout.build(self._result.logits, self._result.health)

    @property
    def is_unhealthy(self) -> bool:
        """Whether a row went wrong: others that attended over the same keys may then be wrong with it."""
        return self._readout.unhealthy

    def fits(self, segments: Sequence[Segment]) -> bool:
        """Whether these are the segments that it was built for, whatever their tokens and the draws they want."""
        return len(segments) == len(self._segments) and all(
            _is_as_built(built, segment) for built, segment in zip(self._segments, segments, strict=True)
        )

    def fill(self, segments: Sequence[Segment]) -> None:
        """Take the tokens and wants of segments that it fits."""
        chosen = tuple(segments[place] for place in self.plan.places)
        tokens = np.concatenate([segment.tokens for segment in chosen])
        self.plan = replace(self.plan, segments=chosen, tokens=tokens)
        self._segments = segments
        self._readout.replace_plan(self.plan)
        write_ids(self._result.ids, tokens)

    def launch(self, arena: Arena) -> None:
        """Let the device begin; the arena takes what it will hold afterwards."""
        arena.adopt(self._result.drafts)
        mx.async_eval(*self._outputs(arena))

    def finish(self, arena: Arena) -> list[Outcome]:
        """Wait for the device; return one outcome a segment, in the order they were given."""
        mx.eval(*self._outputs(arena))
        return self._with_states(self._readout.finish())

    def _outputs(self, arena: Arena) -> list[mx.array]:
        """Return everything that has to be evaluated; do not keep the list."""
        return [*self._readout.arrays(), *arena.arrays(), *self._result.state_arrays()]

    def _with_states(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Put the state after each segment into its outcome."""
        if self._result.states is None:
            return outcomes
        carried = list(outcomes)
        for row, place in enumerate(self.plan.places):
            outcome = outcomes[place]
            if not isinstance(outcome, RowFailed):
                carried[place] = replace(outcome, state=RowState(self._result.states, row))
        return carried


def _is_as_built(built: Segment, segment: Segment) -> bool:
    """Whether a segment differs from the one that was built in nothing but its token and its draw."""
    return (
        isinstance(built.want, WantToken)
        and isinstance(segment.want, WantToken)
        and is_simple(built.want) == is_simple(segment.want)
        and built.position == segment.position
        and len(built.tokens) == len(segment.tokens)
        and built.state is None
        and segment.state is None
        and np.array_equal(built.write_slots, segment.write_slots)
        and np.array_equal(built.context_slots, segment.context_slots)
    )


def write_ids(ids: mx.array, tokens: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> None:
    """Write token ids into an array that a graph reads and that is not evaluated yet.

    MLX documents that a numpy view of an array writes through to it.
    """
    view = np.array(ids, copy=False)
    view[:] = tokens


def ids_can_be_written() -> bool:
    """Whether a graph reads what was written into its input after it was built: tried here, on this device."""
    ids = mx.array(np.zeros(2, dtype=np.int32))
    doubled = mx.arange(8)[ids] * 2
    try:
        write_ids(ids, np.array([3, 1], dtype=np.int32))
    except (ValueError, TypeError, BufferError):
        return False
    return doubled.tolist() == [6, 2]

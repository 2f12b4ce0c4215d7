"""Does a model give the same logits over the arena as with mlx-lm's own caches? Checked once at load.

Batching goes wrong silently more often than loudly (a model that reads one offset for all rows, a mask that
broadcasts over the wrong axis), so each form is tried on a few ragged contexts and must give the reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from mlx import nn

from pie_mlx.backend.base import FloatArray, IntArray, Segment, WantNothing
from pie_mlx.backend.mlx.arena import Arena
from pie_mlx.backend.mlx.cache import Form
from pie_mlx.backend.mlx.forward import Forward
from pie_mlx.backend.mlx.layout import own_caches
from pie_mlx.backend.mlx.planner import Grouping, PlanSettings, plan_step
from pie_mlx.backend.mlx.probe import MODEL_FAULTS, ModelShape
from pie_mlx.backend.mlx.state import RowState
from pie_mlx.errors import UnsupportedModel
from pie_mlx.ids import ContextId

_LENGTHS = (11, 8, 5)
_SHARED = 4
_READ = (7, 6, 3)
"""How much of each sequence is read before the rows of all go together."""
_SLOTS = (tuple(range(16, 27)), (16, 17, 18, 19, 40, 41, 42, 44), (50, 33, 31, 34, 52))
_STEPS = 2
_NUM_SLOTS = 64
_TOLERANCE = {4: 0.01, 2: 0.06}
"""By bytes of the logits' dtype: largest difference, relative to the largest logit."""


def choose_form(
    forward: Forward, shape: ModelShape, settings: PlanSettings, model: str, forms: Sequence[Form] = tuple(Form)
) -> tuple[Form, str | None]:
    """Set ``forward.form`` to the first form that gives mlx-lm's own logits; return it, and a notice if slow.

    Raises:
        UnsupportedModel: no form does.
    """
    sequences = _sequences(shape.vocab_size)
    expected = np.stack([_expected(forward.module, sequence, at) for at, sequence in enumerate(sequences)])
    if not np.isfinite(expected).all():
        raise UnsupportedModel(model, "with mlx-lm itself its logits are not numbers: the weights are damaged")
    reasons: list[str] = []
    for form in forms:
        forward.form = form
        try:
            got = _logits(forward, Arena(shape.layers, _NUM_SLOTS), settings, sequences)
        except MODEL_FAULTS as error:
            what = (str(error).strip().splitlines() or [""])[0]
            reasons.append(f"{form.value}: {type(error).__name__}: {what}")
            continue
        error_size = relative_error(got, expected)
        if error_size <= _TOLERANCE[min(4, shape.dtype.size)]:
            return form, _notice(model, reasons) if form is Form.SINGLE else None
        reasons.append(f"{form.value}: logits differ by {error_size:.2g}")
    # The last form is the most compatible: what fails there is the model's own trouble.
    raise UnsupportedModel(model, f"its logits over paged K/V are not those of mlx-lm ({reasons[-1]})")


def _notice(model: str, reasons: Sequence[str]) -> str:
    """Say that and why the model decodes one branch at a time."""
    return f"{model} cannot be batched ({reasons[0]}): branches decode one after another"


def relative_error(got: FloatArray, expected: FloatArray) -> float:
    """Return the largest difference relative to the largest expected value; infinite if anything is NaN."""
    if got.shape != expected.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - expected).max() / max(float(np.abs(expected).max()), 1e-12))


def reference_logits(module: nn.Module, tokens: Sequence[int], *, last: int = 1) -> FloatArray:
    """Return the logits ``[vocab]`` after ``tokens`` with mlx-lm's own caches; the last tokens go one by one."""
    caches = own_caches(module)
    head, tail = list(tokens[:-last]), list(tokens[-last:])
    if head:
        mx.eval(module(mx.array([head]), cache=caches))
    logits = None
    for token in tail:
        logits = module(mx.array([[token]]), cache=caches)
        mx.eval(logits)
    assert logits is not None, "at least one token"
    out: FloatArray = np.array(logits[0, -1].astype(mx.float32))
    return out


def _expected(module: nn.Module, sequence: Sequence[int], at: int) -> FloatArray:
    """Return mlx-lm's logits after each of the sequence's tokens that go together, ``[tokens, vocab]``."""
    caches = own_caches(module)
    mx.eval(module(mx.array([sequence[: _READ[at]]]), cache=caches))
    rows = []
    for token in sequence[_READ[at] : _READ[at] + _STEPS]:
        logits = module(mx.array([[token]]), cache=caches)[0, -1].astype(mx.float32)
        mx.eval(logits)
        rows.append(np.array(logits))
    return np.stack(rows)


def _sequences(vocab_size: int) -> list[list[int]]:
    """Return ragged sequences; the first two share a prefix."""
    made = [[(3 + 7 * i + 31 * at) % vocab_size for i in range(length)] for at, length in enumerate(_LENGTHS)]
    made[1][:_SHARED] = made[0][:_SHARED]
    return made


def _logits(forward: Forward, arena: Arena, settings: PlanSettings, sequences: Sequence[Sequence[int]]) -> FloatArray:
    """Read each sequence in two chunks, the second from the first's prefix, then run rows of all together.

    The result is ``[sequences, steps, vocab]``.
    """
    run = _Run(forward, arena, settings, sequences)
    run([(0, 0, _SHARED)])
    run.states[1] = run.states[0]
    run([(0, _SHARED, _READ[0])])
    run([(1, _SHARED, _READ[1])])
    run([(2, 0, _READ[2])])
    steps = [run([(at, read + step, read + step + 1) for at, read in enumerate(_READ)]) for step in range(_STEPS)]
    return np.stack(steps, axis=1)


class _Run:
    """Passes over some sequences, whose states it carries."""

    def __init__(
        self, forward: Forward, arena: Arena, settings: PlanSettings, sequences: Sequence[Sequence[int]]
    ) -> None:
        self._forward = forward
        self._arena = arena
        self._settings = settings
        self._sequences = sequences
        self.states: list[RowState | None] = [None] * len(sequences)

    def __call__(self, spans: Sequence[tuple[int, int, int]]) -> FloatArray:
        """Run tokens ``start:stop`` of sequences in as few passes as may be; return each span's last logits."""
        segments = [self._segment(*span) for span in spans]
        logits: list[FloatArray | None] = [None] * len(spans)
        for places in self._forward.batches(segments):
            got = self._pass([segments[i] for i in places], [spans[i][0] for i in places])
            for place, row in zip(places, got, strict=True):
                logits[place] = row
        return np.stack([row for row in logits if row is not None])

    def _segment(self, at: int, start: int, stop: int) -> Segment:
        """Return tokens ``start:stop`` of a sequence as a segment."""
        slots: IntArray = np.array(_SLOTS[at], dtype=np.int32)
        tokens: IntArray = np.array(self._sequences[at][start:stop], dtype=np.int32)
        return Segment(
            ContextId(at + 1), tokens, start, slots[:start], slots[start:stop], WantNothing(), self.states[at]
        )

    def _pass(self, segments: list[Segment], sequences: list[int]) -> FloatArray:
        """Run a pass in one group; return the logits of each segment's last row."""
        grouping = Grouping.EACH if len(segments) == 1 else Grouping.ONE
        plan = plan_step(segments, PlanSettings(self._settings.costs, grouping, cascades=False))
        rows: IntArray = np.array(plan.starts[1:], dtype=np.int32) - 1
        result = self._forward.build(plan, self._arena, rows)
        self._arena.adopt(result.drafts)
        logits = result.logits.astype(mx.float32)
        mx.eval(logits, self._arena.arrays(), result.state_arrays())
        if result.states is not None:
            for row, place in enumerate(plan.places):
                self.states[sequences[place]] = RowState(result.states, row)
        ordered = np.empty(len(segments), dtype=np.int64)
        ordered[list(plan.places)] = np.arange(len(segments))
        out: FloatArray = np.array(logits)[ordered]
        return out

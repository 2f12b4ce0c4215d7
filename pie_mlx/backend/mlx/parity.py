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
from pie_mlx.backend.mlx.arena import Arena, LayerShape
from pie_mlx.backend.mlx.cache import Form
from pie_mlx.backend.mlx.forward import Forward, own_caches
from pie_mlx.backend.mlx.planner import Grouping, PlanSettings, plan_step
from pie_mlx.errors import UnsupportedModel
from pie_mlx.ids import ContextId

_LENGTHS = (9, 6, 3)
_SHARED = 4
_LAST = (2, 1, 1)
_SLOTS = (tuple(range(16, 25)), (16, 17, 18, 19, 40, 41), (50, 33, 31))
_NUM_SLOTS = 64
_TOLERANCE = {4: 0.01, 2: 0.06}
"""By bytes of the logits' dtype: largest difference, relative to the largest logit."""
_FAILURES = (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError, AssertionError)


def choose_form(
    module: nn.Module, forward: Forward, shapes: Sequence[LayerShape | None], settings: PlanSettings, model: str
) -> tuple[Form, str | None]:
    """Set ``forward.form`` to the first form that gives mlx-lm's own logits; return it, and a notice if slow.

    Raises:
        UnsupportedModel: no form does.
    """
    sequences = _sequences(int(reference_logits(module, [0]).shape[-1]))
    expected = np.stack([reference_logits(module, sequence, last=1) for sequence in sequences])
    reasons: list[str] = []
    for form in Form:
        forward.form = form
        try:
            got = _logits(forward, Arena(shapes, _NUM_SLOTS), settings, sequences)
        except _FAILURES as error:
            reasons.append(f"{form.value}: {type(error).__name__}: {error}")
            continue
        error_size = relative_error(got, expected)
        if error_size <= _tolerance(shapes):
            return form, _notice(model, reasons) if form is Form.SINGLE else None
        reasons.append(f"{form.value}: logits differ by {error_size:.2g}")
    raise UnsupportedModel(model, "its logits over paged K/V are not those of mlx-lm (" + "; ".join(reasons) + ")")


def _notice(model: str, reasons: Sequence[str]) -> str:
    """Say that and why the model decodes one branch at a time."""
    return f"{model} cannot be batched ({reasons[0]}): branches decode one after another"


def _tolerance(shapes: Sequence[LayerShape | None]) -> float:
    """Return the tolerance for the precision of the K/V."""
    return max(_TOLERANCE[min(4, shape.key_dtype.size)] for shape in shapes if shape is not None)


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


def _sequences(vocab_size: int) -> list[list[int]]:
    """Return ragged sequences; the first two share a prefix."""
    made = [[(3 + 7 * i + 31 * at) % vocab_size for i in range(length)] for at, length in enumerate(_LENGTHS)]
    made[1][:_SHARED] = made[0][:_SHARED]
    return made


def _logits(forward: Forward, arena: Arena, settings: PlanSettings, sequences: Sequence[Sequence[int]]) -> FloatArray:
    """Prefill each sequence but its last tokens, then run those of all in one pass (one by one if SINGLE)."""
    ready = _SHARED
    _run(forward, arena, settings, [_segment(sequences, 0, 0, _LENGTHS[0] - _LAST[0])])
    for at in (1, 2):
        _run(forward, arena, settings, [_segment(sequences, at, ready if at == 1 else 0, _LENGTHS[at] - _LAST[at])])
    last = [_segment(sequences, at, _LENGTHS[at] - _LAST[at], _LENGTHS[at]) for at in range(len(sequences))]
    if forward.form is Form.SINGLE:
        return np.concatenate([_run(forward, arena, settings, [segment]) for segment in last])
    return _run(forward, arena, settings, last)


def _segment(sequences: Sequence[Sequence[int]], at: int, start: int, stop: int) -> Segment:
    """Return tokens ``start:stop`` of a sequence as a segment."""
    slots: IntArray = np.array(_SLOTS[at], dtype=np.int32)
    tokens: IntArray = np.array(sequences[at][start:stop], dtype=np.int32)
    return Segment(ContextId(at + 1), tokens, start, slots[:start], slots[start:stop], WantNothing())


def _run(forward: Forward, arena: Arena, settings: PlanSettings, segments: list[Segment]) -> FloatArray:
    """Run a pass in one group; return the logits of each segment's last row, in the order of the segments."""
    grouping = Grouping.EACH if len(segments) == 1 else Grouping.ONE
    plan = plan_step(segments, PlanSettings(settings.costs, grouping, cascades=False))
    rows: IntArray = np.array(plan.starts[1:], dtype=np.int32) - 1
    logits = forward.run(plan, arena, rows)[0].astype(mx.float32)
    mx.eval(logits, arena.arrays())
    return np.array(logits)

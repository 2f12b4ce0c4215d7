"""One forward pass of an unmodified mlx-lm model over the arena.

Attention is replaced in the model's own modules while a pass runs and restored after it; where the device's
exponential is slow, so is the SwiGLU activation. Only the rows that somebody asked for go through the output
head: the inner model's class is extended to hand on just those.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Self

import mlx.core as mx
import numpy as np
from mlx import nn

from pie_mlx.backend.base import IntArray, Segment
from pie_mlx.backend.mlx.arena import Arena, Drafts
from pie_mlx.backend.mlx.cache import ArenaCache, AttentionArgs, Form, ForwardPass, attend_step
from pie_mlx.backend.mlx.exponential import exp_is_slow, swiglu
from pie_mlx.backend.mlx.layout import Layout, StateLeaf
from pie_mlx.backend.mlx.planner import StepPlan
from pie_mlx.backend.mlx.state import Entries, RowState, StateBatch, StateCache, stack

_ATTENTION = "scaled_dot_product_attention"
_SWIGLU = "swiglu"
_INNER_NAMES = ("model", "transformer", "backbone")

Function = Callable[..., mx.array]


class FunctionSwap:
    """Replaces attention, and what the device is slow at, in a model's modules while a pass runs in them."""

    _lock = threading.Lock()
    _running: ClassVar[dict[tuple[ModuleType, str], tuple[int, Function]]] = {}

    def __init__(self, module: nn.Module) -> None:
        """Find the Python modules that the model's layers were written in."""
        makers = {_ATTENTION: _dispatcher, **({_SWIGLU: _fast_swiglu} if exp_is_slow() else {})}
        modules = [sys.modules.get(name) for name in sorted({type(each).__module__ for each in module.modules()})]
        self._places = [
            (each, name, make)
            for each in modules
            if each is not None
            for name, make in makers.items()
            if hasattr(each, name)
        ]

    def __enter__(self) -> Self:
        """Replace."""
        with self._lock:
            for module, name, make in self._places:
                count, original = self._running.get((module, name), (0, getattr(module, name)))
                self._running[module, name] = (count + 1, original)
                if count == 0:
                    setattr(module, name, make(original))
        return self

    def __exit__(self, *_: object) -> None:
        """Restore, unless another pass still runs in the module."""
        with self._lock:
            for module, name, _make in self._places:
                count, original = self._running.pop((module, name))
                if count > 1:
                    self._running[module, name] = (count - 1, original)
                else:
                    setattr(module, name, original)


def _dispatcher(original: Function) -> Function:
    """Return attention that serves the arena and leaves everything else to ``original``."""

    def scaled_dot_product_attention(  # noqa: PLR0917 - mlx-lm's own signature, which models may call by position
        queries: mx.array,
        keys: Any,
        values: Any,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        mixed = attend_step(AttentionArgs(queries, keys, values, scale, mask, sinks), cache)
        if mixed is not None:
            return mixed
        return original(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)

    return scaled_dot_product_attention


def _fast_swiglu(original: Function) -> Function:
    """Return the activation without the device's slow exponential; other dtypes are left to ``original``."""

    def activation(gate: mx.array, x: mx.array) -> mx.array:
        is_single = gate.dtype == x.dtype == mx.float32
        return swiglu(gate, x) if is_single else original(gate, x)

    return activation


class RowTap:
    """Lets only chosen rows of the hidden state through to the output head."""

    def __init__(self, module: nn.Module) -> None:
        """Extend the class of the model's inner part; without one, all rows go through."""
        self._rows: mx.array | None = None
        self._taken = False
        inner = _inner(module)
        if inner is not None:
            base = getattr(type(inner), "untapped", type(inner))
            members = {"__call__": self._wrap(base), "__module__": base.__module__, "untapped": base}
            inner.__class__ = type(base.__name__, (base,), members)

    def _wrap(self, base: type[Any]) -> Callable[..., Any]:
        """Return a ``__call__`` that runs ``base`` and picks the rows."""

        def call(inner: Any, *args: Any, **kwargs: Any) -> Any:
            out = base.__call__(inner, *args, **kwargs)
            if self._rows is None or not isinstance(out, mx.array) or out.ndim != 3:
                return out
            self._taken = True
            return out.reshape(-1, out.shape[-1])[self._rows][None]

        return call

    def logits(self, run: Callable[[], mx.array], rows: IntArray) -> mx.array:
        """Return the logits ``[len(rows), vocab]`` of the rows that ``run`` computes."""
        index = mx.array(rows)
        self._rows, self._taken = index, False
        try:
            out = run()
            flat = out.reshape(-1, out.shape[-1])
            return flat if self._taken else flat[index]
        finally:
            self._rows = None


def _inner(module: nn.Module) -> nn.Module | None:
    """Return the part of the model that ends before the output head."""
    current = module
    while isinstance(getattr(current, "language_model", None), nn.Module):
        current = current.language_model
    for name in _INNER_NAMES:
        part = getattr(current, name, None)
        if isinstance(part, nn.Module):
            return part
    return None


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass leaves, not yet evaluated; the arena has to adopt the drafts before it is."""

    logits: mx.array
    """Of the rows that were asked for, ``[len(rows), vocab]``."""
    health: mx.array
    """One number a row of the plan, not finite where it went wrong."""
    states: StateBatch | None
    """Of the plan's segments, in its order; None for models without recurrent layers."""
    drafts: Drafts
    ids: mx.array
    """The input ids in the plan's order, ``[rows]``."""

    def state_arrays(self) -> list[mx.array]:
        """Return the states' arrays, to be evaluated with the pass."""
        return [] if self.states is None else self.states.arrays()


class Forward:
    """A model and the way its passes run over an arena."""

    def __init__(self, module: nn.Module, layout: Layout, *, folded: bool) -> None:
        """Prepare ``module``, whose caches ``layout`` describes."""
        self.module = module
        self.layout = layout
        self._swap = FunctionSwap(module)
        self._tap = RowTap(module)
        self.folded = folded
        self.form = Form.GROUPED

    def batches(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Split a step (places of its segments) into passes.

        A model with recurrent layers takes a chunk by itself, and only rows whose states have equal shapes
        together. In the single form each segment is a pass.
        """
        if self.form is not Form.SINGLE and not self.layout.num_states:
            return [list(range(len(segments)))]
        alike: dict[object, list[int]] = {}
        for at, segment in enumerate(segments):
            stackable = self.form is not Form.SINGLE and len(segment.tokens) == 1 and segment.state is not None
            alike.setdefault(_row_state(segment).batch.signature if stackable else at, []).append(at)
        return list(alike.values())

    def build(self, plan: StepPlan, arena: Arena, rows: IntArray) -> PassResult:
        """Build the graph of one pass; ``rows`` are those whose logits are wanted. The arena stays as it was."""
        running = ForwardPass(plan, arena, self.form, folded=self.folded)
        before = self._states(plan)
        kept: list[StateCache] = []

        def make_state(leaf: StateLeaf) -> StateCache:
            kept.append(StateCache(leaf, before))
            return kept[-1]

        caches = self.layout.build(lambda leaf: ArenaCache(leaf.layer, leaf.window, running), make_state)
        wanted = rows if len(rows) else np.zeros(1, dtype=np.int32)
        try:
            with self._swap:
                logits = self._tap.logits(lambda: self.module(running.tokens, cache=caches), wanted)
            drafts = arena.take_drafts()
        finally:
            arena.discard()
        after = StateBatch(tuple(tuple(each.cache) for each in kept), len(plan.segments)) if kept else None
        return PassResult(logits, running.health, after, drafts, running.ids)

    def _states(self, plan: StepPlan) -> Entries | None:
        """Return the states that the plan's segments bring; None if there are none."""
        if not self.layout.num_states or plan.segments[0].state is None:
            return None
        return stack([_row_state(segment) for segment in plan.segments])


def _row_state(segment: Segment) -> RowState:
    """Return the state a segment brings."""
    assert isinstance(segment.state, RowState), "the engine hands back what it was given"
    return segment.state

"""One forward pass of an unmodified mlx-lm model over the arena.

Attention is replaced in the model's own modules while a pass runs and restored after it. Only the rows that
somebody asked for go through the output head: the inner model's class is extended to hand on just those.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar, Self

import mlx.core as mx
import numpy as np
from mlx import nn

from pie_mlx.backend.base import IntArray
from pie_mlx.backend.mlx.arena import Arena, LayerShape
from pie_mlx.backend.mlx.cache import ArenaCache, AttentionArgs, Form, ForwardPass, attend_step
from pie_mlx.backend.mlx.planner import StepPlan
from pie_mlx.errors import UnsupportedModel

_ATTENTION = "scaled_dot_product_attention"
_PLAIN_CACHES = ("KVCache", "ConcatenateKVCache")
_INNER_NAMES = ("model", "transformer", "backbone")

Attention = Callable[..., mx.array]


class AttentionSwap:
    """Replaces attention in a model's modules while at least one pass runs in them."""

    _lock = threading.Lock()
    _running: ClassVar[dict[ModuleType, tuple[int, Attention]]] = {}

    def __init__(self, module: nn.Module) -> None:
        """Find the Python modules that the model's layers were written in."""
        names = {type(each).__module__ for each in module.modules()}
        self._modules = [sys.modules[name] for name in sorted(names) if hasattr(sys.modules.get(name), _ATTENTION)]

    def __enter__(self) -> Self:
        """Replace."""
        with self._lock:
            for module in self._modules:
                count, original = self._running.get(module, (0, getattr(module, _ATTENTION)))
                self._running[module] = (count + 1, original)
                if count == 0:
                    setattr(module, _ATTENTION, _dispatcher(original))
        return self

    def __exit__(self, *_: object) -> None:
        """Restore, unless another pass still runs in the module."""
        with self._lock:
            for module in self._modules:
                count, original = self._running.pop(module)
                if count > 1:
                    self._running[module] = (count - 1, original)
                else:
                    setattr(module, _ATTENTION, original)


def _dispatcher(original: Attention) -> Attention:
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


class _ShapeRecorder:
    """A cache that remembers what a layer writes for one token."""

    def __init__(self) -> None:
        self.offset = 0
        self.shape: LayerShape | None = None
        self._kv: tuple[mx.array, mx.array] | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Record and hand back."""
        self.shape = LayerShape(
            keys.shape[1], keys.shape[3], values.shape[1], values.shape[3], keys.dtype, values.dtype
        )
        self._kv = (keys, values)
        return keys, values

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Return what was written last, for layers that share it."""
        assert self._kv is not None, "a layer shares K/V that no layer wrote"
        return self._kv

    def make_mask(self, *_: object, **__: object) -> None:
        """One token sees itself: no mask."""


def own_caches(module: nn.Module) -> list[Any]:
    """Return fresh caches of mlx-lm's own for the model."""
    from mlx_lm.models.cache import make_prompt_cache

    made: list[Any] = make_prompt_cache(module)
    return made


def layer_windows(module: nn.Module, model: str) -> list[int | None]:
    """Return how many tokens each layer's cache keeps (None: all).

    Raises:
        UnsupportedModel: a layer keeps something else than K and V.
    """
    windows: list[int | None] = []
    for layer, cache in enumerate(own_caches(module)):
        kind = type(cache).__name__
        if kind == "RotatingKVCache":
            windows.append(int(cache.max_size))
        elif kind in _PLAIN_CACHES:
            windows.append(None)
        else:
            raise UnsupportedModel(model, f"layer {layer} keeps its state in a {kind}, which cannot be paged yet")
    return windows


def layer_shapes(module: nn.Module, num_caches: int) -> list[LayerShape | None]:
    """Learn each layer's K/V shape by running one token through the model."""
    recorders = [_ShapeRecorder() for _ in range(num_caches)]
    mx.eval(module(mx.array([[0]]), cache=recorders))
    return [recorder.shape for recorder in recorders]


class Forward:
    """A model and the way its passes run over an arena."""

    def __init__(self, module: nn.Module, windows: Sequence[int | None], *, folded: bool) -> None:
        """Prepare ``module``, whose caches keep ``windows``."""
        self.module = module
        self._windows = tuple(windows)
        self._swap = AttentionSwap(module)
        self._tap = RowTap(module)
        self.folded = folded
        self.form = Form.GROUPED

    def run(self, plan: StepPlan, arena: Arena, rows: IntArray) -> tuple[mx.array, mx.array]:
        """Run a plan; return the logits ``[len(rows), vocab]`` of ``rows`` and all rows' health, not yet evaluated.

        The arena's drafts are committed; a failure before that leaves the arena as it was.
        """
        running = ForwardPass(plan, arena, self.form, folded=self.folded)
        caches = [ArenaCache(layer, window, running) for layer, window in enumerate(self._windows)]
        wanted = rows if len(rows) else np.zeros(1, dtype=np.int32)
        try:
            with self._swap:
                logits = self._tap.logits(lambda: self.module(running.tokens, cache=caches), wanted)
            arena.commit()
        finally:
            arena.discard()
        return logits, running.health

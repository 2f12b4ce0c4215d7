"""Learn what a model keeps for one token, by running one token through it."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from mlx import nn

from pie_mlx.backend.mlx.arena import LayerShape
from pie_mlx.backend.mlx.layout import KVLeaf, Layout, StateLeaf
from pie_mlx.backend.mlx.state import StateBatch, StateCache
from pie_mlx.errors import UnsupportedModel

MODEL_FAULTS = (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError, AssertionError)
"""What the code of a model raises when it meets a device, a cache or a shape that it was not written for."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a context costs."""

    layers: tuple[LayerShape | None, ...]
    """K and V of one token in each layer of the arena; None for a layer that writes none."""
    state_bytes: int
    """Bytes of the recurrent state of one context."""
    vocab_size: int
    dtype: mx.Dtype
    """Of the logits."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token in all layers."""
        return sum(layer.bytes_per_slot for layer in self.layers if layer is not None)


def probe_shape(module: nn.Module, layout: Layout, model: str) -> ModelShape:
    """Run one token.

    Raises:
        UnsupportedModel: the model cannot run on this device, or asks for more than the caches of its kind give.
    """
    try:
        return _probe(module, layout)
    except MODEL_FAULTS as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UnsupportedModel(model, f"it cannot run a token here: {type(error).__name__}: {reason}") from error


def _probe(module: nn.Module, layout: Layout) -> ModelShape:
    """Run one token; raise whatever the model raises."""
    recorders: list[_ShapeRecorder] = []
    states: list[StateCache] = []

    def make_kv(_leaf: KVLeaf) -> object:
        recorders.append(_ShapeRecorder())
        return recorders[-1]

    def make_state(leaf: StateLeaf) -> object:
        states.append(StateCache(leaf, None))
        return states[-1]

    logits = module(mx.array([[0]]), cache=layout.build(make_kv, make_state))
    batch = StateBatch(tuple(tuple(state.cache) for state in states), 1)
    mx.eval(logits, batch.arrays())
    shapes = tuple(recorder.shape for recorder in recorders)
    return ModelShape(shapes, batch.bytes_per_row, int(logits.shape[-1]), logits.dtype)


class _ShapeRecorder:
    """A cache that remembers what a layer writes for one token."""

    offset = 0
    start_position = 0

    def __init__(self) -> None:
        self.shape: LayerShape | None = None
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Record and hand back."""
        self.shape = LayerShape(
            keys.shape[1], keys.shape[3], values.shape[1], values.shape[3], keys.dtype, values.dtype
        )
        self.keys, self.values = keys, values
        return keys, values

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Return what was written last, for layers that share it."""
        assert self.keys is not None, "a layer shares K/V that no layer wrote"
        assert self.values is not None, "K comes with V"
        return self.keys, self.values

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None, int]:
        """K, V and offset, as mlx-lm's caches give them."""
        return self.keys, self.values, self.offset

    def maybe_trim_front(self) -> None:
        """One token fits everywhere."""

    def make_mask(self, *_: object, **__: object) -> None:
        """One token sees itself: no mask."""

"""What an unmodified mlx-lm model sees of the arena: one cache object a layer, for one forward pass.

A model asks its cache for an offset, hands it the new K and V, and passes what comes back, with a mask, to
``scaled_dot_product_attention``. In the grouped form these are tokens that only :func:`attend_step` can read:
a model that does more with them fails loudly, and one of the array forms is tried instead.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from pie_mlx.backend.base import IntArray
from pie_mlx.backend.mlx.arena import Arena, Writes
from pie_mlx.backend.mlx.attention import Mask, attend, causal_mask, device_mask, to_fold
from pie_mlx.backend.mlx.calls import Call, Kind
from pie_mlx.backend.mlx.folded import cascade
from pie_mlx.backend.mlx.planner import StepPlan

_MASK_AXES = 4
_PER_ROW = (Kind.PADDED, Kind.CASCADE)


class Form(enum.Enum):
    """How K, V and masks are handed to a model, from the fastest to the most compatible."""

    GROUPED = "grouped"
    """Tokens; our attention serves any number of groups."""
    ARRAYS = "arrays"
    """Real arrays of one group; masks ``[rows, 1, 1, keys]``."""
    ARRAYS_BY_GROUP = "arrays-by-group"
    """Real arrays of one group; masks ``[rows, 1, 1, 1, keys]``, for models that keep a query-group axis."""
    SINGLE = "single"
    """Real arrays of one sequence: one segment a pass, as mlx-lm itself would run it."""


@dataclass(frozen=True, slots=True)
class LayerToken:
    """Stands for the K or V of a layer; a model may hand it to another layer, without the cache it came from."""

    layer: int
    window: int | None
    running: ForwardPass


@dataclass(frozen=True, slots=True)
class MaskToken:
    """Stands for the mask of layers that see the last ``window`` tokens (None: all)."""

    window: int | None


class ForwardPass:
    """The state of one forward pass: its plan, and indices and masks as device arrays, made once."""

    def __init__(self, plan: StepPlan, arena: Arena, form: Form, *, folded: bool) -> None:
        """Prepare a pass; ``folded`` chooses the attention form of the device."""
        self.plan = plan
        self.arena = arena
        self.form = form
        self.folded = folded
        self.is_sequence = len(plan.segments) == 1
        self.ids = mx.array(plan.tokens)
        """The input ids, ``[rows]``; they may be written anew until the pass is launched."""
        self._writes = Writes(plan.write_slots)
        self._calls: dict[int | None, tuple[Call, ...]] = {}
        self._indices: dict[tuple[int, int], mx.array] = {}
        """By the identity of a planned call's slots, which live as long as the pass, and number of heads."""
        self._masks: dict[tuple[int | None, int, mx.Dtype], Mask] = {}
        self._last_keys: mx.array | None = None

    @property
    def offset(self) -> int | mx.array:
        """Position of the first token: a number for one sequence, else a new array ``[rows]`` for each reader."""
        if self.is_sequence:
            return self.plan.segments[0].position
        return mx.array(self.plan.positions)

    @property
    def health(self) -> mx.array:
        """One number a row, not finite if the row went wrong in any layer up to the last that wrote K/V."""
        if self._last_keys is None:
            return mx.zeros(self.plan.num_rows)
        return mx.sum(self._last_keys.astype(mx.float32), axis=(1, 3)).reshape(-1)

    @property
    def tokens(self) -> mx.array:
        """The input ids: ``[1, n]`` for one sequence, else ``[rows, 1]``."""
        return self.ids[None] if self.is_sequence else self.ids[:, None]

    def write(self, layer: int, keys: mx.array, values: mx.array) -> None:
        """Write the model's new K and V (``[1, heads, n, dim]`` or ``[rows, heads, 1, dim]``)."""
        self._last_keys = keys
        if self.is_sequence:
            self.arena.write(layer, keys[0], values[0], self._writes)
        else:
            self.arena.write(layer, keys[:, :, 0].transpose(1, 0, 2), values[:, :, 0].transpose(1, 0, 2), self._writes)

    def calls(self, window: int | None) -> tuple[Call, ...]:
        """Return the attention calls for a window, planned once."""
        if window not in self._calls:
            self._calls[window] = self.plan.calls(window)
        return self._calls[window]

    def fetch(self, layer: int, window: int | None, at: int) -> tuple[mx.array, mx.array]:
        """Return K and V ``[batch, heads, keys, dim]`` of call ``at`` as views or gathers of the arena."""
        return self._fetch(layer, self.calls(window)[at])

    def _fetch(self, layer: int, call: Call) -> tuple[mx.array, mx.array]:
        """Return K and V of a call's keys, without those of its prefix."""
        keys, values = self.arena.read(layer)
        if call.slots is None:
            return keys[None, :, call.lo : call.hi], values[None, :, call.lo : call.hi]
        return self._gather(keys, call.slots), self._gather(values, call.slots)

    def _gather(self, array: mx.array, slots: IntArray) -> mx.array:
        """Gather slots as contiguous ``[batch, heads, keys, dim]``: rows of a flat array are fast."""
        heads, num_slots, width = array.shape
        if width == 0:
            return mx.zeros((*(slots.shape[:-1] or (1,)), heads, slots.shape[-1], 0), array.dtype)
        key = (id(slots), heads)
        if key not in self._indices:
            by_segment = slots if slots.ndim > 1 else slots[None]
            first = np.arange(heads, dtype=np.int32) * num_slots
            self._indices[key] = mx.array(by_segment[:, None] + first[None, :, None])
        return array.reshape(heads * num_slots, width)[self._indices[key]]

    def mask_of_call(self, window: int | None, at: int, dtype: mx.Dtype) -> Mask:
        """Return the mask of call ``at`` for our own attention."""
        key = (window, at, dtype)
        if key not in self._masks:
            self._masks[key] = self._make_mask(self.calls(window)[at], dtype)
        return self._masks[key]

    def _make_mask(self, call: Call, dtype: mx.Dtype) -> Mask:
        """Turn a call's mask into what the device's attention takes."""
        mask = call.mask
        if call.causal:
            if not self.folded:
                return "causal"
            mask = causal_mask(call.stop - call.start, call.span)
        if mask is None:
            return None
        made = device_mask(mask, dtype, folded=self.folded)
        return made[:, None, None] if call.kind in _PER_ROW else made

    def mask_for_model(self, window: int | None, *, as_array: bool) -> Mask:
        """Return the mask that a model gets in an array form: over all keys of the one call."""
        call = self.calls(None)[0]
        cut = window is not None and bool((self.plan.positions >= window).any())
        if self.is_sequence and call.mask is None and not cut:
            if not call.causal:
                return None
            return mx.array(causal_mask(call.stop, call.span)) if as_array else "causal"
        mask = mx.array(self.plan.mask_over(call, window if cut else None))
        if self.is_sequence:
            return mask
        return mask[:, None, None] if self.form is Form.ARRAYS else mask[:, None, None, None]

    def attend(
        self, queries: mx.array, layer: int, window: int | None, scale: float, sinks: mx.array | None
    ) -> mx.array:
        """Attend the step's queries in the grouped form; the result has the shape of the queries."""
        calls = self.calls(window)
        parts = []
        for at, call in enumerate(calls):
            kv = self._fetch(layer, call)
            mask = self.mask_of_call(window, at, queries.dtype)
            rows = queries if len(calls) == 1 else queries[call.start : call.stop]
            if call.prefix is not None:
                assert not isinstance(mask, str), "the rows of a cascade are single tokens"
                prefix = self._fetch(layer, call.prefix)
                parts.append(cascade(rows, prefix, kv, mask, scale=scale, sinks=sinks))
                continue
            turned = not self.is_sequence and call.kind is not Kind.PADDED
            mixed = attend(
                to_fold(rows) if turned else rows,
                kv,
                mask,
                scale=scale,
                sinks=sinks,
                folded=self.folded,
                causal=call.causal,
            )
            parts.append(to_fold(mixed) if turned else mixed)
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=0)


class ArenaCache:
    """The cache of one layer during one pass, as mlx-lm's models expect it; always truthy, never has ``bits``."""

    def __init__(self, layer: int, window: int | None, running: ForwardPass) -> None:
        """Serve ``layer``, whose own cache in mlx-lm would keep the last ``window`` tokens."""
        self.layer = layer
        self.window = window
        self.running = running

    @property
    def offset(self) -> int | mx.array:
        """Position of each row's first token."""
        return self.running.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[object, object]:
        """Write K and V of the new tokens and return those of all tokens."""
        self.running.write(self.layer, keys, values)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[object, object]:
        """Return K and V of all tokens: tokens in the grouped form, else arrays ``[1, heads, keys, dim]``."""
        if self.running.form is Form.GROUPED:
            token = LayerToken(self.layer, self.window, self.running)
            return token, token
        return self.running.fetch(self.layer, None, 0)

    @property
    def state(self) -> tuple[object, object, int | mx.array]:
        """K, V and offset, as mlx-lm's caches give them."""
        return (*self.keys_and_values(), self.offset)

    def make_mask(
        self,
        _num_tokens: int,
        return_array: bool = False,  # noqa: FBT001, FBT002 - mlx-lm's own signature
        window_size: int | None = None,
    ) -> object:
        """Return the step's mask for this layer's window, or for the one that is asked for.

        Raises:
            ValueError: the model asks for more than its own cache would keep.
        """
        window = window_size or self.window
        if window is not None and self.window is not None and window > self.window:
            raise ValueError(
                f"it attends to {window} tokens but keeps {self.window}, so what it says depends on how a prompt is cut"
            )
        if self.running.form is Form.GROUPED:
            return MaskToken(window)
        return self.running.mask_for_model(window, as_array=return_array)

    @property
    def keys(self) -> object:
        """K of all tokens: what a model orders its evaluation by."""
        return self.keys_and_values()[0]

    @keys.setter
    def keys(self, _value: object) -> None:
        """Ignore the same K with an order of evaluation: a step is evaluated as a whole."""

    @property
    def values(self) -> object:
        """V of all tokens, as :attr:`keys`."""
        return self.keys_and_values()[1]

    @values.setter
    def values(self, _value: object) -> None:
        """Ignore, as for :attr:`keys`."""

    start_position = 0
    """Of the first token in :attr:`keys`: an arena forgets none."""

    def maybe_trim_front(self) -> None:
        """Keep what lies before a chunk: the model's own mask hides it."""

    def is_trimmable(self) -> bool:
        """A pass trims nothing."""
        return False


@dataclass(frozen=True, slots=True)
class AttentionArgs:
    """What a model hands to ``scaled_dot_product_attention``: arrays, or our tokens in their place."""

    queries: mx.array
    keys: object
    values: object
    scale: float
    mask: object
    sinks: mx.array | None


def attend_step(args: AttentionArgs, cache: object) -> mx.array | None:
    """Serve a model's attention call if it is about the arena; None: it is mlx-lm's own business.

    Raises:
        TypeError: a model made a mask of its own for the grouped form.
    """
    keys, values, mask = args.keys, args.values, args.mask
    if isinstance(keys, LayerToken):
        if mask is not None and not isinstance(mask, MaskToken):
            raise TypeError(f"a mask of type {type(mask).__name__} does not fit the grouped form")
        window = mask.window if mask is not None else cache.window if isinstance(cache, ArenaCache) else keys.window
        return keys.running.attend(args.queries, keys.layer, window, args.scale, args.sinks)
    if not isinstance(cache, ArenaCache):
        return None
    running = cache.running
    if not isinstance(keys, mx.array) or not isinstance(values, mx.array) or running.is_sequence:
        return None
    if keys.shape[0] != 1 or not isinstance(mask, mx.array):
        return None
    turned = to_fold(mask if mask.ndim == _MASK_AXES else mask[:, :, 0])
    queries = to_fold(args.queries)
    mixed = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=args.scale, mask=turned, sinks=args.sinks)
    return to_fold(mixed)

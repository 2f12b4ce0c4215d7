"""The arena: per layer one K and one V array, written in place and read through views.

An array has the shape ``[kv_heads, num_slots, head_dim]``: head-major, so that a view over a range of slots is
a plain strided matrix for each head. MLX writes in place only when nothing else holds the array, so nothing
here outlives a step: a draft replaces its array in :meth:`Arena.adopt`, before the step is evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from pie_mlx.backend.base import IntArray


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape and dtype of one layer's K and V for one token; K and V may differ in width."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    key_dtype: mx.Dtype
    value_dtype: mx.Dtype

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of K and V of one token."""
        keys = self.key_heads * self.key_dim * self.key_dtype.size
        return keys + self.value_heads * self.value_dim * self.value_dtype.size


class Writes:
    """Where the rows of a step go: a slice where the slots are consecutive, else an index array."""

    __slots__ = ("_index", "_start", "_stop")

    def __init__(self, slots: IntArray) -> None:
        """Take the slots of all rows, shape ``[rows]``."""
        self._start, self._stop = int(slots[0]), int(slots[0]) + len(slots)
        in_order = len(slots) == 1 or bool((np.diff(slots) == 1).all())
        self._index = None if in_order else mx.array(slots)

    def apply(self, array: mx.array, rows: mx.array) -> mx.array:
        """Return ``array`` with ``rows`` (``[heads, rows, dim]``) written; ``array`` itself stays as it is."""
        draft = mx.array(array)
        if 0 in rows.shape:
            return draft  # MLX divides by the width of what it scatters: nothing would end the process
        if self._index is None:
            draft[:, self._start : self._stop] = rows
        else:
            draft[:, self._index] = rows
        return draft


Drafts = dict[int, tuple[mx.array, mx.array]]
"""K and V of each layer as a pass that is not evaluated yet will leave them."""


class Arena:
    """K and V of every slot and layer; a layer that writes nothing of its own has no arrays."""

    def __init__(self, shapes: Sequence[LayerShape | None], num_slots: int) -> None:
        """Allocate and evaluate all arrays, so that memory runs out here or never."""
        self.shapes = tuple(shapes)
        self.num_slots = num_slots
        self._keys: dict[int, mx.array] = {}
        self._values: dict[int, mx.array] = {}
        for layer, shape in enumerate(self.shapes):
            if shape is not None:
                self._keys[layer] = mx.zeros((shape.key_heads, num_slots, shape.key_dim), shape.key_dtype)
                self._values[layer] = mx.zeros((shape.value_heads, num_slots, shape.value_dim), shape.value_dtype)
        self._drafts: Drafts = {}
        mx.eval(self.arrays())

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(shape.bytes_per_slot for shape in self.shapes if shape is not None) * self.num_slots

    def arrays(self) -> list[mx.array]:
        """Return all arrays, to be evaluated; do not keep the list."""
        return [*self._keys.values(), *self._values.values()]

    def write(self, layer: int, keys: mx.array, values: mx.array, writes: Writes) -> None:
        """Draft K and V of the step's rows (``[heads, rows, dim]``); reads of this step see the draft."""
        self._drafts[layer] = (writes.apply(self._keys[layer], keys), writes.apply(self._values[layer], values))

    def read(self, layer: int) -> tuple[mx.array, mx.array]:
        """Return the layer's K and V as this step sees them; do not keep them."""
        draft = self._drafts.get(layer)
        return (self._keys[layer], self._values[layer]) if draft is None else draft

    def take_drafts(self) -> Drafts:
        """Return the drafts; reads see the arrays again."""
        drafts, self._drafts = self._drafts, {}
        return drafts

    def adopt(self, drafts: Drafts) -> None:
        """Let drafts replace their arrays and empty them: from here on nothing else holds either."""
        while drafts:
            layer, (keys, values) = drafts.popitem()
            self._keys[layer], self._values[layer] = keys, values

    def commit(self) -> None:
        """Adopt the arena's own drafts."""
        self.adopt(self._drafts)

    def discard(self) -> None:
        """Forget the drafts of a step that failed before it was evaluated."""
        self._drafts.clear()

    def scrub(self, slots: IntArray) -> None:
        """Zero slots whose row failed: a mask hides a slot, but NaN times a weight of zero would still be NaN."""
        writes = Writes(slots)
        for layer, shape in enumerate(self.shapes):
            if shape is not None:
                keys = mx.zeros((shape.key_heads, len(slots), shape.key_dim), shape.key_dtype)
                values = mx.zeros((shape.value_heads, len(slots), shape.value_dim), shape.value_dtype)
                self.write(layer, keys, values, writes)
        self.commit()
        mx.eval(self.arrays())

    def read_slots(self, slots: IntArray) -> dict[str, npt.NDArray[np.generic]]:
        """Copy slots out: ``k.N`` and ``v.N`` to ``[len(slots), heads, dim]``; bfloat16 as its raw uint16."""
        index = mx.array(slots)
        picked: dict[str, mx.array] = {}
        for name, held in (("k", self._keys), ("v", self._values)):
            for layer, array in held.items():
                picked[f"{name}.{layer}"] = _raw(_pick(array, index))
        mx.eval(list(picked.values()))
        return {name: np.array(array) for name, array in picked.items()}

    def write_slots(self, slots: IntArray, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
        """Copy slots in, as :meth:`read_slots` gave them.

        Raises:
            KeyError: an array of a layer is missing.
            ValueError: an array has another shape.
        """
        writes = Writes(slots)
        for layer, shape in enumerate(self.shapes):
            if shape is None:
                continue
            keys = _cooked(arrays[f"k.{layer}"], shape.key_dtype, (len(slots), shape.key_heads, shape.key_dim))
            values = _cooked(arrays[f"v.{layer}"], shape.value_dtype, (len(slots), shape.value_heads, shape.value_dim))
            self.write(layer, keys, values, writes)
        self.commit()
        mx.eval(self.arrays())


def _pick(array: mx.array, index: mx.array) -> mx.array:
    """Return slots of ``[heads, slots, dim]`` as ``[slots, heads, dim]``."""
    heads, _, width = array.shape
    if width == 0:
        return mx.zeros((index.size, heads, 0), array.dtype)
    return mx.take(array, index, axis=1).transpose(1, 0, 2)


def _raw(array: mx.array) -> mx.array:
    """Return an array that numpy can hold."""
    return mx.contiguous(array).view(mx.uint16) if array.dtype == mx.bfloat16 else array


def _cooked(array: npt.NDArray[np.generic], dtype: mx.Dtype, shape: tuple[int, int, int]) -> mx.array:
    """Undo :func:`_raw` and turn ``[slots, heads, dim]`` into rows of the arena."""
    if array.shape != shape:
        raise ValueError(f"K/V of shape {array.shape} do not fit slots of shape {shape}")
    made = mx.array(array)
    typed = made.view(mx.bfloat16) if dtype == mx.bfloat16 and made.dtype == mx.uint16 else made.astype(dtype)
    return typed.transpose(1, 0, 2)


def probe_donation(num_bytes: int = 8 << 20) -> bool:
    """Whether a write happens in place here: peak minus active memory stays below one array's size."""
    width = 64
    shape = LayerShape(1, width, 1, width, mx.float32, mx.float32)
    arena = Arena([shape], num_bytes // (width * 4))
    row = mx.ones((1, 2, width))
    mx.eval(row)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    arena.write(0, row, row, Writes(np.array([1, 5], dtype=np.int32)))
    arena.commit()
    mx.eval(arena.arrays())
    return mx.get_peak_memory() - before < num_bytes

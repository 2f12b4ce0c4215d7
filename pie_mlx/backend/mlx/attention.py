"""Attention over the arena, in the form that the device runs fastest.

Query rows of many contexts are folded into one call: ``[rows, heads, 1, dim]`` becomes ``[1, heads, rows,
dim]``. On Metal that is MLX's fused kernel with a boolean mask; on the CPU the form of :mod:`folded`, but for a single
row over few keys, where the number of operations counts.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from pie_mlx.backend.mlx.calls import BoolArray
from pie_mlx.backend.mlx.folded import attend_folded

_VECTOR_ROWS = 8
_VECTOR_ROWS_TIMES_GROUP = 32
_MAX_VECTOR_CALLS = 4
_FEW_SCORES = 1 << 13
"""Scores of one row up to which one call of MLX's is faster on the CPU than the folded form's many."""

Mask = mx.array | str | None
"""An additive bias (folded) or booleans (fused) that broadcast to ``[batch, heads, rows, keys]``; ``causal``; all."""


def to_fold(queries: mx.array) -> mx.array:
    """Turn ``[rows, heads, 1, dim]`` into ``[1, heads, rows, dim]``; its own inverse."""
    return queries.transpose(2, 1, 0, 3)


def device_mask(mask: BoolArray, dtype: mx.Dtype, *, folded: bool) -> mx.array:
    """Return a mask for :func:`attend`: booleans for the fused kernel, an additive bias for the folded form."""
    if not folded:
        return mx.array(mask)
    return mx.where(mx.array(mask), mx.array(0, dtype), mx.array(-np.inf, dtype))


def causal_mask(num_rows: int, num_keys: int) -> BoolArray:
    """Return which keys the last ``num_rows`` tokens of a sequence see, ``[num_rows, num_keys]``."""
    seen: BoolArray = np.arange(num_keys)[None] <= np.arange(num_keys - num_rows, num_keys)[:, None]
    return seen


def attend(
    queries: mx.array,
    kv: tuple[mx.array, mx.array],
    mask: Mask,
    *,
    scale: float,
    sinks: mx.array | None = None,
    folded: bool,
    causal: bool = False,
) -> mx.array:
    """Attend ``[batch, heads, rows, dim]`` over keys and values ``[batch, kv_heads, keys, dim]``.

    ``causal`` says of an additive ``mask`` that row i of n hides at least the last ``n - 1 - i`` keys.
    """
    keys, values = kv
    rows = queries.shape[2]
    is_small = mask is None and rows == 1 and queries.shape[1] * keys.shape[2] <= _FEW_SCORES
    if folded and not is_small and not isinstance(mask, str):
        return attend_folded(queries, kv, mask, scale=scale, sinks=sinks, causal=causal)
    group = queries.shape[1] // keys.shape[1]
    step = min(_VECTOR_ROWS, max(1, _VECTOR_ROWS_TIMES_GROUP // group))
    if folded or rows <= step or rows > step * _MAX_VECTOR_CALLS or not isinstance(mask, mx.array):
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask, sinks=sinks)
    parts = []
    for start in range(0, rows, step):
        part = mask if mask.shape[-2] == 1 else mask[..., start : start + step, :]
        chunk = queries[:, :, start : start + step]
        parts.append(mx.fast.scaled_dot_product_attention(chunk, keys, values, scale=scale, mask=part, sinks=sinks))
    return mx.concatenate(parts, axis=2)

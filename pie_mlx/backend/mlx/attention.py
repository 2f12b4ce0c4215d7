"""Attention over the arena, in the form that the device runs fastest.

Query rows of many contexts are folded into one call: ``[rows, heads, 1, dim]`` becomes ``[1, heads, rows,
dim]``. On Metal that is MLX's fused kernel with a boolean mask. On the CPU two matrix products over rows with
their query group folded in, ``[kv_heads, group * rows, dim] @ keys^T``, are faster than MLX's own form.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from pie_mlx.backend.mlx.calls import BoolArray

_VECTOR_ROWS = 8
_VECTOR_ROWS_TIMES_GROUP = 32
_MAX_VECTOR_CALLS = 4

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
) -> mx.array:
    """Attend ``[batch, heads, rows, dim]`` over keys and values ``[batch, kv_heads, keys, dim]``."""
    if folded and not isinstance(mask, str):
        return _folded(queries, kv, mask, scale, sinks)
    keys, values = kv
    rows = queries.shape[2]
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


def _folded(
    queries: mx.array, kv: tuple[mx.array, mx.array], bias: mx.array | None, scale: float, sinks: mx.array | None
) -> mx.array:
    """Attend by two matrix products, one batch entry for each K/V head."""
    keys, values = kv
    batch, heads, rows, width = queries.shape
    kv_heads, span = keys.shape[1], keys.shape[2]
    group = heads // kv_heads
    rows_of_head = (queries * scale).reshape(batch, kv_heads, group * rows, width)
    scores = (rows_of_head @ keys.swapaxes(-1, -2)).reshape(batch, heads, rows, span)
    if bias is not None:
        scores = scores + bias
    if sinks is not None:
        column = mx.broadcast_to(sinks.astype(scores.dtype)[None, :, None, None], (batch, heads, rows, 1))
        scores = mx.concatenate([column, scores], axis=-1)
    weights = mx.softmax(scores, axis=-1, precise=True)
    if sinks is not None:
        weights = weights[..., 1:]
    mixed = weights.reshape(batch, kv_heads, group * rows, span) @ values
    return mixed.reshape(batch, heads, rows, values.shape[-1])


def cascade(
    queries: mx.array,
    prefix: tuple[mx.array, mx.array],
    own: tuple[mx.array, mx.array],
    bias: mx.array | None,
    *,
    scale: float,
    sinks: mx.array | None = None,
) -> mx.array:
    """Attend rows ``[rows, heads, 1, dim]`` over one shared prefix and over keys of their own, in one softmax.

    ``prefix`` is ``[1, kv_heads, keys, dim]`` and seen by all rows; ``own`` is ``[rows, kv_heads, keys, dim]`` with
    ``bias`` ``[rows, 1, 1, keys]``.
    """
    rows, heads, _, width = queries.shape
    kv_heads, num_shared, width_out = prefix[0].shape[1], prefix[0].shape[2], prefix[1].shape[3]
    group = heads // kv_heads
    by_head = (queries * scale).reshape(rows, kv_heads, group, width)
    folded = by_head.transpose(1, 0, 2, 3).reshape(kv_heads, rows * group, width)
    shared = (folded @ prefix[0][0].swapaxes(-1, -2)).reshape(kv_heads, rows, group, num_shared)
    private = by_head @ own[0].swapaxes(-1, -2)
    scores = [shared.transpose(1, 0, 2, 3), private if bias is None else private + bias]
    if sinks is not None:
        scores.append(mx.broadcast_to(sinks.astype(private.dtype).reshape(kv_heads, group, 1), (*private.shape[:3], 1)))
    weights = mx.softmax(mx.concatenate(scores, axis=-1), axis=-1, precise=True)
    first = weights[..., :num_shared].transpose(1, 0, 2, 3).reshape(kv_heads, rows * group, num_shared)
    mixed = (first @ prefix[1][0]).reshape(kv_heads, rows, group, width_out).transpose(1, 0, 2, 3)
    mixed = mixed + weights[..., num_shared : num_shared + private.shape[-1]] @ own[1]
    return mixed.reshape(rows, heads, 1, width_out)

"""Attention for the CPU backend: matrix products, and a softmax in base 2 that is put together from parts.

The rows of a query group are folded together, ``[kv_heads, group * rows, dim] @ keys^T``, which is faster than
MLX's own form there. A **part** is attention over some of the keys before it is divided by its mass; parts over
different keys merge exactly (log-sum-exp), so that the prefix that many rows share is read once for all of
them. Scores of many rows are worked on in blocks that the processor's caches hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from pie_mlx.backend.mlx.exponential import LOG2_E, exp2

_BLOCK = 1 << 19
"""Scores that are worked on together."""

KV = tuple[mx.array, mx.array]
"""Keys and values ``[batch, kv_heads, keys, dim]``."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Each row's largest score, sum of weights and weighted sum of values, ``[batch, heads, rows, 1 or dim]``."""

    best: mx.array
    mass: mx.array
    mixed: mx.array

    def turned(self) -> _Part:
        """Return it with batch and rows exchanged."""
        return _Part(*(array.transpose(2, 1, 0, 3) for array in (self.best, self.mass, self.mixed)))

    def merged(self, other: _Part) -> _Part:
        """Return attention over the keys of both."""
        best = mx.maximum(self.best, other.best)
        mine, theirs = exp2(self.best - best), exp2(other.best - best)
        return _Part(best, self.mass * mine + other.mass * theirs, self.mixed * mine + other.mixed * theirs)

    def with_sinks(self, sinks: mx.array) -> _Part:
        """Return it with a key more for each head, whose score is ``sinks`` ``[heads]`` and whose value is 0."""
        score = (sinks.astype(mx.float32) * LOG2_E)[None, :, None, None]
        best = mx.maximum(self.best, score)
        mine = exp2(self.best - best)
        return _Part(best, self.mass * mine + exp2(score - best), self.mixed * mine)

    def finished(self, dtype: mx.Dtype) -> mx.array:
        """Return the values, averaged by their weights."""
        return (self.mixed / self.mass).astype(dtype)


def attend_folded(
    queries: mx.array,
    kv: KV,
    bias: mx.array | None,
    *,
    scale: float,
    sinks: mx.array | None = None,
    causal: bool = False,
) -> mx.array:
    """Attend ``[batch, heads, rows, dim]``; ``bias`` is 0 or -inf and broadcasts to ``[batch, heads, rows, keys]``.

    ``causal`` says that row i of n hides at least the last ``n - 1 - i`` keys: those are then not computed.
    """
    part = _part(queries * (scale * LOG2_E), kv, bias, causal=causal)
    return (part if sinks is None else part.with_sinks(sinks)).finished(queries.dtype)


def cascade(
    queries: mx.array,
    prefix: KV,
    own: KV,
    bias: mx.array | None,
    *,
    scale: float,
    sinks: mx.array | None = None,
) -> mx.array:
    """Attend rows ``[rows, heads, 1, dim]`` over one shared prefix and over keys of their own.

    ``prefix`` has a batch of one and is seen by all rows; ``own`` has one of ``rows``, with ``bias``
    ``[rows, 1, 1, keys]``.
    """
    scaled = queries * (scale * LOG2_E)
    shared = _part(scaled.transpose(2, 1, 0, 3), prefix, None).turned()
    part = shared.merged(_part(scaled, own, bias))
    return (part if sinks is None else part.with_sinks(sinks)).finished(queries.dtype)


def _part(queries: mx.array, kv: KV, bias: mx.array | None, *, causal: bool = False) -> _Part:
    """Attend scaled queries in blocks of rows."""
    batch, heads, rows, _ = queries.shape
    span = kv[0].shape[2]
    step = max(1, _BLOCK // (batch * heads * span))
    if rows <= step:
        return _block(queries, kv, bias)
    parts = []
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        seen = span - (rows - stop) if causal else span
        keys, values = kv[0][:, :, :seen], kv[1][:, :, :seen]
        part_bias = bias
        if bias is not None:
            part_bias = bias[..., :seen] if bias.shape[-2] == 1 else bias[..., start:stop, :seen]
        parts.append(_block(queries[:, :, start:stop], (keys, values), part_bias))
    return _Part(
        mx.concatenate([part.best for part in parts], axis=2),
        mx.concatenate([part.mass for part in parts], axis=2),
        mx.concatenate([part.mixed for part in parts], axis=2),
    )


def _block(queries: mx.array, kv: KV, bias: mx.array | None) -> _Part:
    """Attend a few rows by two matrix products, one batch entry for each K/V head."""
    keys, values = kv
    batch, heads, rows, width = queries.shape
    kv_heads, span = keys.shape[1], keys.shape[2]
    group = heads // kv_heads
    folded = queries.reshape(batch, kv_heads, group * rows, width)
    scores = (folded @ keys.swapaxes(-1, -2)).astype(mx.float32).reshape(batch, heads, rows, span)
    if bias is not None:
        scores = scores + bias
    best = mx.max(scores, axis=-1, keepdims=True)
    weights = exp2(scores - best)
    # As a matrix product: MLX's own sum is slower, and adds in one running float.
    mass = (weights.reshape(-1, span) @ mx.ones((span, 1))).reshape(batch, heads, rows, 1)
    mixed = weights.astype(values.dtype).reshape(batch, kv_heads, group * rows, span) @ values
    return _Part(best, mass, mixed.reshape(batch, heads, rows, values.shape[-1]))

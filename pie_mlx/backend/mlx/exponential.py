"""Powers of two, and what is made of them, for devices whose own exponential is slow.

MLX's CPU backend computes ``exp`` one element at a time on x86, some 10 ns each, where an addition or a
multiplication takes 0.1 ns. There ``2 ** x`` is put together from those: x is rounded to an integer, which
becomes the exponent's bits, and a polynomial of degree 5 gives the power of what is left. The relative error
stays below 4e-7 in float32. Elsewhere MLX's own functions are used.
"""

from __future__ import annotations

import math
import platform
from functools import cache

import mlx.core as mx

LOG2_E = math.log2(math.e)
_LN_2 = math.log(2)
_SMALL = 1 << 15
"""Elements up to which MLX's scalar power is as fast as sixteen operations on whole arrays."""
_BLOCK = 1 << 20
"""Elements of logits that are worked on together: what the processor's caches hold."""
_RUN = 128
_LIMIT = 127.0
_ROUND = 1.5 * 2.0**23
"""Adding it to a float32 leaves the nearest integer in the low bits."""
_MANTISSA_BITS = 23
# Least squares of the relative error over [-0.5, 0.5], with exactly 1 at 0, so that what is masked becomes exactly 0.
_POLYNOMIAL = (0.0013264739, 0.009671513, 0.055507336, 0.24022242, 0.693147, 1.0)


@cache
def _is_x86() -> bool:
    """Whether MLX's CPU backend has no vectorised exponential here."""
    return platform.machine().lower() in ("x86_64", "amd64")


def exp_is_slow() -> bool:
    """Whether the default device computes exponentials one at a time."""
    return _is_x86() and mx.default_device().type == mx.DeviceType.cpu


def exp2(x: mx.array) -> mx.array:
    """Return ``2 ** x`` of a float32 array; ``-inf`` gives exactly 0, NaN stays NaN, x above 127 counts as 127."""
    if not exp_is_slow():
        return mx.exp(x * _LN_2)
    if x.size <= _SMALL:
        return mx.power(mx.array(2.0), mx.minimum(x, _LIMIT))
    bounded = mx.minimum(mx.maximum(x, -_LIMIT), _LIMIT)
    rounded = bounded + _ROUND
    rest = bounded - (rounded - _ROUND)
    power = rest * _POLYNOMIAL[0] + _POLYNOMIAL[1]
    for coefficient in _POLYNOMIAL[2:]:
        power = power * rest + coefficient
    # The shift drops all bits of the constant: the integer is left, in the place of the exponent.
    exponent = mx.left_shift(rounded.view(mx.int32), _MANTISSA_BITS)
    return (power.view(mx.int32) + exponent).view(mx.float32)


def logsumexp(logits: mx.array) -> mx.array:
    """Return the log-normaliser of each row of float32 ``logits`` ``[rows, vocab]``."""
    if not exp_is_slow():
        return mx.logsumexp(logits, axis=1)
    rows, vocab = logits.shape
    step = max(1, _BLOCK // vocab)
    if rows <= step:
        return _logsumexp(logits)
    return mx.concatenate([_logsumexp(logits[start : start + step]) for start in range(0, rows, step)])


def _logsumexp(logits: mx.array) -> mx.array:
    """Return the log-normalisers of a few rows."""
    best = mx.max(logits, axis=1, keepdims=True)
    weights = exp2((logits - best) * LOG2_E)
    # In one running float, as MLX's CPU backend adds, a sum over a vocabulary would be off by 1e-4.
    even = weights.shape[1] // _RUN * _RUN
    mass = mx.sum(mx.sum(weights[:, :even].reshape(len(logits), -1, _RUN), axis=2), axis=1)
    return best[:, 0] + mx.log(mass + mx.sum(weights[:, even:], axis=1))


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """Return ``silu(gate) * x`` of float32 arrays."""
    return gate / (exp2(gate * -LOG2_E) + 1) * x

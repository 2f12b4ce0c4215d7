"""The device that MLX chose, what it costs, and how much memory it may cache."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from pie_mlx.backend.mlx.arena import LayerShape
from pie_mlx.backend.mlx.calls import CostModel
from pie_mlx.platform import memory

_CACHE_FRACTION = 1 / 16
_RATES = {"cpu": (1e10, 1.5e10, 6e-5), "metal": (1.5e11, 2e12, 1.2e-5), "cuda": (5e11, 1e13, 1.2e-5)}
"""Bytes a second, operations a second, seconds an attention call: orders of magnitude that guide the planner."""


def device_name() -> str:
    """Return ``metal``, ``cuda`` or ``cpu``."""
    if mx.default_device().type != mx.DeviceType.gpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def limit_cache() -> int | None:
    """Let MLX keep a sixteenth of the machine's memory as freed buffers; return the limit in bytes."""
    total = memory().total_bytes
    if total is None:
        return None
    limit = int(total * _CACHE_FRACTION)
    mx.set_cache_limit(limit)
    return limit


def working_set_bytes() -> int | None:
    """Return what the GPU may hold at most; None where MLX does not say (CPU)."""
    value = mx.device_info().get("max_recommended_working_set_size")
    return None if value is None else int(value)


def cost_model(shapes: Sequence[LayerShape | None], num_query_heads: int | None) -> CostModel:
    """Return the planner's costs for a layer of average size on this device."""
    bytes_per_s, ops_per_s, call_s = _RATES[device_name()]
    written = [shape for shape in shapes if shape is not None]
    count = max(1, len(written))
    heads = num_query_heads or max((shape.key_heads for shape in written), default=1) * 4
    width = sum(shape.key_dim + shape.value_dim for shape in written) // count
    return CostModel(
        bytes_per_s=bytes_per_s,
        ops_per_s=ops_per_s,
        call_s=call_s,
        bytes_per_key=sum(shape.bytes_per_slot for shape in written) // count,
        ops_per_key=2 * heads * width,
    )

"""The precisions in which people run models: quantized weights, several widths in one model, 16-bit floats."""

from __future__ import annotations

import enum
from typing import Any

import mlx.core as mx
from mlx import nn

_GROUP = 32


class Precision(enum.Enum):
    """How the weights of a tiny model are kept."""

    FLOAT32 = "float32"
    FOUR_BITS = "4 bits"
    EIGHT_BITS = "8 bits"
    MIXED = "4 and 8 bits"
    """Eight for embeddings, values and what leaves the feed-forward layers."""
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def has_16_bits(self) -> bool:
        """Whether activations have 16 bits, so that every order of operations rounds differently."""
        return self in {Precision.BFLOAT16, Precision.FLOAT16}


def set_precision(module: nn.Module, precision: Precision) -> None:
    """Keep the weights of a float32 module in another precision."""
    if precision.has_16_bits:
        module.set_dtype(getattr(mx, precision.value))
    elif precision is not Precision.FLOAT32:
        _quantize(module, precision)
    mx.eval(module.parameters())


def _quantize(module: nn.Module, precision: Precision) -> None:
    """Quantize every layer whose rows are whole groups."""
    bits = 8 if precision is Precision.EIGHT_BITS else 4

    def choose(path: str, layer: nn.Module) -> bool | dict[str, Any]:
        if not hasattr(layer, "to_quantized") or layer.weight.shape[-1] % _GROUP:
            return False
        is_wide = precision is Precision.MIXED and any(part in path for part in ("embed", "v_proj", "down_proj"))
        return {"group_size": _GROUP, "bits": 8 if is_wide else bits}

    nn.quantize(module, group_size=_GROUP, bits=bits, class_predicate=choose)

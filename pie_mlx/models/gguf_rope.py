"""The rotary scaling of a GGUF file, as the config of an MLX model writes it."""

from __future__ import annotations

import math
import struct
from typing import Any

from pie_mlx.errors import ModelCorrupt, UnsupportedModel
from pie_mlx.models.gguf_header import GGUFHeader

ROPE_FACTORS = "rope_freqs.weight"
"""The tensor that divides each rotary frequency by a factor of its own, shape ``[head_dim / 2]``."""

_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192
"""Of the one recipe that is published with such factors, Llama 3.1's."""


def rope_scaling(header: GGUFHeader, architecture: str, *, head_dim: int, base: float) -> dict[str, Any] | None:
    """Return the ``rope_scaling`` the file asks for, or None.

    Raises:
        UnsupportedModel: the file scales in a way that cannot be rebuilt exactly.
        ModelCorrupt: it names a scaling without its numbers.
    """
    model, metadata = str(header.path), header.metadata
    kind = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if ROPE_FACTORS in header.tensors:
        if kind != "none":
            raise UnsupportedModel(model, f"it has both rotary factors and the scaling {kind!r}")
        return _llama3(model, read_factors(header), head_dim=head_dim, base=base)
    if kind == "none":
        return None
    factor = metadata.get(f"{architecture}.rope.scaling.factor")
    if not isinstance(factor, float) or not math.isfinite(factor) or factor <= 0:
        raise ModelCorrupt(model, f"{architecture}.rope.scaling.factor is {factor!r}, not a number above 0")
    if kind == "linear":
        return {"type": "linear", "factor": factor}
    if kind == "yarn":
        original = metadata.get(f"{architecture}.rope.scaling.original_context_length")
        if not isinstance(original, int):
            raise ModelCorrupt(
                model, f"{architecture}.rope.scaling.original_context_length is {original!r}, not a number"
            )
        return {"type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise UnsupportedModel(model, f"its rotary scaling is {kind!r}; linear and yarn are read")


def read_factors(header: GGUFHeader) -> tuple[float, ...]:
    """Return the factors of the rotary frequencies.

    Raises:
        UnsupportedModel: they are not plain float32 numbers.
    """
    entry = header.tensors[ROPE_FACTORS]
    if entry.kind.name != "F32" or len(entry.shape) != 1:
        raise UnsupportedModel(str(header.path), f"{ROPE_FACTORS} is not a list of F32 numbers")
    with header.path.open("rb") as file:
        file.seek(header.data_start + entry.offset)
        return struct.unpack(f"<{entry.shape[0]}f", file.read(entry.num_bytes))


def llama3_factors(*, head_dim: int, base: float, factor: float) -> tuple[float, ...]:
    """Return what Llama 3.1's recipe divides each frequency by: 1 for short waves, ``factor`` for long ones."""
    found = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * base ** (index / head_dim)
        if wavelength < _ORIGINAL / _HIGH:
            found.append(1.0)
        elif wavelength > _ORIGINAL / _LOW:
            found.append(factor)
        else:
            smooth = (_ORIGINAL / wavelength - _LOW) / (_HIGH - _LOW)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return tuple(found)


def _llama3(model: str, factors: tuple[float, ...], *, head_dim: int, base: float) -> dict[str, Any]:
    """Return the recipe whose factors are those of the file, or refuse them."""
    factor = max(factors)
    expected = llama3_factors(head_dim=head_dim, base=base, factor=factor)
    same = len(expected) == len(factors) and all(
        math.isclose(a, b, rel_tol=1e-4) for a, b in zip(expected, factors, strict=True)
    )
    if not same:
        raise UnsupportedModel(
            model,
            "it scales its rotary frequencies by a recipe that is not known here",
            "choose the MLX form of this model (pie-mlx models)",
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL,
    }

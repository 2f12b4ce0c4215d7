"""How much memory a model needs: weights, KV and working space, from its config alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pie_mlx.errors import ModelCorrupt
from pie_mlx.kv.window import Window
from pie_mlx.models.folder import text_config

_FUSED_HEAD_DIMS = frozenset({64, 80, 96, 128})
_CHUNK_TOKENS = 512
_BASE_BYTES = 300_000_000
"""The process itself: interpreter, libraries, kernels."""
_RECURRENT_TYPES = frozenset({"mamba", "mamba2", "rwkv7", "falcon_mamba"})


@dataclass(frozen=True, slots=True)
class LayerKV:
    """The KV of one layer: bytes a token, and the window it is bounded by (None is the whole context)."""

    bytes_per_token: int
    window_tokens: int | None = None

    def bytes_at(self, num_tokens: int) -> int:
        """Return the bytes this layer holds for a sequence of ``num_tokens``."""
        seen = num_tokens if self.window_tokens is None else min(num_tokens, self.window_tokens)
        return seen * self.bytes_per_token


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by purpose."""

    weight_bytes: int
    kv_bytes: int
    working_bytes: int
    kv_bytes_per_token: int
    """Of every layer together: a page holds all of them."""
    context_tokens: int
    kept_tokens: int
    """Those whose pages a context keeps: all, unless every attention layer has a window."""
    layers: tuple[LayerKV, ...]
    """Of attention."""

    @property
    def total_bytes(self) -> int:
        """All of it together."""
        return self.weight_bytes + self.kv_bytes + self.working_bytes

    @property
    def windowed_kv_bytes(self) -> int:
        """What K and V would take if each layer kept only what it sees."""
        return sum(layer.bytes_at(self.context_tokens) for layer in self.layers)

    def fits(self, memory_bytes: int, *, reserve_bytes: int = 2_000_000_000) -> bool:
        """Whether a machine with ``memory_bytes`` holds it, leaving ``reserve_bytes`` to the rest."""
        return self.total_bytes + reserve_bytes <= memory_bytes


def memory_needed(
    config: Mapping[str, Any], weight_bytes: int, context_tokens: int, *, element_bytes: int = 2
) -> MemoryEstimate:
    """Estimate the memory for one sequence of ``context_tokens``.

    Args:
        config: A model's ``config.json``.
        weight_bytes: Bytes of its weights in memory.
        context_tokens: Tokens of the sequence.
        element_bytes: Bytes of one K or V element: 2 for 16-bit floats, 4 for float32.

    Raises:
        ModelCorrupt: the config does not name layers and heads.
    """
    layers = layer_kv(config, element_bytes=element_bytes)
    windows = [layer.window_tokens for layer in layers if layer.window_tokens is not None]
    kept = context_tokens
    if windows and len(windows) == len(layers):
        kept = min(kept, Window(max(windows)).num_kept)
    per_token = sum(layer.bytes_per_token for layer in layers)
    return MemoryEstimate(
        weight_bytes=weight_bytes,
        kv_bytes=kept * per_token,
        working_bytes=_BASE_BYTES + _prefill_bytes(config, context_tokens, element_bytes),
        kv_bytes_per_token=per_token,
        context_tokens=context_tokens,
        kept_tokens=kept,
        layers=layers,
    )


def layer_kv(config: Mapping[str, Any], *, element_bytes: int = 2) -> tuple[LayerKV, ...]:
    """Return the KV of every attention layer; recurrent layers hold none.

    Raises:
        ModelCorrupt: the config does not name layers and heads.
    """
    flat = text_config(config)
    if flat.get("model_type") in _RECURRENT_TYPES:
        return ()
    num_layers = _number(flat, "num_hidden_layers", "n_layers", "n_layer")
    width = _kv_width(flat) * element_bytes
    kinds = _layer_kinds(flat, num_layers)
    window = flat.get("sliding_window") or flat.get("attention_window_size")
    return tuple(
        LayerKV(width, window if kind == "sliding" and isinstance(window, int) else None)
        for kind in kinds
        if kind != "recurrent"
    )


def _kv_width(config: Mapping[str, Any]) -> int:
    """Return the elements of K and V of one token in one layer."""
    latent = config.get("kv_lora_rank")
    if isinstance(latent, int):
        return latent + int(config.get("qk_rope_head_dim", 0))
    heads = _number(config, "num_attention_heads", "n_heads", "n_head")
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or _number(config, "hidden_size", "n_embd", "dim") // heads
    return 2 * int(kv_heads) * int(head_dim)


def _layer_kinds(config: Mapping[str, Any], num_layers: int) -> list[str]:
    """Return "full", "sliding" or "recurrent" for each layer."""
    blocks = config.get("block_types")
    if isinstance(blocks, list) and blocks:
        # RecurrentGemma repeats a few blocks, whose attention has a window always.
        names = [str(blocks[index % len(blocks)]) for index in range(num_layers)]
        return ["sliding" if name == "attention" else "recurrent" for name in names]
    listed = config.get("layer_types")
    if isinstance(listed, list) and len(listed) == num_layers:
        return [_kind(str(name)) for name in listed]
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 1:
        return ["full" if (index + 1) % pattern == 0 else "sliding" for index in range(num_layers)]
    # Gemma 3 writes its pattern only where it differs from its own default.
    if str(config.get("model_type", "")).startswith("gemma3") and config.get("sliding_window"):
        return ["full" if (index + 1) % 6 == 0 else "sliding" for index in range(num_layers)]
    return ["full"] * num_layers


def _kind(name: str) -> str:
    """Return the kind of a layer from the name a config gives it."""
    if "sliding" in name or "chunked" in name:
        return "sliding"
    return "full" if "attention" in name and "linear" not in name else "recurrent"


def _prefill_bytes(config: Mapping[str, Any], context_tokens: int, element_bytes: int) -> int:
    """Return the largest transient of a prefill chunk: logits' input, and scores where attention is not fused."""
    flat = text_config(config)
    heads = _number(flat, "num_attention_heads", "n_heads", "n_head")
    hidden = _number(flat, "hidden_size", "n_embd", "dim")
    head_dim = int(flat.get("head_dim") or hidden // heads)
    rows = min(_CHUNK_TOKENS, max(context_tokens, 1))
    activations = rows * int(flat.get("intermediate_size") or 4 * hidden) * 4 * element_bytes
    scores = 0 if head_dim in _FUSED_HEAD_DIMS else rows * context_tokens * heads * 4
    return activations + scores


def _number(config: Mapping[str, Any], *names: str) -> int:
    """Return the first of ``names`` that the config gives as a positive whole number."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    raise ModelCorrupt(str(config.get("model_type", "model")), f"config.json names no {names[0]}")

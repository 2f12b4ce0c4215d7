"""The architectures that are converted from GGUF: their tensors, MLX's names for them, and what their configs add.

Only llama-type files store the rows of q and k in the order of interleaved rotary pairs; the others keep the
order that MLX computes in. Gemma's files store norms with one already added, which MLX adds itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, ...]

_COMMON = {
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_down": "mlp.down_proj",
}
_SPLIT = {
    **_COMMON,
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
}
_FUSED = {**_COMMON, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_WITH_NORMS = {**_SPLIT, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Widths of one layer."""

    hidden: int
    middle: int
    queries: int
    keys: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class GGUFKind:
    """How an architecture's file is read."""

    model_type: str
    names: Mapping[str, str]
    """A layer's tensors and what MLX calls them."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """What the config says besides the sizes."""
    biases: tuple[str, ...] = ()
    """Tensors that have a bias."""
    norm_offset: float = 0.0
    """What the file's norms have more than MLX's."""
    partial_rotary: bool = False
    """Whether the config can say that only some dimensions are rotated."""
    fixed_head_dim: bool = False
    """Whether MLX's module takes the width of a head from the hidden size alone."""
    always_tied: bool = False

    def layer(self, sizes: LayerSizes) -> dict[str, Shape]:
        """Return a layer's tensors and shapes, fastest dimension first."""
        hidden, middle = sizes.hidden, sizes.middle
        shapes: dict[str, Shape] = {
            "attn_norm": (hidden,),
            "ffn_norm": (hidden,),
            "attn_q": (hidden, sizes.queries),
            "attn_k": (hidden, sizes.keys),
            "attn_v": (hidden, sizes.keys),
            "attn_qkv": (hidden, sizes.queries + 2 * sizes.keys),
            "attn_output": (sizes.queries, hidden),
            "attn_q_norm": (sizes.head_dim,),
            "attn_k_norm": (sizes.head_dim,),
            "ffn_gate": (hidden, middle),
            "ffn_up": (hidden, middle if "ffn_gate" in self.names else 2 * middle),
            "ffn_down": (middle, hidden),
        }
        found = {f"{name}.weight": shapes[name] for name in self.names}
        return found | {f"{name}.bias": shapes[name][1:] for name in self.biases}


KINDS: Mapping[str, GGUFKind] = {
    "llama": GGUFKind("llama", _SPLIT, {"rope_traditional": True}),
    "qwen2": GGUFKind("qwen2", _SPLIT, biases=("attn_q", "attn_k", "attn_v"), fixed_head_dim=True),
    "qwen3": GGUFKind("qwen3", _WITH_NORMS),
    "phi3": GGUFKind("phi3", _FUSED, partial_rotary=True, fixed_head_dim=True),
    "gemma": GGUFKind("gemma", _SPLIT, norm_offset=1.0, always_tied=True),
}
"""``general.architecture`` to how it is read."""

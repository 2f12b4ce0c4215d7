"""Each architecture that is read from GGUF computes what mlx-lm computes with the same weights."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from pie_mlx.errors import UnsupportedModel
from pie_mlx.models.gguf import convert_gguf
from pie_mlx.models.load import load_model

MakeGGUF = Callable[..., Path]
Weights = dict[str, npt.NDArray[np.float32]]

_LAYERS, _HIDDEN, _MIDDLE, _HEADS, _KV, _DIM = 2, 64, 96, 4, 2, 16
_MODULES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_qkv": "self_attn.qkv_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def _weights(kind: str, vocab: int) -> Weights:
    """Make random weights under the names of the file."""
    random = np.random.default_rng(1)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return (random.standard_normal((rows, columns)) * 0.15).astype(np.float16).astype(np.float32)

    def vector(size: int) -> npt.NDArray[np.float32]:
        return (1 + random.standard_normal(size) * 0.1).astype(np.float16).astype(np.float32)

    made = {"token_embd.weight": matrix(vocab, _HIDDEN), "output_norm.weight": vector(_HIDDEN)}
    queries, keys = _HEADS * _DIM, _KV * _DIM
    for layer in range(_LAYERS):
        part: Weights = {
            "attn_norm.weight": vector(_HIDDEN),
            "ffn_norm.weight": vector(_HIDDEN),
            "attn_output.weight": matrix(_HIDDEN, queries),
            "ffn_down.weight": matrix(_HIDDEN, _MIDDLE),
        }
        if kind == "phi3":
            part |= {"attn_qkv.weight": matrix(queries + 2 * keys, _HIDDEN), "ffn_up.weight": matrix(2 * _MIDDLE, 64)}
        else:
            for name, rows in (("q", queries), ("k", keys), ("v", keys)):
                part[f"attn_{name}.weight"] = matrix(rows, _HIDDEN)
                if kind == "qwen2":
                    part[f"attn_{name}.bias"] = vector(rows)
            part |= {"ffn_gate.weight": matrix(_MIDDLE, _HIDDEN), "ffn_up.weight": matrix(_MIDDLE, _HIDDEN)}
        if kind == "qwen3":
            part |= {"attn_q_norm.weight": vector(_DIM), "attn_k_norm.weight": vector(_DIM)}
        made |= {f"blk.{layer}.{name}": array for name, array in part.items()}
    return made


def _name(stored: str, kind: str) -> str:
    """Return mlx-lm's name, by a table of this test's own."""
    outer = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if stored in outer:
        return outer[stored]
    _, layer, part, leaf = stored.split(".")
    up = "mlp.gate_up_proj" if kind == "phi3" else "mlp.up_proj"
    return f"model.layers.{layer}.{up if part == 'ffn_up' else _MODULES[part]}.{leaf}"


def _keys(kind: str, **more: object) -> dict[str, object]:
    """Return the metadata of an architecture."""
    sizes = {
        "block_count": _LAYERS, "context_length": 256, "embedding_length": _HIDDEN, "feed_forward_length": _MIDDLE,
        "attention.head_count": _HEADS, "attention.head_count_kv": _KV, "rope.freq_base": 1000.0,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.key_length": _DIM, **more,
    }  # fmt: skip
    return {"general__architecture": kind} | {f"{kind}.{key}": value for key, value in sizes.items()}


def _reference(kind: str, weights: Weights, vocab: int) -> Any:
    """Return mlx-lm's module with the same weights."""
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    config: dict[str, Any] = {
        "model_type": kind, "hidden_size": _HIDDEN, "num_hidden_layers": _LAYERS, "intermediate_size": _MIDDLE,
        "num_attention_heads": _HEADS, "num_key_value_heads": _KV, "head_dim": _DIM, "rms_norm_eps": 1e-5,
        "vocab_size": vocab, "rope_theta": 1000.0, "max_position_embeddings": 256, "tie_word_embeddings": True,
        "partial_rotary_factor": 0.5 if kind == "phi3" else 1.0,
    }  # fmt: skip
    model = module.Model(module.ModelArgs.from_dict(config))
    offset = 1.0 if kind == "gemma" else 0.0
    pairs = [
        (_name(name, kind), mx.array(array - offset if name.endswith("norm.weight") else array))
        for name, array in weights.items()
    ]
    model.load_weights(pairs)
    return model


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "phi3", "gemma"])
def test_the_logits_are_those_of_mlx_lm(kind: str, bpe: dict[str, Any], make_gguf: MakeGGUF, tmp_path: Path) -> None:
    """Biases, head norms, fused matrices, partial rotation and shifted norms arrive where they belong."""
    vocab = len(bpe["model"]["vocab"])
    weights = _weights(kind, vocab)
    rotated = _DIM // 2 if kind == "phi3" else _DIM
    stored = {name: (array, 0) for name, array in weights.items()}
    path = make_gguf(tensors=stored, **_keys(kind, **{"rope.dimension_count": rotated}))
    loaded = load_model(convert_gguf(path, tmp_path / "out"), dequantize=True)
    ids = mx.array([[5, 9, 100, 33, 7, 250] * 6])
    got, expected = np.array(loaded.module(ids)), np.array(_reference(kind, weights, vocab)(ids))
    assert np.abs(got - expected).max() <= 2e-3 * np.abs(expected).max()
    assert (got.argmax(-1) == expected.argmax(-1)).all()


def test_long_rope_factors_are_refused(bpe: dict[str, Any], make_gguf: MakeGGUF, tmp_path: Path) -> None:
    """A scaling that the config cannot say is not dropped."""
    weights = _weights("phi3", len(bpe["model"]["vocab"]))
    stored = {name: (array, 0) for name, array in weights.items()}
    stored["rope_factors_long.weight"] = (np.ones(8, np.float32), 0)
    with pytest.raises(UnsupportedModel, match="rope_factors_long"):
        convert_gguf(make_gguf(tensors=stored, **_keys("phi3")), tmp_path / "out")
    qwen = {name: (array, 0) for name, array in _weights("qwen3", len(bpe["model"]["vocab"])).items()}
    path = make_gguf(tensors=qwen, **_keys("qwen3", **{"rope.dimension_count": 8}))
    with pytest.raises(UnsupportedModel, match="only 8 of 16 dimensions"):
        convert_gguf(path, tmp_path / "out")

"""Memory estimates: equal to what the KV of such a model really takes."""

from __future__ import annotations

from typing import Any

import pytest

from pie_mlx.errors import ModelCorrupt
from pie_mlx.models.estimate import layer_kv, memory_needed


def test_plain_model_equals_its_arrays(llama_config: dict[str, Any]) -> None:
    """The bytes a token are those of K and V of every layer and KV head."""
    estimate = memory_needed(llama_config, 1000, 100, element_bytes=4)
    assert estimate.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert estimate.kv_bytes == 100 * estimate.kv_bytes_per_token
    assert estimate.total_bytes == 1000 + estimate.kv_bytes + estimate.working_bytes


def test_estimate_equals_mlx_lms_own_cache(tiny: Any, llama_config: dict[str, Any]) -> None:
    """A real cache filled with tokens holds the estimated bytes."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from pie_mlx.models.load import load_model

    module = load_model(tiny).module
    cache = make_prompt_cache(module)
    mx.eval(module(mx.zeros((1, 256), mx.int32), cache=cache))
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache)
    assert memory_needed(llama_config, 0, 256, element_bytes=4).kv_bytes == held


def test_one_layer_that_sees_all_keeps_the_pages_of_all_layers(llama_config: dict[str, Any]) -> None:
    """A page holds every layer: what the windows alone would take is told beside it."""
    config = {**llama_config, "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
    one = 2 * 2 * 16 * 2
    estimate = memory_needed(config, 0, 1000)
    assert (estimate.kv_bytes, estimate.windowed_kv_bytes) == (2000 * one, (64 + 1000) * one)
    assert (estimate.kept_tokens, memory_needed(config, 0, 10).kv_bytes) == (1000, 20 * one)


def test_windows_in_all_layers_bound_what_a_context_keeps(llama_config: dict[str, Any]) -> None:
    """A quarter of the widest window is kept behind it, whatever the context's length."""
    config = {**llama_config, "sliding_window": 64, "layer_types": ["sliding_attention"] * 2}
    for tokens in (1000, 100_000):
        assert memory_needed(config, 0, tokens).kept_tokens == 63 + 16
    assert memory_needed(config, 0, 1000).kv_bytes == 79 * 2 * 2 * 2 * 16 * 2
    assert memory_needed(config, 0, 10).kept_tokens == 10


def test_recurrent_gemma_keeps_its_window() -> None:
    """Its blocks repeat, and each attention among them has a window."""
    config = {"model_type": "recurrent_gemma", "num_hidden_layers": 26, "num_attention_heads": 10, "hidden_size": 2560,
              "num_key_value_heads": 1, "head_dim": 256, "attention_window_size": 2048,
              "block_types": ["recurrent", "recurrent", "attention"]}  # fmt: skip
    estimate = memory_needed(config, 0, 100_000)
    assert len(estimate.layers) == 8
    assert estimate.kept_tokens == 2047 + 512


def test_gemma_pattern_without_being_written() -> None:
    """Gemma 3 slides on five of six layers, also where its config leaves that out."""
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
              "num_hidden_layers": 34, "intermediate_size": 10240, "sliding_window": 1024}}  # fmt: skip
    windows = [layer.window_tokens for layer in layer_kv(config)]
    assert windows.count(None) == 5
    assert windows[:6] == [1024] * 5 + [None]
    assert memory_needed(config, 0, 131072).windowed_kv_bytes < 34 * 131072 * 2 * 4 * 256 * 2 / 5


def test_recurrent_layers_hold_no_kv(llama_config: dict[str, Any]) -> None:
    """Linear attention and state-space layers add nothing per token."""
    config = {**llama_config, "layer_types": ["linear_attention", "full_attention"]}
    assert len(layer_kv(config)) == 1
    assert layer_kv({"model_type": "mamba", "num_hidden_layers": 4}) == ()


def test_latent_attention_counts_its_latent() -> None:
    """A model that caches a latent is not counted by its heads."""
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 1, "num_attention_heads": 128, "hidden_size": 7168,
              "kv_lora_rank": 512, "qk_rope_head_dim": 64}  # fmt: skip
    assert layer_kv(config)[0].bytes_per_token == (512 + 64) * 2


def test_unfused_heads_need_room_for_scores(llama_config: dict[str, Any]) -> None:
    """A head size without a fused kernel pays for a chunk's scores over the whole context."""
    fused = memory_needed({**llama_config, "head_dim": 128}, 0, 8192).working_bytes
    unfused = memory_needed({**llama_config, "head_dim": 256}, 0, 8192).working_bytes
    assert unfused - fused == 512 * 8192 * 4 * 4


def test_fit_leaves_a_reserve(llama_config: dict[str, Any]) -> None:
    """A model fits only if the rest of the machine keeps its reserve."""
    estimate = memory_needed(llama_config, 5_000_000_000, 100)
    assert estimate.fits(8_000_000_000)
    assert not estimate.fits(7_000_000_000)


def test_config_without_layers_is_refused() -> None:
    """A config that names no layers cannot be estimated, and says so."""
    with pytest.raises(ModelCorrupt, match="num_hidden_layers"):
        memory_needed({"model_type": "x"}, 0, 10)

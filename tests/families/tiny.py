"""Tiny models of random weights, one for every architecture that mlx-lm has a module for.

A config is made of the fields that the architecture's own argument class declares, with common tiny values, and
of what is particular to it. Windows, chunks and top-k budgets are longer than what the check at load reads, so
that they begin to matter only in the run that is compared.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten

Json = dict[str, Any]

VOCAB = 96
WINDOW = 14
_LAYERS = 4
_SLIDING = ["sliding_attention", "full_attention"] * 2

_COMMON: Json = {
    "vocab_size": VOCAB, "num_vocab": VOCAB, "padded_vocab_size": VOCAB,
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "model_dim": 64, "hidden_dim": 64,
    "intermediate_size": 96, "n_inner": 96, "ff_intermediate_size": 96, "ffn_hidden_size": 96, "block_dim": 64,
    "dense_intermediate_size": 96, "intermediate_size_mlp": 96,
    "num_hidden_layers": _LAYERS, "n_layers": _LAYERS, "n_layer": _LAYERS, "num_layers": _LAYERS,
    "num_transformer_layers": _LAYERS,
    "num_attention_heads": 4, "n_heads": 4, "n_head": 4, "num_heads": 4,
    "num_key_value_heads": 2, "num_kv_heads": 2, "n_kv_heads": 2, "head_dim": 16,
    "rms_norm_eps": 1e-5, "norm_eps": 1e-5, "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5,
    "layernorm_epsilon": 1e-5,
    "rope_theta": 1000.0, "rotary_emb_base": 1000, "rotary_pct": 0.5, "rotary_dim": 8, "partial_rotary_factor": 0.5,
    "max_position_embeddings": 512, "n_positions": 512, "n_ctx": 512, "model_max_length": 512, "block_size": 512,
    "sliding_window": WINDOW, "window_size": WINDOW, "sliding_window_size": WINDOW, "attention_window_size": WINDOW,
    "attention_chunk_size": 16, "loop_window_size": WINDOW, "sliding_window_pattern": 2,
    "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "num_experts_per_token": 2, "moe_topk": 2, "moe_top_k": 2, "moe_k": 2, "n_shared_experts": 1,
    "num_shared_experts": 1, "num_shared_expert": 1, "moe_intermediate_size": 32, "expert_ffn_hidden_size": 32,
    "shared_expert_intermediate_size": 32, "shared_intermediate_size": 32, "share_expert_dim": 32,
    "moe_shared_expert_intermediate_size": 32, "moe_hidden_size": 32,
    "norm_topk_prob": True, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "decoder_sparse_step": 1,
    "mlp_only_layers": [], "zero_expert_num": 2, "zero_expert_type": "identity",
    "kv_lora_rank": 24, "q_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10,
    "mla_scale_q_lora": True, "mla_scale_kv_lora": True, "attention_method": "MLA",
    "index_head_dim": 16, "index_n_heads": 2, "index_topk": 18,
    "attention_bias": True, "mlp_bias": True, "use_bias": True, "use_qkv_bias": True, "conv_bias": True,
    "use_conv_bias": True, "use_expert_bias": True, "use_qk_norm": True, "qk_norm": True, "post_norm": True,
    "tie_word_embeddings": True,
    "logits_scaling": 2.0, "attention_multiplier": 0.3, "embedding_multiplier": 1.5, "residual_multiplier": 0.7,
    "final_logit_softcapping": 20.0, "attn_logit_softcapping": 20.0, "logits_soft_cap": 20.0,
    "dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 2.0, "gegelu_limit": 10.0,
    "conv_L_cache": 3, "conv_kernel": 3, "conv_window": 2, "conv1d_width": 3, "state_size": 8, "ssm_state_size": 8,
    "time_step_rank": 4, "n_groups": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 3,
    "linear_allow_neg_eigval": True, "layer_group_size": 2, "group_norm_size": 2,
    "mamba_num_heads": 4, "mamba_head_dim": 16, "mamba_proj_bias": False, "mamba_n_heads": 4, "mamba_d_head": 16,
    "mamba_d_state": 8, "mamba_d_conv": 3, "mamba_n_groups": 2, "mamba_expand": 2, "mamba_conv_bias": True,
    "time_step_limit": [0.01, 10.0],
    "layer_types": _SLIDING,
    "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 2,
    "swa_rope_theta": 500.0, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 1, "swa_head_dim": 16,
    "swa_v_head_dim": 10, "hidden_size_per_head": 16,
}  # fmt: skip
"""What a field is, wherever an architecture declares it."""

_YARN: Json = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1000.0}
_FULL_AND_LINEAR = ["linear_attention", "full_attention"] * 2
_QWEN35_ROPE: Json = {"type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}
_KDA: Json = {
    "num_heads": 4, "head_dim": 16, "kda_layers": [1, 3], "full_attn_layers": [2, 4], "short_conv_kernel_size": 3,
    "gate_lower_bound": -5.0,
}  # fmt: skip

_PARTICULAR: dict[str, Json] = {
    "afm7": {"num_kv_reuse_layers": 2},
    "baichuan_m1": {"sliding_window_layers": [0, 2], "tie_word_embeddings": False},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1000.0},
    },
    "deepseek_v2": {"rope_scaling": _YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}, "topk_method": "greedy"},
    "deepseek_v3": {"rope_scaling": _YARN},
    "deepseek_v41": {
        "head_dim": 32, "o_groups": 2, "o_lora_rank": 16, "compress_ratios": [0, 4, 4, 0],
        "kv_source_layer_ids": [0, 1, 1, 0], "index_source_layer_ids": [0, 1, 1, 0], "hc_mult": 2,
    },
    "exaone4": {"rope_scaling": None, "sliding_window_pattern": "LGLG"},
    "exaone_moe": {"is_moe_layer": [False, True, True, True]},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 16},
    "gear": {"layer_types": ["conv_mixer", "sliding_attention", "full_attention", "conv_mixer"]},
    "gemma3": {"inner": {"module": "gemma3_text"}},
    "gemma3n": {
        "inner": {
            "module": "gemma3n",
            "args": "TextConfig",
            "with": {
                "model_type": "gemma3n", "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0], "altup_num_inputs": 3,
                "altup_coef_clip": 100.0, "altup_correct_scale": True, "altup_active_idx": 0, "laurel_rank": 8,
                "rope_local_base_freq": 500.0, "query_pre_attn_scalar": 16.0,
            },
        }
    },
    "gemma4": {"inner": {"module": "gemma4_text"}},
    "gemma4_text": {"global_head_dim": 24, "num_global_key_value_heads": 1, "head_dim": 16},
    "glm4_moe": {"rope_scaling": None},
    "glm_moe_dsa": {"rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "hunyuan": {
        "use_mixed_mlp_moe": True, "use_cla": True, "cla_share_factor": 2,
        "rope_scaling": {"type": "dynamic", "alpha": 10.0, "factor": 1.0},
    },
    "jamba": {
        "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2,
        "layers_block_type": ["mamba", "attention"] * 2,
    },
    "kimi_k25": {"inner": {"module": "deepseek_v3"}},
    "kimi_k3": {
        "inner": {
            "module": "kimi_k3",
            "args": "TextArgs",
            "with": {
                "linear_attn_config": _KDA, "activation_situ_beta": 1.0, "activation_situ_linear_beta": 4.0,
                "attn_res_block_size": 2,
            },
        }
    },
    "kimi_linear": {"linear_attn_config": _KDA, "num_shared_experts": 1},
    "kimi_vl": {"inner": {"module": "kimi_vl", "args": "TextArgs", "with": {"rope_scaling": None}}},
    "lfm2": {
        "block_multiple_of": 8, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True,
        "block_ff_dim": 96, "layer_types": ["conv", "full_attention"] * 2,
    },
    "lfm2-vl": {"inner": {"module": "lfm2"}},
    "lfm2_moe": {"num_dense_layers": 1, "layer_types": ["conv", "full_attention"] * 2},
    "llama": {"layer_types": _SLIDING},
    "llama4": {
        "inner": {
            "module": "llama4",
            "args": "TextArgs",
            "with": {"num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "rope_scaling": None},
        }
    },
    "llama4_text": {"no_rope_layers": [1, 1, 1, 0]},
    "mellum": {
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
        }
    },
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 0, 1], "moe_layer_freq": [0, 1, 0, 1], "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
    },
    "minicpm3": {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.1] * 4,
                                  "original_max_position_embeddings": 512}},
    "minimax_m3_vl": {
        "inner": {
            "module": "minimax_m3_vl",
            "args": "TextArgs",
            "with": {
                "index_n_heads": 2, "index_head_dim": 16, "index_block_size": 8, "index_topk_blocks": 2,
                "layer_types": ["full_attention", "sparse", "full_attention", "sparse"], "rotary_dim": 8,
                "moe_layer_freq": [0, 1, 1, 1],
            },
        }
    },
    "ministral3": {
        "rope_parameters": {"rope_theta": 1000.0, "llama_4_scaling_beta": 0.1, "rope_type": "default",
                            "original_max_position_embeddings": 16},
    },
    "mistral3": {"inner": {"module": "ministral3", "with": {"model_type": "ministral3"}}},
    "mistral4": {
        "rope_parameters": {"rope_theta": 1000.0, "llama_4_scaling_beta": 0.1, "rope_type": "default",
                            "original_max_position_embeddings": 16},
    },
    "muse_spark": {
        "inner": {
            "module": "muse_spark",
            "args": "TextArgs",
            "with": {
                "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}, "post_norm_eps": 1e-6,
                "layer_rope_theta": [1000.0, 0.0, 1000.0, 0.0], "output_multiplier": 0.5,
                "mlp_layer_types": ["sparse"] * 4, "num_shared_experts": 0,
            },
        }
    },
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.5}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
            {"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 1.5}},
        ]
    },
    "nemotron_h": {"layer_types": None, "layers_block_type": None, "hybrid_override_pattern": ["M", "*", "E", "*"],
                   "moe_shared_expert_intermediate_size": 32},
    "olmo_hybrid": {"layer_types": _FULL_AND_LINEAR},
    "openelm": {
        "ffn_dim_divisor": 8, "num_query_heads": [2, 4, 4, 2], "num_kv_heads": [1, 2, 2, 1],
        "ffn_multipliers": [0.5, 1.0, 1.5, 2.0],
    },
    "phi3": {"partial_rotary_factor": 0.5},
    "phi3small": {"dense_attention_every_n_layers": 2, "blocksparse_block_size": 32, "blocksparse_num_local_blocks": 2,
                  "blocksparse_vert_stride": 2},
    "phimoe": {
        "rope_scaling": {
            "type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.2] * 8, "short_mscale": 1.1,
            "long_mscale": 1.2, "original_max_position_embeddings": 64,
        }
    },
    "pixtral": {"inner": {"module": "llama", "with": {"model_type": "llama"}}},
    "plamo": {"n_shared_head": 2},
    "plamo2": {"full_attention_idx": [1]},
    "prism_hadamard_qwen35": {
        "tensor_namespace": "mlx-vlm-qwen3_5", "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [
            {"path": "model.layers.0.mlp.gate_proj", "embedding": False, "dtype": "float16", "block": 0},
            {"path": "model.layers.1.mlp.up_proj", "embedding": False, "dtype": "float16", "block": 0},
        ],
        "inner": {"module": "qwen3_5", "args": "TextModelArgs", "with": {
            "num_experts": 0, "hidden_size": 128, "rope_parameters": _QWEN35_ROPE, "full_attention_interval": 2}},
    },
    "qwen": {"kv_channels": 16},
    "qwen2_vl": {"inner": {"module": "qwen2"}},
    "qwen3_5": {"inner": {"module": "qwen3_5", "args": "TextModelArgs", "with": {
        "num_experts": 0, "rope_parameters": _QWEN35_ROPE, "full_attention_interval": 2}}},
    "qwen3_5_moe": {"inner": {"module": "qwen3_5", "args": "TextModelArgs", "with": {
        "rope_parameters": _QWEN35_ROPE, "full_attention_interval": 2}}},
    "qwen3_next": {"full_attention_interval": 2},
    "qwen3_vl": {"inner": {"module": "qwen3"}},
    "qwen3_vl_moe": {"inner": {"module": "qwen3_moe"}},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "rwkv7": {"a_low_rank_dim": 8, "v_low_rank_dim": 8, "gate_low_rank_dim": 8, "decay_low_rank_dim": 8,
              "head_dim": 32},
    "spark2_5": {"rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1000.0}}},
    "step3p5": {"num_attention_groups": 2, "moe_layers_enum": "1,2,3"},
}  # fmt: skip
"""What only one architecture has; ``inner`` describes a nested ``text_config``."""


_ALL = ["sliding_attention"] * _LAYERS
ALL_SLIDING: dict[str, Json] = {
    "baichuan_m1": {"sliding_window_layers": list(range(_LAYERS))},
    "exaone_moe": {"layer_types": _ALL},
    "gear": {"layer_types": ["conv_mixer", "sliding_attention", "sliding_attention", "conv_mixer"]},
    "gemma4_text": {"layer_types": _ALL},
    "muse_glimmer": {"layer_types": _ALL},
    "recurrent_gemma": {},
    "spark2_5": {"layer_types": _ALL},
    "step3p5": {"layer_types": _ALL},
}
"""Changes after which every attention layer of an architecture has a window: pages behind it are let go."""


def architectures() -> list[str]:
    """Return the name of every module of mlx-lm that holds a model."""
    import mlx_lm.models as package

    from pie_mlx.models.load import supported_model_types

    found = {module.name for module in pkgutil.iter_modules(package.__path__)}
    return sorted(found & supported_model_types())


def tiny_config(name: str, changes: Json | None = None) -> Json:
    """Return the config of a tiny model of the architecture, with some fields changed."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    config = _fields(module.ModelArgs)
    particular = dict(_PARTICULAR.get(name, {}))
    inner = particular.pop("inner", None)
    if inner is not None:
        home = importlib.import_module(f"mlx_lm.models.{inner['module']}")
        text = _fields(getattr(home, inner.get("args", "ModelArgs")))
        text["model_type"] = inner["module"]
        text.update(_PARTICULAR.get(inner["module"], {}) if inner["module"] != name else {})
        text.update(inner.get("with", {}))
        config["text_config"] = text
    return {**config, **particular, **(changes or {}), "model_type": name}


def _fields(arguments: type) -> Json:
    """Return the common values of the fields that an argument class declares."""
    names = inspect.signature(arguments).parameters
    return {key: value for key, value in _COMMON.items() if key in names}


def tiny_model(name: str, changes: Json | None = None, *, seed: int = 5) -> tuple[nn.Module, Json]:
    """Build the architecture's tiny model with random weights in float32."""
    config = tiny_config(name, changes)
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(seed)
    model: nn.Module = module.Model(module.ModelArgs.from_dict(dict(config)))
    model.set_dtype(mx.float32)
    model.eval()
    _shake(model)
    return model, config


def _shake(model: nn.Module) -> None:
    """Move constant parameters (norms, biases, sinks, gates) off their initial values, so that each one matters."""
    moved = []
    parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    for path, array in parameters.items():
        if mx.issubdtype(array.dtype, mx.floating):
            moved.append((path, array + 0.1 * mx.random.normal(array.shape)))
    model.update(tree_unflatten(moved))
    mx.eval(model.parameters())

"""Tiny random models of the kinds that differ in their attention, and a driver that plays the engine's part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from mlx import nn
from mlx_lm.models import deepseek_v3, gemma2, gemma3_text, gpt_oss, llama, qwen2, qwen3

from pie_mlx.backend.base import Segment, Want, WantNothing
from pie_mlx.backend.mlx.backend import BackendOptions, MlxBackend, ModelIdentity
from pie_mlx.ids import ContextId

VOCAB = 211
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
}


def _llama() -> nn.Module:
    return llama.Model(llama.ModelArgs(model_type="llama", head_dim=16, **_SIZES))


def _llama_sliding() -> nn.Module:
    layers = ["sliding_attention", "full_attention"] * 2
    sizes = {**_SIZES, "layer_types": layers, "sliding_window": 6}
    return llama.Model(llama.ModelArgs(model_type="llama", head_dim=16, **sizes))


def _qwen2() -> nn.Module:
    return qwen2.Model(qwen2.ModelArgs(model_type="qwen2", **_SIZES))


def _qwen3() -> nn.Module:
    more: dict[str, Any] = {"max_position_embeddings": 512, "rope_theta": 1e4, "head_dim": 16}
    more["tie_word_embeddings"] = False
    return qwen3.Model(qwen3.ModelArgs(model_type="qwen3", **_SIZES, **more))


def _gemma2() -> nn.Module:
    return gemma2.Model(gemma2.ModelArgs(model_type="gemma2", head_dim=16, **_SIZES))


def _gemma3() -> nn.Module:
    more: dict[str, Any] = {"head_dim": 16, "sliding_window": 5, "sliding_window_pattern": 2}
    return gemma3_text.Model(gemma3_text.ModelArgs(model_type="gemma3_text", **_SIZES, **more))


def _gpt_oss() -> nn.Module:
    sizes = {**_SIZES, "head_dim": 16, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
    model = gpt_oss.Model(gpt_oss.ModelArgs(model_type="gpt_oss", **sizes))
    for layer in model.layers:
        layer.self_attn.sinks = mx.random.normal(layer.self_attn.sinks.shape)
    return model


def _deepseek() -> nn.Module:
    heads = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    more: dict[str, Any] = {**heads, **experts, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
    return deepseek_v3.Model(deepseek_v3.ModelArgs(model_type="deepseek_v3", **_SIZES, **more))


KINDS: dict[str, Callable[[], nn.Module]] = {
    "llama": _llama,
    "llama-sliding": _llama_sliding,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
    "deepseek": _deepseek,
}


def _make(kind: str) -> nn.Module:
    """Make a model whose weights are large enough for logits to depend on the whole context."""
    mx.random.seed(7)
    module = KINDS[kind]()
    mx.eval(module.parameters())
    return module


# Loading probes shapes and checks parity: once for each model and option, each test gets an arena of its own.
_MODULES: dict[str, nn.Module] = {}
_BACKENDS: dict[tuple[str, BackendOptions | None], MlxBackend] = {}


@dataclass
class Driver:
    """Runs sequences through a backend, with slots handed out from a list."""

    module: nn.Module
    backend: MlxBackend
    free: list[int] = field(default_factory=list)

    def take(self, count: int) -> npt.NDArray[np.int32]:
        """Hand out the next free slots."""
        taken, self.free = self.free[:count], self.free[count:]
        return np.array(taken, dtype=np.int32)


@dataclass
class Sequence:
    """A context: its tokens and the slots they live in."""

    driver: Driver
    name: int
    tokens: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)

    def fork(self, name: int) -> Sequence:
        """Share all slots."""
        return Sequence(self.driver, name, list(self.tokens), list(self.slots))

    def segment(self, tokens: list[int], want: Want | None = None) -> Segment:
        """Append tokens in new slots and return the segment that computes them."""
        context = np.array(self.slots, dtype=np.int32)
        written = self.driver.take(len(tokens))
        position = len(self.tokens)
        self.tokens.extend(tokens)
        self.slots.extend(written.tolist())
        ids = np.array(tokens, dtype=np.int32)
        return Segment(ContextId(self.name), ids, position, context, written, want or WantNothing())


MakeDriver = Callable[..., Driver]


@pytest.fixture
def make_driver() -> MakeDriver:
    """Return a function that gives a tiny model an empty arena, with forced options and slots in order or shuffled."""

    def make(kind: str = "llama", options: BackendOptions | None = None, *, shuffled: bool = False) -> Driver:
        if kind not in _MODULES:
            _MODULES[kind] = _make(kind)
        if (kind, options) not in _BACKENDS:
            identity = ModelIdentity(kind, f"tiny-{kind}", 512, frozenset({0}))
            _BACKENDS[kind, options] = MlxBackend(_MODULES[kind], identity, options)
        backend = _BACKENDS[kind, options]
        backend.allocate(30, 16)
        slots = np.arange(16, 31 * 16)
        if shuffled:
            np.random.default_rng(3).shuffle(slots)
        return Driver(_MODULES[kind], backend, slots.tolist())

    return make


@pytest.fixture
def new_sequence() -> Callable[[Driver, int], Sequence]:
    """Return a function that makes an empty sequence on a driver."""
    return Sequence


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of model in turn."""
    name: str = request.param
    return name

"""The architectures that people use most give the tokens of mlx-lm through the engine; ``make families`` runs all."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from pie_mlx.backend.mlx import state
from pie_mlx.backend.mlx.cache import ArenaCache
from tests.families.compare import Verdict, examine
from tests.families.precision import Precision
from tests.families.tiny import ALL_SLIDING, architectures, tiny_model

MOST_USED = (
    "cohere2", "deepseek_v3", "falcon_h1", "gemma2", "gemma3", "gemma3n", "glm4_moe", "gpt_oss", "granitemoehybrid",
    "lfm2", "llama", "llama4", "mamba2", "minimax_m3_vl", "ministral3", "mixtral", "nemotron_h", "phi3", "qwen2",
    "qwen3", "qwen3_5", "qwen3_moe", "qwen3_next",
)  # fmt: skip


@pytest.mark.parametrize("name", MOST_USED)
def test_the_tokens_are_those_of_mlx_lm(name: str) -> None:
    """A ragged batch, its forks, labels and a truncation agree with mlx-lm's own caches."""
    finding = examine(name)
    assert (finding.verdict, finding.why) == (Verdict.WORKS, "")


@pytest.mark.parametrize("name", ["gear", "gemma4_text", "recurrent_gemma"])
def test_pages_behind_every_window_are_let_go_and_the_tokens_stay_those_of_mlx_lm(name: str) -> None:
    """Where no layer sees all, with and without recurrent layers; a truncation far back computes again."""
    finding = examine(name, ALL_SLIDING[name])
    assert (finding.verdict, finding.why) == (Verdict.WORKS, "")
    assert finding.most_let_go > 50


@pytest.mark.parametrize(("name", "precision"), [("qwen3_moe", Precision.MIXED), ("llama", Precision.BFLOAT16)])
def test_other_precisions_say_what_mlx_lm_says_in_them(name: str, precision: Precision) -> None:
    """Quantized weights agree as float32 does; 16 bits are as near to the same weights in float32 as mlx-lm is."""
    finding = examine(name, precision=precision)
    assert (finding.verdict, finding.why) == (Verdict.WORKS, "")
    assert (finding.rounding > 0) == precision.has_16_bits


def test_a_layer_that_sees_all_keeps_every_page() -> None:
    """One full-attention layer among sliding ones: nothing is let go."""
    finding = examine("gemma3_text")
    assert (finding.verdict, finding.most_let_go) == (Verdict.WORKS, 0)


def test_every_architecture_has_a_tiny_model() -> None:
    """A new version of mlx-lm brings architectures: the table must know them."""
    assert len(architectures()) > 120
    for name in ("bailing_moe_v3", "kimi_k3", "rwkv7", "talkie"):
        module, config = tiny_model(name)
        assert config["model_type"] == name
        assert isinstance(module, nn.Module)


def test_the_comparison_sees_a_window_that_is_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One token too many in a sliding layer is found, though the check at load is too short to see it."""
    original = ArenaCache.make_mask

    def wider(cache: ArenaCache, *args: Any, **kwargs: Any) -> object:
        if cache.window is not None:
            cache.window, kwargs["window_size"] = cache.window + 1, None
        return original(cache, *args, **kwargs)

    monkeypatch.setattr(ArenaCache, "make_mask", wider)
    assert examine("gpt_oss").verdict is Verdict.DIFFERS


def test_a_batch_that_mixes_states_up_is_found_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """States that are handed to the wrong rows: the check at load sees it, and branches decode one after another."""
    original = state.stack
    monkeypatch.setattr("pie_mlx.backend.mlx.forward.stack", lambda states: original(list(reversed(states))))
    finding = examine("qwen3_next")
    assert (finding.verdict, finding.form) == (Verdict.WORKS, "single")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("deepseek_v41", "LayerCache, which cannot be kept in pages"),
        ("plamo3", "depends on how a prompt is cut"),
        ("phi3small", "its text is wrong"),
    ],
)
def test_what_cannot_be_run_rightly_is_refused_with_its_reason(name: str, reason: str) -> None:
    """Nothing is quietly wrong."""
    finding = examine(name)
    assert finding.verdict is Verdict.REFUSED
    assert reason in finding.why
    assert mx.get_active_memory() >= 0

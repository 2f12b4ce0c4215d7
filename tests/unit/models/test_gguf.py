"""Converting GGUF files: the same numbers and tokens come out, and no damaged file gets near native code."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pie_mlx.errors import ModelCorrupt, ModelError, TokenizerMissing, UnsupportedModel
from pie_mlx.models.gguf import convert_gguf
from pie_mlx.models.gguf_header import read_header
from pie_mlx.models.gguf_rope import llama3_factors
from pie_mlx.models.gguf_tokenizer import WORD_RULES
from pie_mlx.models.load import load_model
from pie_mlx.models.tokenizer import Tokenizer

MakeGGUF = Callable[..., Path]
TEXT = "The capital of France is Paris. 2024 ěščř 你好 👩‍👩‍👧"


def test_folder_is_complete_and_nothing_else_is_left(make_gguf: MakeGGUF, tmp_path: Path) -> None:
    """A conversion yields the five files of an MLX model, and no work folder beside them."""
    folder = convert_gguf(make_gguf(), tmp_path / "out" / "tiny")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


@pytest.mark.parametrize("factor", [None, 8.0])
def test_logits_equal_the_unpermuted_model(
    bpe: dict[str, Any], make_gguf: MakeGGUF, tmp_path: Path, makers: Any, factor: float | None
) -> None:
    """Permuted q/k with traditional rotary pairs compute what the original order computes, scaled or not."""
    import mlx.core as mx
    from mlx_lm.models.llama import Model, ModelArgs

    vocab = len(bpe["model"]["vocab"])
    plain = makers.gguf_tensors(vocab=vocab)
    stored = {
        name: (
            makers.permute(array, 4 if "attn_q" in name else 2) if "attn_q" in name or "attn_k" in name else array,
            0,
        )
        for name, (array, _) in plain.items()
    }
    scaling = None
    if factor is not None:
        factors = llama3_factors(head_dim=16, base=500_000.0, factor=factor)
        stored["rope_freqs.weight"] = (np.array(factors, np.float32), 0)
        scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        scaling["original_max_position_embeddings"] = 8192
    path = make_gguf(tensors=stored, llama__rope__freq_base=500_000.0)
    loaded = load_model(convert_gguf(path, tmp_path / "out"), dequantize=True)
    assert loaded.config.get("rope_scaling") == scaling
    changes = {"vocab_size": vocab, "rope_theta": 500_000.0, "rope_scaling": scaling}
    reference = Model(ModelArgs.from_dict({**makers.llama_config, **changes}))
    reference.load_weights(
        [
            (_reference_name(name), mx.array(array.astype(np.float16).astype(np.float32)))
            for name, (array, _) in plain.items()
        ]
    )
    ids = mx.array([[5, 9, 100, 33, 7, 250] * 10])
    ours, theirs = np.array(loaded.module(ids)), np.array(reference(ids))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def _reference_name(name: str) -> str:
    """Return mlx-lm's name of a GGUF tensor, by a table of this test's own."""
    outer = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in outer:
        return outer[name]
    inner = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{inner[part]}.weight"


def test_unknown_rotary_factors_are_refused(
    bpe: dict[str, Any], make_gguf: MakeGGUF, tmp_path: Path, makers: Any
) -> None:
    """Factors that no known recipe gives are not guessed at."""
    tensors = makers.gguf_tensors(vocab=len(bpe["model"]["vocab"]))
    tensors["rope_freqs.weight"] = (np.linspace(1, 3, 8, dtype=np.float32), 0)
    with pytest.raises(UnsupportedModel, match="recipe"):
        convert_gguf(make_gguf(tensors=tensors), tmp_path / "out")


@pytest.mark.parametrize("stored", [(2, 4, 0.05), (3, 4, 0.03), (8, 8, 0.003)])
def test_quantized_weights_stay_quantized(
    make_gguf: MakeGGUF, tmp_path: Path, makers: Any, stored: tuple[int, int, float]
) -> None:
    """Q4_0, Q4_1 and Q8_0 become MLX's affine triples of the same width, with the same values."""
    import mlx.core as mx

    kind, bits, tolerance = stored
    folder = convert_gguf(make_gguf(kind=kind), tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization"] == {"group_size": 32, "bits": bits}
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    name = "model.layers.1.mlp.down_proj"
    assert weights[f"{name}.weight"].dtype == mx.uint32
    values = mx.dequantize(
        weights[f"{name}.weight"], weights[f"{name}.scales"], weights[f"{name}.biases"], group_size=32, bits=bits
    )
    vocab = weights["model.embed_tokens.weight"].shape[0]
    original = makers.gguf_tensors(vocab=vocab)["blk.1.ffn_down.weight"][0]
    assert np.abs(np.array(values.astype(mx.float32)) - original).max() < tolerance


def test_layers_of_another_width_are_named(
    make_gguf: MakeGGUF, bpe: dict[str, Any], tmp_path: Path, makers: Any
) -> None:
    """A file that mixes widths says so for each layer that differs from the usual one."""
    tensors = makers.gguf_tensors(kind=3, vocab=len(bpe["model"]["vocab"]))
    tensors["token_embd.weight"] = (tensors["token_embd.weight"][0], 8)
    folder = convert_gguf(make_gguf(tensors=tensors), tmp_path / "out")
    quantization = json.loads((folder / "config.json").read_text())["quantization"]
    assert quantization == {"group_size": 32, "bits": 4, "model.embed_tokens": {"group_size": 32, "bits": 8}}
    assert load_model(folder, dequantize=True).dtype == "float32"


def test_tokenizer_equals_the_original(make_gguf: MakeGGUF, bpe: dict[str, Any], tmp_path: Path) -> None:
    """The rebuilt tokenizer gives the ids of the tokenizer that the file was made from."""
    from tokenizers import Tokenizer as FastTokenizer

    original = FastTokenizer.from_str(json.dumps(bpe))
    rebuilt = Tokenizer.from_folder(convert_gguf(make_gguf(), tmp_path / "out"))
    for text in (TEXT, "  two spaces\n\nlines", "<|im_start|>user\nhi<|im_end|>"):
        assert rebuilt.encode(text, special=True) == original.encode(text, add_special_tokens=False).ids
        assert rebuilt.decode(rebuilt.encode(text)) == text


def test_every_word_rule_builds_and_keeps_the_text(make_gguf: MakeGGUF, tmp_path: Path) -> None:
    """Each known rule gives a tokenizer that can be built and loses nothing."""
    for rule in WORD_RULES:
        folder = convert_gguf(make_gguf(tokenizer__ggml__pre=rule), tmp_path / rule)
        tokenizer = Tokenizer.from_folder(folder)
        assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_digits_are_cut_as_the_rule_says(make_gguf: MakeGGUF, tmp_path: Path) -> None:
    """Under the rule of single digits a year is four tokens, under GPT-2's it may be fewer."""
    single = Tokenizer.from_folder(convert_gguf(make_gguf(tokenizer__ggml__pre="smollm"), tmp_path / "a"))
    joined = Tokenizer.from_folder(convert_gguf(make_gguf(tokenizer__ggml__pre="gpt-2"), tmp_path / "b"))
    assert len(single.encode("2024")) == 4
    assert len(joined.encode("2024")) < 4


def test_ends_of_turns_are_collected(make_gguf: MakeGGUF, tmp_path: Path) -> None:
    """The file's own end and every control token known to end a turn stop generation."""
    folder = convert_gguf(make_gguf(), tmp_path / "out")
    assert Tokenizer.from_folder(folder).eos_ids == {0, 2}
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 0]


def test_begin_token_is_put_before_raw_prompts_when_asked(make_gguf: MakeGGUF, tmp_path: Path) -> None:
    """``add_bos_token`` decides whether a raw prompt starts with the begin-of-sequence token."""
    with_bos = Tokenizer.from_folder(convert_gguf(make_gguf(tokenizer__ggml__add_bos_token=True), tmp_path / "a"))
    without = Tokenizer.from_folder(convert_gguf(make_gguf(), tmp_path / "b"))
    assert with_bos.prompt_ids("hello") == [1, *with_bos.encode("hello")]
    assert without.prompt_ids("hello") == without.encode("hello")
    assert with_bos.encode("hello") == without.encode("hello")


# --- refusals ----------------------------------------------------------------------------------------


def test_garbage_behind_the_magic_is_refused(tmp_path: Path) -> None:
    """A file that only begins like GGUF is an error, not an abort."""
    path = tmp_path / "garbage.gguf"
    path.write_bytes(b"GGUF" + bytes(range(256)) * 8)
    with pytest.raises(ModelError, match="GGUF version"):
        read_header(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60) + b"\xff" * 4096)
    with pytest.raises(ModelCorrupt, match="promises"):
        read_header(path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\x03\x04" + b"\0" * 100])
def test_files_that_are_not_gguf_are_refused(tmp_path: Path, content: bytes) -> None:
    """An empty file, a bare magic and another format are each named as what they are."""
    path = tmp_path / "not.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelCorrupt):
        read_header(path)


def test_every_truncation_is_refused(make_gguf: MakeGGUF) -> None:
    """Wherever a file is cut, the header check notices before native code would."""
    path = make_gguf(kind=3)
    whole = path.read_bytes()
    for size in [*range(0, 200, 7), 1000, 5000, len(whole) // 2, len(whole) - 33]:
        path.write_bytes(whole[:size])
        with pytest.raises(ModelCorrupt):
            read_header(path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(4, 6000), st.integers(0, 255)), min_size=1, max_size=6))
def test_flipped_bytes_never_crash_the_reader(make_gguf: MakeGGUF, edits: list[tuple[int, int]]) -> None:
    """A damaged header is read or refused with an error of ours; nothing else escapes."""
    path = make_gguf()
    content = bytearray(path.read_bytes())
    for at, value in edits:
        content[at] = value
    path.write_bytes(bytes(content))
    try:
        header = read_header(path)
    except ModelError:
        return
    assert all(tensor.num_bytes <= len(content) for tensor in header.tensors.values())


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        ({"general__architecture": "mamba"}, UnsupportedModel, "architecture is 'mamba'"),
        ({"general__architecture": None}, UnsupportedModel, "architecture is None"),
        ({"llama__expert_count": 8}, UnsupportedModel, "mixture of experts"),
        ({"llama__block_count": None}, ModelCorrupt, "llama.block_count is missing"),
        ({"llama__block_count": 3}, ModelCorrupt, "tensors are missing"),
        ({"llama__attention__head_count": 3}, ModelCorrupt, "heads"),
        ({"llama__embedding_length": 32}, ModelCorrupt, "is \\("),
        ({"llama__rope__dimension_count": 8}, UnsupportedModel, "8 of 16"),
        ({"llama__rope__scaling__type": "longrope", "llama__rope__scaling__factor": 2.0}, UnsupportedModel, "longrope"),
        ({"tokenizer__ggml__model": "t5"}, UnsupportedModel, "kind 't5'"),
        ({"tokenizer__ggml__model": "llama"}, ModelCorrupt, "scores does not list"),
        ({"tokenizer__ggml__model": None}, TokenizerMissing, "no tokenizer"),
        ({"tokenizer__ggml__pre": "my-own"}, UnsupportedModel, "rule 'my-own'"),
        ({"tokenizer__ggml__pre": None}, UnsupportedModel, "rule None"),
        ({"tokenizer__ggml__merges": None}, TokenizerMissing, "merges"),
        ({"tokenizer__ggml__eos_token_id": 99999}, ModelCorrupt, "99999"),
        ({"tokenizer__ggml__token_type": [1, 2]}, ModelCorrupt, "token_type"),
    ],
)
def test_what_cannot_be_converted_is_named(
    make_gguf: MakeGGUF, tmp_path: Path, keys: dict[str, object], error: type[ModelError], words: str
) -> None:
    """Each kind of unsuitable file has its error, and leaves nothing behind."""
    out = tmp_path / "models" / "tiny"
    with pytest.raises(error, match=words) as caught:
        convert_gguf(make_gguf(**keys), out)
    assert caught.value.exit_code == 3
    assert not out.parent.exists() or not list(out.parent.iterdir())


def test_unread_quantization_names_tensor_and_kind(make_gguf: MakeGGUF) -> None:
    """A K-quant is refused with its name, and with those that are read."""
    path = make_gguf()
    content = path.read_bytes()
    at = content.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
    path.write_bytes(content[:at] + struct.pack("<I", 12) + content[at + 4 :])
    with pytest.raises(
        UnsupportedModel, match=r"'blk\.0\.attn_q.weight' is stored as Q4_K; F32, F16, Q4_0, Q4_1, Q8_0"
    ):
        read_header(path)


def test_missing_tensor_is_named(make_gguf: MakeGGUF, tmp_path: Path) -> None:
    """A file without one of the model's tensors is refused by that tensor's name."""
    with pytest.raises(ModelCorrupt, match=r"blk\.1\.ffn_up\.weight"):
        convert_gguf(make_gguf(drop="blk.1.ffn_up.weight"), tmp_path / "out")


def test_rope_scaling_is_carried_over(make_gguf: MakeGGUF, tmp_path: Path) -> None:
    """A yarn model keeps its scaling, and its context is the extended one."""
    keys = {"type": "yarn", "factor": 4.0, "original_context_length": 256}
    path = make_gguf(**{f"llama__rope__scaling__{key}": value for key, value in keys.items()})
    folder = convert_gguf(path, tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_scaling"] == {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert load_model(folder, dequantize=True).context_tokens == 1024


def test_conversion_replaces_an_older_folder_whole(make_gguf: MakeGGUF, tmp_path: Path) -> None:
    """Converting again leaves the new files alone, nothing of the old folder."""
    out = tmp_path / "models" / "tiny"
    out.mkdir(parents=True)
    (out / "stale.txt").write_text("old")
    convert_gguf(make_gguf(), out)
    assert not (out / "stale.txt").exists()
    assert [path.name for path in out.parent.iterdir()] == ["tiny"]

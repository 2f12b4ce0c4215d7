"""Tiny models for the tests: a byte-level BPE tokenizer, an MLX folder and GGUF files, all made here."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Json = dict[str, Any]
Array = npt.NDArray[Any]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CORPUS = [
    "The capital of France is Paris.",
    "hello world, hello there",
    "2024 and 1999",
    "ěščř 你好 👩‍👩‍👧 END! END",
] * 4


def train_bpe(*, controls: Sequence[str] = CONTROLS, plain_added: Sequence[str] = ()) -> Json:
    """Train a byte-level BPE tokenizer of about 400 tokens and return its JSON."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(controls),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if plain_added:
        tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in plain_added])
    document: Json = json.loads(tokenizer.to_str())
    return document


@pytest.fixture(scope="session")
def bpe() -> Json:
    """Return the JSON of a tiny byte-level BPE tokenizer."""
    return train_bpe()


def write_json(path: Path, document: object) -> None:
    """Write a JSON file as UTF-8."""
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


LLAMA_CONFIG: Json = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": 400,
    "eos_token_id": 2,
}


@pytest.fixture(scope="session")
def llama_config() -> Json:
    """Return the config of the tiny llama model."""
    return dict(LLAMA_CONFIG)


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory, bpe: Json) -> Path:
    """Return a complete folder of a tiny llama model with random weights; treat it as read-only."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models.llama import Model, ModelArgs

    folder = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    folder.mkdir()
    mx.random.seed(0)
    model = Model(ModelArgs.from_dict(LLAMA_CONFIG))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    write_json(folder / "config.json", LLAMA_CONFIG)
    write_json(folder / "tokenizer.json", bpe)
    write_json(
        folder / "tokenizer_config.json",
        {"chat_template": CHATML, "eos_token": "<|im_end|>", "bos_token": "<|im_start|>"},
    )
    return folder


@pytest.fixture
def tiny(tiny_source: Path, tmp_path: Path) -> Path:
    """Return a copy of the tiny model's folder that a test may damage."""
    import shutil

    return Path(shutil.copytree(tiny_source, tmp_path / "tiny-llama"))


# --- GGUF --------------------------------------------------------------------------------------------


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: object) -> bytes:
    """Encode a metadata value: bool, int (u32), float (f32), text, or a list of ints, floats or texts."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    assert isinstance(value, list)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    if value and isinstance(value[0], float):
        return struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def quantize(array: Array, kind: int) -> bytes:
    """Store a float array in the GGUF type ``kind``: 0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 8 Q8_0."""
    if kind in (0, 1):
        return array.astype(np.float32 if kind == 0 else np.float16).tobytes()
    blocks = array.astype(np.float32).reshape(-1, 32)
    if kind == 8:
        scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
        codes = np.round(blocks / np.maximum(scale.astype(np.float32), 1e-8)).astype(np.int8)
        return b"".join(s.tobytes() + c.tobytes() for s, c in zip(scale, codes, strict=True))
    if kind == 2:
        low = np.full((len(blocks), 1), 0.0, np.float32)
        scale = (np.abs(blocks).max(axis=1, keepdims=True) / 7).astype(np.float16)
        codes = np.clip(np.round(blocks / np.maximum(scale.astype(np.float32), 1e-8)) + 8, 0, 15).astype(np.uint8)
    else:
        low = blocks.min(axis=1, keepdims=True).astype(np.float16)
        scale = ((blocks.max(axis=1, keepdims=True) - low) / 15).astype(np.float16)
        codes = np.clip(np.round((blocks - low) / np.maximum(scale.astype(np.float32), 1e-8)), 0, 15).astype(np.uint8)
    packed = codes[:, :16] | (codes[:, 16:] << 4)
    heads = [
        s.tobytes() + (b"" if kind == 2 else m.astype(np.float16).tobytes()) for s, m in zip(scale, low, strict=True)
    ]
    return b"".join(head + row.tobytes() for head, row in zip(heads, packed, strict=True))


def write_gguf(path: Path, metadata: Mapping[str, object], tensors: Mapping[str, tuple[Array, int]]) -> None:
    """Write a GGUF file, version 3: ``tensors`` maps a name to an array and its type."""
    keys = b"".join(_text(key) + _value(value) for key, value in metadata.items())
    entries, data = b"", b""
    for name, (array, kind) in tensors.items():
        shape = array.shape[::-1]
        entries += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        data += quantize(array, kind)
        data += b"\0" * (-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + keys + entries
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)


def permute(weight: Array, num_heads: int) -> Array:
    """Order the rows of q or k as llama-type GGUF files do: rotary pairs side by side."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def gguf_metadata(bpe: Json, **changes: object) -> dict[str, object]:
    """Return the metadata of a tiny llama-type GGUF file; ``changes`` to None remove a key."""
    vocab = bpe["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["model"]["merges"]]
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 256,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 128,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": 16,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in CONTROLS else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def gguf_tensors(*, kind: int = 0, vocab: int = 400) -> dict[str, tuple[Array, int]]:
    """Return the random tensors of the tiny llama, norms as F32 and matrices in ``kind``."""
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> tuple[Array, int]:
        return (random.standard_normal((rows, columns)) * 0.1).astype(np.float32), kind

    def norm() -> tuple[Array, int]:
        return np.ones(64, np.float32), 0

    tensors = {"token_embd.weight": matrix(vocab, 64), "output_norm.weight": norm()}
    for layer in range(2):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": norm(),
            f"blk.{layer}.ffn_norm.weight": norm(),
            f"blk.{layer}.attn_q.weight": matrix(64, 64),
            f"blk.{layer}.attn_k.weight": matrix(32, 64),
            f"blk.{layer}.attn_v.weight": matrix(32, 64),
            f"blk.{layer}.attn_output.weight": matrix(64, 64),
            f"blk.{layer}.ffn_gate.weight": matrix(128, 64),
            f"blk.{layer}.ffn_up.weight": matrix(128, 64),
            f"blk.{layer}.ffn_down.weight": matrix(64, 128),
        }
    return tensors


@dataclass(frozen=True)
class Makers:
    """The functions above, for tests that need a variation of their own."""

    llama_config: Json
    train_bpe: Callable[..., Json] = train_bpe
    gguf_tensors: Callable[..., dict[str, tuple[Array, int]]] = gguf_tensors
    permute: Callable[[Array, int], Array] = permute


@pytest.fixture(scope="session")
def makers() -> Makers:
    """Return the functions that make tiny models."""
    return Makers(dict(LLAMA_CONFIG))


MakeGGUF = Callable[..., Path]


@pytest.fixture
def make_gguf(tmp_path: Path, bpe: Json) -> MakeGGUF:
    """Return a function that writes a tiny GGUF file: ``make_gguf(kind=3, llama__block_count=2)``."""

    def make(
        *,
        kind: int = 0,
        drop: str | None = None,
        tensors: Mapping[str, tuple[Array, int]] | None = None,
        **keys: object,
    ) -> Path:
        chosen = dict(tensors or gguf_tensors(kind=kind, vocab=len(bpe["model"]["vocab"])))
        if drop is not None:
            del chosen[drop]
        path = tmp_path / "tiny.gguf"
        write_gguf(path, gguf_metadata(bpe, **keys), chosen)
        return path

    return make

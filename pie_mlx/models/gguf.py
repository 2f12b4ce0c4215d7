"""Convert a GGUF file, once, into a folder that MLX loads.

The weights keep their quantization: Q4_0, Q4_1 and Q8_0 blocks are MLX's affine groups of 32 under
another name. Llama-type files store the rows of q and k in the order of interleaved rotary pairs, so
those models run with ``rope_traditional`` and nothing is permuted back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pie_mlx.errors import ModelCorrupt, UnsupportedModel
from pie_mlx.models.gguf_header import GGUFHeader, Value, read_header
from pie_mlx.models.gguf_kinds import KINDS, GGUFKind, LayerSizes
from pie_mlx.models.gguf_rope import ROPE_FACTORS, rope_scaling
from pie_mlx.models.gguf_tokenizer import RebuiltTokenizer, rebuild_tokenizer
from pie_mlx.models.install import installing

if TYPE_CHECKING:
    import mlx.core as mx

Json = dict[str, Any]

ARCHITECTURES = tuple(KINDS)
GROUP_SIZE = 32
_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert_gguf(source: Path, folder: Path) -> Path:
    """Convert the GGUF file ``source`` into the MLX folder ``folder``, which appears whole or not at all.

    Raises:
        ModelCorrupt: the file is damaged, or its weights contradict its metadata.
        UnsupportedModel: its architecture, quantization or tokenizer is not one that is read here.
        TokenizerMissing: the file holds no tokenizer.
        DiskFull: the folder does not fit on the disk.
    """
    header = read_header(source)
    shape = _ModelShape(header)
    tokenizer = rebuild_tokenizer(header)
    weights = _load_weights(header, shape.kind)
    config = _config(shape, tokenizer, weights)
    with installing(folder) as work:
        _write(work, config, tokenizer, weights)
    return folder


class _ModelShape:
    """The hyper-parameters of a file, checked."""

    def __init__(self, header: GGUFHeader) -> None:
        self.header = header
        self._model = str(header.path)
        architecture = header.metadata.get("general.architecture")
        if not isinstance(architecture, str) or architecture not in KINDS:
            known = ", ".join(ARCHITECTURES)
            raise UnsupportedModel(
                self._model,
                f"its architecture is {architecture!r}; from GGUF only {known} is converted",
                "choose the MLX form of this model (pie-mlx models)",
            )
        self.architecture = architecture
        self.kind = KINDS[architecture]
        if self.number("expert_count", default=0):
            raise UnsupportedModel(self._model, "it is a mixture of experts, which is not converted from GGUF")
        self.num_layers = self.number("block_count")
        self.hidden_size = self.number("embedding_length")
        self.num_heads = self.number("attention.head_count")
        self.num_kv_heads = self.number("attention.head_count_kv", default=self.num_heads)
        self.head_dim = self.number("attention.key_length", default=self.hidden_size // max(self.num_heads, 1))
        self.vocab_size = self._vocab_size()
        self._check()

    def number(self, name: str, *, default: int | None = None) -> int:
        """Return the whole number ``<architecture>.<name>``."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ModelCorrupt(self._model, f"{self.architecture}.{name} is {value!r}, not a whole number")
        return value

    def real(self, name: str, *, default: float | None = None) -> float:
        """Return the number ``<architecture>.<name>``."""
        value = self._get(name, default)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ModelCorrupt(self._model, f"{self.architecture}.{name} is {value!r}, not a number")
        return float(value)

    def _get(self, name: str, default: float | None) -> Value:
        value = self.header.metadata.get(f"{self.architecture}.{name}", default)
        if value is None:
            raise ModelCorrupt(self._model, f"{self.architecture}.{name} is missing")
        return value

    def _vocab_size(self) -> int:
        entry = self.header.tensors.get("token_embd.weight")
        if entry is None or len(entry.shape) != 2:
            raise ModelCorrupt(self._model, "the tensor 'token_embd.weight' is missing or not a matrix")
        return entry.shape[1]

    def _check(self) -> None:
        """Refuse a missing tensor, a strange one, and a shape that contradicts the metadata."""
        if not (self.num_layers and self.num_heads and self.num_kv_heads) or self.num_heads % self.num_kv_heads:
            raise ModelCorrupt(
                self._model,
                f"{self.num_layers} layers with {self.num_heads} heads and {self.num_kv_heads} KV heads are no model",
            )
        expected = self._expected_tensors()
        optional = {"output.weight", ROPE_FACTORS}
        missing = sorted(expected.keys() - self.header.tensors.keys() - optional)
        if missing:
            raise ModelCorrupt(self._model, f"{len(missing)} tensors are missing, the first is {missing[0]!r}")
        for name, entry in self.header.tensors.items():
            if name not in expected and name != ROPE_FACTORS:
                raise UnsupportedModel(
                    self._model, f"the tensor {name!r} has no place in a plain {self.architecture} model"
                )
            if name in expected and entry.shape != expected[name]:
                raise ModelCorrupt(self._model, f"the tensor {name!r} is {entry.shape}, not {expected[name]}")
        if self.kind.fixed_head_dim and self.head_dim * self.num_heads != self.hidden_size:
            raise UnsupportedModel(
                self._model, f"its heads are {self.head_dim} wide, which MLX's {self.architecture} does not provide for"
            )

    def _expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Return every tensor's shape, fastest dimension first, as the metadata asks for it."""
        hidden = self.hidden_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer = self.kind.layer(LayerSizes(hidden, self.number("feed_forward_length"), queries, keys, self.head_dim))
        shapes = {f"blk.{index}.{name}": shape for index in range(self.num_layers) for name, shape in layer.items()}
        table = (hidden, self.vocab_size)
        outer = {} if self.kind.always_tied else {"output.weight": table}
        return {**shapes, **outer, "token_embd.weight": table, "output_norm.weight": (hidden,)}


def _load_weights(header: GGUFHeader, kind: GGUFKind) -> dict[str, mx.array]:
    """Read the checked file's weights, under MLX's names; floats become float16."""
    import mlx.core as mx

    try:
        loaded = mx.load(str(header.path), format="gguf")
    except (RuntimeError, ValueError) as error:
        raise ModelCorrupt(str(header.path), f"MLX cannot read the weights: {error}") from error
    if not isinstance(loaded, dict):
        raise ModelCorrupt(str(header.path), "MLX found no weights in the file")
    weights: dict[str, mx.array] = {}
    for name, array in loaded.items():
        if name == ROPE_FACTORS:
            continue
        is_norm = name.endswith("norm.weight")
        kept = array - kind.norm_offset if is_norm and kind.norm_offset else array
        weights[_mlx_name(name, kind)] = kept.astype(mx.float16) if kept.dtype in (mx.float32, mx.bfloat16) else kept
    return weights


def _mlx_name(name: str, kind: GGUFKind) -> str:
    """Return MLX's name of a GGUF array: ``blk.3.attn_q.scales`` is layer 3's ``q_proj.scales``."""
    stem, _, part = name.rpartition(".")
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if match is None:
        return f"{_OUTER_NAMES[stem]}.{part}"
    return f"model.layers.{match[1]}.{kind.names[match[2]]}.{part}"


def _config(shape: _ModelShape, tokenizer: RebuiltTokenizer, weights: Mapping[str, Any]) -> Json:
    """Return ``config.json``."""
    if tokenizer.vocab_size > shape.vocab_size:
        raise ModelCorrupt(
            str(shape.header.path),
            f"the tokenizer has {tokenizer.vocab_size} tokens, the embedding {shape.vocab_size}",
        )
    base = shape.real("rope.freq_base", default=10000.0)
    config: Json = {
        "model_type": shape.kind.model_type,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.number("feed_forward_length"),
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.number("context_length"),
        "rms_norm_eps": shape.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": base,
        **shape.kind.config,
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "vocab_size": shape.vocab_size,
        "torch_dtype": "float16",
        "eos_token_id": list(tokenizer.eos_ids),
    }
    if tokenizer.bos_id is not None:
        config["bos_token_id"] = tokenizer.bos_id
    rotated = shape.number("rope.dimension_count", default=shape.head_dim)
    if shape.kind.partial_rotary:
        config["partial_rotary_factor"] = rotated / shape.head_dim
    elif rotated != shape.head_dim:
        raise UnsupportedModel(str(shape.header.path), f"only {rotated} of {shape.head_dim} dimensions are rotated")
    scaling = rope_scaling(shape.header, shape.architecture, head_dim=shape.head_dim, base=base)
    if scaling is not None:
        config["rope_scaling"] = scaling
    quantization = _quantization(shape.header, shape.kind)
    if quantization is not None:
        config["quantization"] = quantization
    return config


def _quantization(header: GGUFHeader, kind: GGUFKind) -> Json | None:
    """Return the ``quantization`` of the config: the commonest width, and each layer that differs."""
    widths = {
        _mlx_name(name, kind).removesuffix(".weight"): _BITS[entry.kind.name]
        for name, entry in header.tensors.items()
        if entry.kind.name in _BITS
    }
    if not widths:
        return None
    counts = list(widths.values())
    usual = max(set(counts), key=counts.count)
    others: Json = {
        name: {"group_size": GROUP_SIZE, "bits": bits} for name, bits in sorted(widths.items()) if bits != usual
    }
    return {"group_size": GROUP_SIZE, "bits": usual, **others}


def _write(work: Path, config: Json, tokenizer: RebuiltTokenizer, weights: Mapping[str, mx.array]) -> None:
    """Write the five files of an MLX model into ``work``."""
    import mlx.core as mx

    mx.save_safetensors(str(work / "model.safetensors"), dict(weights), metadata={"format": "mlx"})
    generation: Json = {"eos_token_id": list(tokenizer.eos_ids)}
    if tokenizer.bos_id is not None:
        generation["bos_token_id"] = tokenizer.bos_id
    documents = {
        "config.json": config,
        "generation_config.json": generation,
        "tokenizer.json": tokenizer.tokenizer,
        "tokenizer_config.json": tokenizer.tokenizer_config,
    }
    for name, document in documents.items():
        text = json.dumps(document, ensure_ascii=False, indent=None if name == "tokenizer.json" else 2)
        (work / name).write_text(text, encoding="utf-8")

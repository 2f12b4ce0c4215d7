"""Read and check the files of a model folder, before any native code or library sees them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pie_mlx.errors import ModelCorrupt, ModelNotFound, TokenizerMissing, UnsupportedModel

Json = dict[str, Any]

_MAX_HEADER_BYTES = 100_000_000
_SAMPLE_BYTES = 65_536
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tiktoken.model")
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length", "max_seq_len")
_GEMMA3_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
}
"""What Gemma 3's own configs leave out where it equals the reference implementation's default."""
_EXTENDING = ("yarn", "deepseek_yarn", "telechat3-yarn", "longrope", "su")


def read_json(path: Path) -> Json:
    """Read a JSON object, UTF-8 whatever the locale says, with or without a byte-order mark.

    Raises:
        ModelCorrupt: the file cannot be read, or is not a JSON object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ModelCorrupt(path.parent.name, f"{path.name} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise ModelCorrupt(path.parent.name, f"{path.name} holds {type(document).__name__}, not a JSON object")
    return document


def read_optional_json(path: Path) -> Json:
    """Read a JSON object, or return an empty one where there is no such file."""
    return read_json(path) if path.is_file() else {}


def no_folder(path: Path) -> str:
    """Say why ``path`` is no model's folder."""
    return f"{path} is a file, but not a .gguf file" if path.is_file() else f"there is no folder {path}"


def read_config(folder: Path) -> Json:
    """Read ``config.json`` and check that it names a model type and asks for no code of its own.

    Raises:
        ModelNotFound: there is no such folder.
        ModelCorrupt: the file is missing, is not JSON, or names no model type.
        UnsupportedModel: the model brings Python code that would have to run.
    """
    if not folder.is_dir():
        raise ModelNotFound(folder.name, no_folder(folder), "pie-mlx models")
    path = folder / "config.json"
    if not path.is_file():
        raise ModelCorrupt(folder.name or str(folder), f"config.json is missing in {folder}")
    config = read_json(path)
    if not isinstance(config.get("model_type"), str):
        raise ModelCorrupt(folder.name, "config.json names no model_type")
    code = config.get("model_file")
    if code is not None:
        raise UnsupportedModel(folder.name, f"it asks to run Python code of its own ({code!r}), which is never done")
    return config


def check_weights(folder: Path) -> list[Path]:
    """Check every safetensors file of the model against its own header; return them in order.

    Raises:
        ModelCorrupt: no weights, a part that the index names is missing, or a file is truncated.
    """
    files = sorted(folder.glob("model*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        parts = read_json(index).get("weight_map")
        if not isinstance(parts, dict):
            raise ModelCorrupt(folder.name, f"{index.name} has no weight_map")
        missing = sorted(set(parts.values()) - {path.name for path in files})
        if missing:
            raise ModelCorrupt(folder.name, f"{len(missing)} weight files are missing, the first is {missing[0]}")
    if not files:
        raise ModelCorrupt(folder.name, f"no weights: there is no model*.safetensors in {folder}")
    for path in files:
        _check_safetensors(path)
    return files


def _check_safetensors(path: Path) -> None:
    """Refuse a file whose length is not what its header promises."""
    model, size = path.parent.name, path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise ModelCorrupt(model, f"{path.name} is truncated: {size} bytes do not hold its header")
        raw = file.read(length)
    try:
        header = json.loads(raw)
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ModelCorrupt(model, f"the header of {path.name} is damaged: {error}") from error
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise ModelCorrupt(model, f"{path.name} has {size} bytes, but its header promises {expected}")


def require_tokenizer(folder: Path) -> Path:
    """Return the tokenizer's file.

    Raises:
        TokenizerMissing: none of the known files is there; names them and the folder.
    """
    for name in _TOKENIZER_FILES:
        if (folder / name).is_file():
            return folder / name
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return folder / "vocab.json"
    names = ", ".join(_TOKENIZER_FILES)
    raise TokenizerMissing(folder.name, f"no tokenizer: none of {names}, or vocab.json with merges.txt, in {folder}")


def fingerprint(folder: Path, weights: Sequence[Path]) -> str:
    """Return the identity of config, tokenizer and weights, as 32 hex digits.

    Of each weight file the header, the size and three samples count: reading gigabytes at each start
    would cost seconds, and a file with another content under the same header differs everywhere.
    """
    digest = hashlib.sha256()
    for name in ("config.json", *_TOKENIZER_FILES, "tokenizer_config.json"):
        path = folder / name
        if path.is_file():
            digest.update(name.encode() + path.read_bytes())
    for path in weights:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            for start in (0, size // 2, max(size - _SAMPLE_BYTES, 0)):
                file.seek(start)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config that describes the language model (nested in multimodal ones)."""
    inner = config.get("text_config")
    flat = {**config, **inner} if isinstance(inner, dict) else config
    return {**_GEMMA3_DEFAULTS, **flat} if str(flat.get("model_type")).startswith("gemma3") else flat


def context_tokens(model: str, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> int:
    """Return the longest sequence the model is made for, rotary scaling included.

    Where the scaling names the length it starts from (yarn, longrope), the product with its factor
    counts if it is more than the config's own figure; llama3 and linear scaling are already in it.

    Raises:
        ModelCorrupt: nothing names a length.
    """
    flat = text_config(config)
    named = [flat[key] for key in _CONTEXT_KEYS if isinstance(flat.get(key), int) and flat[key] > 0]
    if not named:
        named = [size for size in [tokenizer_config.get("model_max_length")] if _is_length(size)]
    if not named:
        raise ModelCorrupt(model, "config.json names no context length (max_position_embeddings)")
    return max(int(named[0]), _scaled_length(flat))


def _is_length(value: object) -> bool:
    """Whether a tokenizer's ``model_max_length`` is a length, not the placeholder for "none"."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 30


def _scaled_length(config: Mapping[str, Any]) -> int:
    """Return the length the rotary scaling extends to, 0 where it does not say."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, dict):
        return 0
    kind = scaling.get("rope_type", scaling.get("type"))
    factor = scaling.get("factor")
    original = scaling.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
    if kind not in _EXTENDING or not isinstance(factor, int | float) or not isinstance(original, int):
        return 0
    return math.floor(factor * original)


def eos_ids(*configs: Mapping[str, Any]) -> frozenset[int]:
    """Return the union of the ``eos_token_id`` (a number or a list) of several configs."""
    found: set[int] = set()
    for config in configs:
        value = config.get("eos_token_id")
        items = value if isinstance(value, list) else [value]
        found.update(item for item in items if isinstance(item, int) and not isinstance(item, bool))
    return frozenset(found)

"""Opening a model folder: what is wrong with it is said in one sentence, each fault by its own error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pie_mlx.errors import InvalidParameter, ModelCorrupt, ModelError, ModelNotFound, TokenizerMissing, UnsupportedModel
from pie_mlx.models.folder import context_tokens, eos_ids
from pie_mlx.models.load import check_model_type, load_model, supported_model_types

Damage = Callable[[Path], object]


def _edit(name: str, **changes: object) -> Damage:
    """Return a damage that changes keys of a JSON file; None removes one."""

    def damage(folder: Path) -> None:
        path = folder / name
        document = json.loads(path.read_text()) if path.exists() else {}
        document |= changes
        path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))

    return damage


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _garbage(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x05" + b"\0" * 7 + b"hello")


DAMAGES: dict[str, tuple[Damage, type[ModelError], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), ModelCorrupt, "config.json is missing"),
    "config not JSON": (lambda f: (f / "config.json").write_text("{"), ModelCorrupt, "cannot be read as JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), ModelCorrupt, "not a JSON object"),
    "no model type": (_edit("config.json", model_type=None), ModelCorrupt, "no model_type"),
    "unknown model type": (_edit("config.json", model_type="lama"), UnsupportedModel, "'lama'.*llama"),
    "missing field": (_edit("config.json", hidden_size=None), ModelCorrupt, "not complete"),
    "own code": (_edit("config.json", model_file="m.py"), UnsupportedModel, "Python code"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ModelCorrupt, "no weights"),
    "truncated weights": (_truncate, ModelCorrupt, "promises"),
    "empty weights": (lambda f: (f / "model.safetensors").write_bytes(b""), ModelCorrupt, "truncated"),
    "garbage weights": (_garbage, ModelCorrupt, "damaged"),
    "missing part": (
        _edit("model.safetensors.index.json", weight_map={"a": "model-00002-of-00002.safetensors"}),
        ModelCorrupt,
        "model-00002-of-00002",
    ),
    "weights of another shape": (_edit("config.json", hidden_size=128), ModelCorrupt, "do not fit"),
    "more layers than weights": (_edit("config.json", num_hidden_layers=3), ModelCorrupt, "do not fit"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), TokenizerMissing, "tokenizer.json"),
    "tokenizer not JSON": (lambda f: (f / "tokenizer.json").write_text("nope"), ModelCorrupt, "tokenizer.json cannot"),
    "tokenizer of no kind": (_edit("tokenizer.json", model={"type": "New"}), UnsupportedModel, "cannot be read"),
    "unknown decoder": (_edit("tokenizer.json", decoder={"type": "CTC"}, pre_tokenizer=None), UnsupportedModel, "CTC"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_has_its_own_error(tiny: Path, name: str) -> None:
    """A damaged folder is refused with exit code 3 and one sentence that names the fault."""
    damage, error, words = DAMAGES[name]
    damage(tiny)
    with pytest.raises(error, match=words) as caught:
        load_model(tiny, dequantize=True)
    assert caught.value.exit_code == 3
    assert "\n" not in caught.value.message


def test_missing_folder_is_not_found(tmp_path: Path) -> None:
    """A folder that is not there is a missing model."""
    with pytest.raises(ModelNotFound, match="no folder"):
        load_model(tmp_path / "nowhere")


def test_unknown_dtype_is_refused(tiny: Path) -> None:
    """A dtype has a fixed set of names."""
    with pytest.raises(InvalidParameter, match="bfloat16"):
        load_model(tiny, dtype="int3")


def test_facts_of_a_loaded_model(tiny: Path) -> None:
    """A loaded model carries its context, ends and precision, and computes finite logits."""
    import mlx.core as mx

    loaded = load_model(tiny)
    assert (loaded.context_tokens, loaded.eos_ids, loaded.dtype) == (256, frozenset({2}), "float32")
    assert loaded.tokenizer.eos_ids == {2}
    assert np.isfinite(np.array(loaded.module(mx.array([[1, 2, 3]])))).all()


def test_dequantizing_keeps_the_numbers(tiny: Path, tmp_path: Path) -> None:
    """A quantized model and its float32 form give nearly equal logits; no 16-bit or packed weight stays."""
    import mlx.core as mx
    from mlx import nn
    from mlx.utils import tree_flatten

    module = load_model(tiny).module
    nn.quantize(module, group_size=32, bits=4)
    weights: dict[str, mx.array] = dict(tree_flatten(module.parameters()))
    half = {name: a.astype(mx.float16) if a.dtype == mx.float32 else a for name, a in weights.items()}
    mx.save_safetensors(str(tiny / "model.safetensors"), half, {"format": "mlx"})
    _edit("config.json", quantization={"group_size": 32, "bits": 4})(tiny)
    packed, plain = load_model(tiny), load_model(tiny, dequantize=True)
    ids = mx.array([[1, 2, 3, 4]])
    np.testing.assert_allclose(
        np.array(packed.module(ids).astype(mx.float32)), np.array(plain.module(ids)), rtol=0.05, atol=0.05
    )
    arrays: dict[str, mx.array] = dict(tree_flatten(plain.module.parameters()))
    assert {array.dtype for array in arrays.values()} == {mx.float32}
    assert packed.dtype == "float16"
    assert packed.fingerprint != plain.fingerprint


def test_dtype_casts_the_floats(tiny: Path) -> None:
    """A wished dtype is the dtype of the weights."""
    assert load_model(tiny, dtype="bfloat16").dtype == "bfloat16"


def test_fingerprint_follows_weights_and_tokenizer(tiny: Path) -> None:
    """The same files have the same fingerprint; one changed byte of weights or tokenizer another."""
    first = load_model(tiny).fingerprint
    assert load_model(tiny).fingerprint == first
    weights = tiny / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    second = load_model(tiny).fingerprint
    _edit("tokenizer_config.json", note="x")(tiny)
    third = load_model(tiny).fingerprint
    assert len({first, second, third}) == 3


def test_ends_are_the_union_of_all_files(tiny: Path) -> None:
    """Any id that config, generation config or tokenizer names ends the text."""
    _edit("config.json", eos_token_id=[3, 5])(tiny)
    _edit("generation_config.json", eos_token_id=7)(tiny)
    loaded = load_model(tiny)
    assert loaded.eos_ids == {2, 3, 5, 7}
    assert loaded.tokenizer.eos_ids == {2, 3, 5, 7}


def test_end_ids_of_wrong_types_are_no_ids() -> None:
    """Null, text and booleans name no token."""
    assert eos_ids({"eos_token_id": None}, {"eos_token_id": [True, "x", 4]}, {}) == {4}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 777}}, 777),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
          "original_max_position_embeddings": 8192}}, 131072),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 32768}}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
          "original_max_position_embeddings": 4096}}, 131072),
        ({"max_position_embeddings": 16384, "rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        ({"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "yarn", "factor": 2.0,
          "original_max_position_embeddings": 2048}}, 4096),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, 131072),
    ],
)  # fmt: skip
def test_context_respects_rope_scaling(config: dict[str, Any], expected: int) -> None:
    """The context is the length the model reaches with its scaling, counted once."""
    assert context_tokens("m", config, {}) == expected


def test_context_falls_back_to_the_tokenizer_and_then_refuses() -> None:
    """Without a length in the config the tokenizer's counts, but not its placeholder for "none"."""
    assert context_tokens("m", {}, {"model_max_length": 2048}) == 2048
    with pytest.raises(ModelCorrupt, match="no context length"):
        context_tokens("m", {}, {"model_max_length": 10**30})


def test_known_types_match_mlx_lm() -> None:
    """Every type that mlx-lm runs under another name is known here, and its modules are found by name."""
    from mlx_lm.utils import MODEL_REMAPPING

    for name in (*MODEL_REMAPPING, "llama", "qwen3", "gemma3", "phi3", "gpt_oss", "qwen3_moe"):
        check_model_type("m", {"model_type": name})
    assert not {"base", "cache", "rope_utils", "switch_layers"} & supported_model_types()


def test_files_are_utf8_whatever_the_locale(tiny: Path) -> None:
    """In the C locale, with a byte-order mark before the JSON, the tokenizer is read as UTF-8."""
    for name in ("config.json", "tokenizer_config.json"):
        (tiny / name).write_bytes(b"\xef\xbb\xbf" + (tiny / name).read_bytes())
    code = (
        "import sys; from pathlib import Path; from pie_mlx.models.tokenizer import load_tokenizer\n"
        "t = load_tokenizer(Path(sys.argv[1])); x = '\\u011b\\u0161 \\u4f60'\n"
        "assert t.decode(t.encode(x)) == x and t.has_chat_template\n"
        "assert 'transformers' not in sys.modules and 'mlx' not in sys.modules"
    )
    environment = {**os.environ, "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run([sys.executable, "-c", code, str(tiny)], env=environment, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()

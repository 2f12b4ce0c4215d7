"""Low-rank adapters: loaded as mlx-lm loads them, with a fingerprint of their own, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model as load_mlx_model

from pie_mlx.errors import AdapterInvalid
from pie_mlx.models.load import load_model

_RANK = {"rank": 4, "scale": 10.0, "dropout": 0.3, "keys": ["self_attn.q_proj", "mlp.up_proj"]}


@pytest.fixture
def adapter(tiny_source: Path, tmp_path: Path) -> Path:
    """Return an adapter for the tiny model, with random weights that are not zero."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    module, _ = load_mlx_model(tiny_source)
    linear_to_lora_layers(module, 2, _RANK)
    mx.random.seed(3)
    leaves: dict[str, mx.array] = dict(tree_flatten(module.parameters()))
    weights = {name: mx.random.normal(leaf.shape) * 0.2 for name, leaf in leaves.items() if "lora_" in name}
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": _RANK}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_the_logits_are_those_of_mlx_lm(tiny_source: Path, adapter: Path) -> None:
    """With its adapter the model says what mlx-lm says with it, and not what it says without."""
    tokens = mx.array([[3, 7, 9]])
    expected, _ = load_mlx_model(tiny_source)
    from mlx_lm.tuner.utils import load_adapters

    expected = load_adapters(expected, str(adapter))
    expected.eval()
    adapted = load_model(tiny_source, adapter=adapter)
    plain = load_model(tiny_source)
    got = np.array(adapted.module(tokens))
    assert np.allclose(got, np.array(expected(tokens)), atol=1e-5)
    assert np.abs(got - np.array(plain.module(tokens))).max() > 0.01
    assert adapted.fingerprint != plain.fingerprint


def _drop(name: str, folder: Path) -> None:
    """Drop a tensor whose name ends so."""
    path = folder / "adapters.safetensors"
    weights = mx.load(str(path))
    assert isinstance(weights, dict)
    first = next(key for key in weights if key.endswith(name))
    kept = {key: np.array(value) for key, value in weights.items() if key != first}
    path.unlink()
    mx.save_safetensors(str(path), {key: mx.array(value) for key, value in kept.items()})


def test_what_is_wrong_is_named(tiny_source: Path, adapter: Path, tmp_path: Path) -> None:
    """Each fault has its sentence, and none is passed over."""
    with pytest.raises(AdapterInvalid, match="no such adapter folder"):
        load_model(tiny_source, adapter=tmp_path / "nowhere")
    _drop("lora_a", adapter)
    with pytest.raises(AdapterInvalid, match="lacks 1 tensors"):
        load_model(tiny_source, adapter=adapter)
    mx.save_safetensors(str(adapter / "adapters.safetensors"), {"model.x.lora_a": mx.zeros((2, 2))})
    with pytest.raises(AdapterInvalid, match=r"does not fit this model.*model\.x\.lora_a"):
        load_model(tiny_source, adapter=adapter)
    (adapter / "adapter_config.json").write_text("{")
    with pytest.raises(AdapterInvalid, match="not JSON"):
        load_model(tiny_source, adapter=adapter)
    (adapter / "adapter_config.json").write_text('{"fine_tune_type": "prefix"}')
    with pytest.raises(AdapterInvalid, match="none of lora, dora, full"):
        load_model(tiny_source, adapter=adapter)
    (adapter / "adapters.safetensors").rename(adapter / "adapter_model.safetensors")
    with pytest.raises(AdapterInvalid, match="PEFT"):
        load_model(tiny_source, adapter=adapter)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(AdapterInvalid, match=r"no adapters\.safetensors"):
        load_model(tiny_source, adapter=adapter)

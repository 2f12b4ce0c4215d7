"""Low-rank adapters (LoRA, DoRA) that mlx-lm trained: checked, then put over a loaded model's layers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pie_mlx.errors import AdapterInvalid

if TYPE_CHECKING:
    from mlx import nn

_CONFIG, _WEIGHTS = "adapter_config.json", "adapters.safetensors"
_LEAVES = frozenset({"lora_a", "lora_b", "m"})
_KINDS = ("lora", "dora", "full")


def check_adapter(folder: Path) -> str:
    """Check an adapter's files; return its fingerprint, 16 hex digits, of config and weights.

    Raises:
        AdapterInvalid: there is no such folder, or a file is missing or is not what its name says.
    """
    if not folder.is_dir():
        raise AdapterInvalid(str(folder), "there is no such adapter folder", "name the folder that mlx_lm.lora wrote")
    if not (folder / _WEIGHTS).is_file() and (folder / "adapter_model.safetensors").is_file():
        raise AdapterInvalid(folder.name, "the adapter is in PEFT's form", f"convert it to mlx-lm's {_WEIGHTS}")
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            raise AdapterInvalid(folder.name, f"the adapter has no {name} (looked in {folder})")
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise AdapterInvalid(folder.name, f"the adapter's {_CONFIG} is not JSON: {error}") from error
    kind = config.get("fine_tune_type", "lora") if isinstance(config, dict) else None
    if kind not in _KINDS:
        raise AdapterInvalid(folder.name, f"the adapter's {_CONFIG} is for none of {', '.join(_KINDS)}")
    digest = hashlib.sha256((folder / _CONFIG).read_bytes())
    digest.update((folder / _WEIGHTS).read_bytes())
    return digest.hexdigest()[:16]


def apply_adapter(module: nn.Module, folder: Path) -> nn.Module:
    """Return ``module`` with the checked adapter in ``folder`` over its layers.

    Raises:
        AdapterInvalid: the adapter was made for another model, or lacks a part.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.tuner.utils import load_adapters

    try:
        adapted: nn.Module = load_adapters(module, str(folder))
        given = set(mx.load(str(folder / _WEIGHTS)))
    except (ValueError, RuntimeError, AttributeError, KeyError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[:2]) or type(error).__name__
        raise AdapterInvalid(folder.name, f"the adapter does not fit this model: {reason}") from error
    parameters: dict[str, mx.array] = dict(tree_flatten(adapted.parameters()))
    missing = sorted(name for name in parameters if name.rsplit(".", 1)[-1] in _LEAVES and name not in given)
    if missing:
        raise AdapterInvalid(folder.name, f"the adapter lacks {len(missing)} tensors, the first is {missing[0]!r}")
    return adapted

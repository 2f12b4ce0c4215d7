"""Open a model folder: check its files, then give them to mlx-lm.

mlx-lm answers a damaged folder with whatever its libraries raise; so what can be wrong with a folder is
looked at first, and each fault has its own error and sentence. Code that a model brings is never run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pie_mlx.errors import InvalidParameter, ModelCorrupt, UnsupportedModel
from pie_mlx.models.adapter import apply_adapter, check_adapter
from pie_mlx.models.folder import (
    Json,
    check_weights,
    context_tokens,
    eos_ids,
    fingerprint,
    read_config,
    read_optional_json,
    require_tokenizer,
    text_config,
)
from pie_mlx.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mlx import nn

DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, with the facts an engine needs of it."""

    module: nn.Module
    config: Mapping[str, Any]
    tokenizer: Tokenizer
    fingerprint: str
    """Identity of weights, tokenizer and precision."""
    context_tokens: int
    eos_ids: frozenset[int]
    dtype: str
    """Of the activations."""


def load_model(
    folder: Path,
    *,
    dequantize: bool = False,
    dtype: str | None = None,
    adapter: Path | None = None,
    tokenizer: Tokenizer | None = None,
) -> LoadedModel:
    """Load the MLX model in ``folder``.

    Args:
        folder: A folder with config.json, model*.safetensors and a tokenizer.
        dequantize: Turn every quantized layer and every 16-bit float into float32: on the CPU backend
            those run 10 to 50 times slower.
        dtype: Cast the floats to this dtype; None keeps the model's own (float32 with ``dequantize``).
        adapter: A folder with a low-rank adapter for this model; it changes the fingerprint.
        tokenizer: The folder's tokenizer, if it is loaded already.

    Raises:
        ModelNotFound: there is no such folder.
        ModelCorrupt: a file is missing, truncated or damaged, or the weights do not fit the config.
        UnsupportedModel: the model type or tokenizer is not known, or needs code of its own.
        TokenizerMissing: no tokenizer file.
        AdapterInvalid: the adapter is not complete, or was made for another model.
        InvalidParameter: ``dtype`` is not one of :data:`DTYPES`.
    """
    if dtype is not None and dtype not in DTYPES:
        raise InvalidParameter("dtype", dtype, f"one of {', '.join(DTYPES)}")
    config = read_config(folder)
    check_model_type(folder.name, config)
    weights = check_weights(folder)
    require_tokenizer(folder)
    adapted = "" if adapter is None else f"-{check_adapter(adapter)}"
    tokenizer = tokenizer or Tokenizer.from_folder(folder)
    module, full_config = _load_module(folder)
    if adapter is not None:
        module = apply_adapter(module, adapter)
    precision = dtype or ("float32" if dequantize else None)
    module = _set_precision(module, precision, dequantize=dequantize)
    used = _activation_dtype(module)
    return LoadedModel(
        module=module,
        config=full_config,
        tokenizer=tokenizer,
        fingerprint=f"{fingerprint(folder, weights)}{adapted}-{used}{'-dequantized' if dequantize else ''}",
        context_tokens=context_tokens(folder.name, {**_module_args(module), **config}, _tokenizer_config(folder)),
        eos_ids=tokenizer.eos_ids | eos_ids(full_config),
        dtype=used,
    )


def check_model_type(model: str, config: Mapping[str, Any]) -> None:
    """Refuse a model type that mlx-lm has no module for; imports nothing of MLX.

    Raises:
        UnsupportedModel: names the type and the nearest known ones.
    """
    import difflib

    known = supported_model_types()
    kind = str(config["model_type"])
    if kind in known or kind in _RENAMED_TYPES:
        check_architecture(model, kind)
        return
    near = ", ".join(difflib.get_close_matches(kind, sorted(known), n=3)) or "llama, qwen3, gemma3, mistral3, phi3"
    raise UnsupportedModel(
        model, f"config.json has the model type {kind!r}, which mlx-lm does not know ({len(known)} known, e.g. {near})"
    )


_NEEDS = {"olmo": ("hf_olmo", "ai2-olmo")}
"""Architectures whose module of mlx-lm ends the process if a package is missing: package to import, to install."""


_WRONG = {
    "phi3small": "mlx-lm 0.32.2 adds its mask to the scores instead of hiding what lies ahead: its text is wrong",
}
"""Architectures that mlx-lm itself runs wrongly, so that nothing could be compared with it."""


def check_architecture(model: str, kind: str) -> None:
    """Refuse an architecture that mlx-lm runs wrongly, or that cannot be imported here.

    Raises:
        UnsupportedModel: says which of the two, and what to install.
    """
    if kind in _WRONG:
        raise UnsupportedModel(model, _WRONG[kind])
    package, distribution = _NEEDS.get(kind, ("", ""))
    if package and importlib.util.find_spec(package) is None:
        raise UnsupportedModel(
            model, f"models of the type {kind!r} need the package {distribution}", f"pip install {distribution}"
        )


_RENAMED_TYPES = frozenset({
    "mistral", "llava", "phi-msft", "falcon_mamba", "joyai_llm_flash", "kimi_k2", "qwen2_5_vl", "minimax_m2",
    "iquestcoder", "xverse", "gemma4_unified", "deepseek_v41_text",
})  # fmt: skip
"""Types that mlx-lm runs under another name; a test compares them with its table."""


def supported_model_types() -> frozenset[str]:
    """Return the model types mlx-lm has a module for, by looking at its files alone."""
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedModel("mlx-lm", "the package mlx-lm is not installed", "pip install mlx-lm")
    files = Path(next(iter(spec.submodule_search_locations)), "models").glob("*.py")
    return frozenset(path.stem for path in files if "\nclass Model(" in path.read_text(encoding="utf-8"))


def _load_module(folder: Path) -> tuple[nn.Module, Json]:
    """Have mlx-lm build the module; name the fault where it cannot."""
    from mlx_lm.utils import load_model as load_mlx_model

    try:
        module, config = load_mlx_model(folder, lazy=True, trust_remote_code=False)
    except (ValueError, RuntimeError) as error:
        raise ModelCorrupt(folder.name, f"the weights do not fit config.json: {_first_line(error)}") from error
    except (TypeError, KeyError, AttributeError, ZeroDivisionError, IndexError, AssertionError) as error:
        fault = f"{type(error).__name__}: {_first_line(error)}"
        raise ModelCorrupt(folder.name, f"config.json is not complete for its model type ({fault})") from error
    return module, config


def _module_args(module: nn.Module) -> dict[str, Any]:
    """Return the length that mlx-lm assumes where the config names none: its class may have a default."""
    args = getattr(module, "args", None)
    value = getattr(args, "max_position_embeddings", None)
    return {"max_position_embeddings": value} if isinstance(value, int) else {}


def _tokenizer_config(folder: Path) -> Json:
    return read_optional_json(folder / "tokenizer_config.json")


def _first_line(error: Exception) -> str:
    """Return the first line of an error's text: mlx lists hundreds of parameters after it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _set_precision(module: nn.Module, dtype: str | None, *, dequantize: bool) -> nn.Module:
    """Dequantize and cast as asked, then read the weights into memory.

    The weights are lazy until here, so that a dequantized model never holds both forms at once.
    """
    import mlx.core as mx

    if dequantize:
        from mlx_lm.utils import dequantize_model

        module = dequantize_model(module)
    if dtype is not None:
        module.set_dtype(getattr(mx, dtype))
    module.eval()
    mx.eval(module.parameters())
    return module


def _activation_dtype(module: nn.Module) -> str:
    """Return the name of the dtype that the module's embedding gives its activations."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    arrays: dict[str, mx.array] = dict(tree_flatten(module.parameters()))
    floats = [array.dtype for array in arrays.values() if mx.issubdtype(array.dtype, mx.floating)]
    if not floats:
        raise ModelCorrupt("model", "the model has no floating-point weights")
    return str(max(set(floats), key=floats.count)).removeprefix("mlx.core.")


def num_layers(config: Mapping[str, Any]) -> int | None:
    """Return the number of layers a config names, None where it does not."""
    flat = text_config(config)
    value = flat.get("num_hidden_layers", flat.get("n_layers", flat.get("n_layer")))
    return value if isinstance(value, int) else None

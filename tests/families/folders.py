"""Folders of tiny models, as mlx-lm loads them, and of adapters for them; the command line run on them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from tests.families.tiny import VOCAB, Json, tiny_model

_RANK: Json = {"rank": 4, "scale": 10.0, "dropout": 0.0, "keys": ["self_attn.q_proj", "self_attn.o_proj"]}

_PROGRAM = """
import gc, json, sys
from pathlib import Path
from pie_mlx.cli.main import invoke

code = invoke(sys.argv[2:])
imported = "mlx.core" in sys.modules
import mlx.core as mx

gc.collect()
Path(sys.argv[1]).write_text(json.dumps({"imported": imported, "bytes": mx.get_active_memory()}))
sys.exit(code)
"""
"""Runs the command line, and tells in a file what it left in the process."""


def _tokenizer() -> str:
    """Return the JSON of a tokenizer of whole words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{at}": at for at in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    text: str = tokenizer.to_str()
    return text


def write_folder(parent: Path, name: str) -> Path:
    """Write the tiny model of an architecture as a folder that mlx-lm could load."""
    folder = parent / f"tiny-{name}"
    folder.mkdir()
    module, config = tiny_model(name)
    weights: dict[str, mx.array] = dict(tree_flatten(module.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(_tokenizer())
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def write_adapter(folder: Path, name: str, *, rank: int = 4) -> Path:
    """Write a LoRA adapter of random weights for the tiny model of an architecture; return its folder."""
    from mlx_lm.tuner.utils import linear_to_lora_layers

    folder.mkdir()
    module, _ = tiny_model(name)
    linear_to_lora_layers(module, 2, _RANK | {"rank": rank})
    mx.random.seed(3)
    leaves: dict[str, mx.array] = dict(tree_flatten(module.parameters()))
    weights = {key: mx.random.normal(leaf.shape) * 0.2 for key, leaf in leaves.items() if "lora_" in key}
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    document = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": _RANK}
    (folder / "adapter_config.json").write_text(json.dumps(document))
    return folder


def run_and_look(left: Path, *args: str) -> tuple[subprocess.CompletedProcess[str], Json]:
    """Run a prompt in a process of its own; return what came of it, and whether MLX was imported and what it holds."""
    command = [sys.executable, "-c", _PROGRAM, str(left), "run", "--raw", "--max-tokens", "9", "w1 w2 w3", *args]
    done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8", timeout=120)
    told: Json = json.loads(left.read_text())
    return done, told

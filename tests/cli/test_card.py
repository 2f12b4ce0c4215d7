"""What `info` says of models whose layers have windows: what is kept, and what is not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

Finished: TypeAlias = "subprocess.CompletedProcess[str]"

CONFIG = {
    "model_type": "gemma4_text", "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "hidden_size": 256, "sliding_window": 512, "max_position_embeddings": 65536,
}  # fmt: skip


def model(folder: Path, kinds: list[str]) -> Path:
    """Write the files that the card reads."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "layer_types": kinds}))
    tokenizer = Tokenizer(BPE({"a": 0, "b": 1}, []))
    tokenizer.decoder = ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file({"weight": np.zeros(4, dtype=np.float32)}, folder / "model.safetensors")
    return folder


def test_windows_everywhere_keep_the_window(here: Callable[..., Finished], tmp_path: Path) -> None:
    """The pages are those of the window and a quarter more, however long the context."""
    folder = model(tmp_path / "m", ["sliding_attention"] * 4)
    need = json.loads(here("info", str(folder), "--context", "60000", "--json").stdout)["estimate"]
    assert (need["tokens"], need["kept_tokens"], need["pages"]) == (60000, 639, 40)
    assert (need["window_layers"], need["attention_layers"]) == (4, 4)
    assert "given back, 639 tokens are kept" in here("info", str(folder), "--context", "60000").stdout


def test_a_mixed_model_says_that_its_pages_are_kept_whole(here: Callable[..., Finished], tmp_path: Path) -> None:
    """With the number that the windows alone would take, so that nobody is misled."""
    folder = model(tmp_path / "m", ["sliding_attention", "full_attention"] * 2)
    need = json.loads(here("info", str(folder), "--context", "60000", "--json").stdout)["estimate"]
    assert (need["kept_tokens"], need["pages"], need["window_layers"]) == (60000, 3750, 2)
    assert need["windowed_kv_bytes"] < 0.51 * need["kv_bytes"]
    assert "in 2 of 4 layers: pages are kept whole" in " ".join(here("info", str(folder)).stdout.split())


def test_a_model_without_windows_says_nothing_of_them(here: Callable[..., Finished], tmp_path: Path) -> None:
    """The row is for models that have them."""
    folder = model(tmp_path / "m", ["full_attention"] * 4)
    done = here("info", str(folder))
    assert done.returncode == 0
    assert not any(line.startswith("windows") for line in done.stdout.splitlines())

"""A model that cannot be run rightly is refused on the command line: one sentence, exit code 3, nothing on stdout."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from pie_mlx.backend.mlx.backend import MlxBackend
from pie_mlx.errors import UnsupportedModel
from tests.families.folders import run_and_look, write_folder


@pytest.mark.parametrize(
    ("name", "reason", "imports_mlx"),
    [
        ("phi3small", "its text is wrong", False),
        ("plamo3", "depends on how a prompt is cut", True),
        ("olmo", "need the package ai2-olmo", False),
    ],
)
def test_refused_with_a_reason_and_exit_code_3_and_nothing_stays_loaded(
    tmp_path: Path, name: str, reason: str, imports_mlx: bool
) -> None:
    """By its type before MLX is even imported, or by the check on its own weights, which are gone afterwards."""
    folder = write_folder(tmp_path, name if name == "plamo3" else "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": name}))
    done, left = run_and_look(tmp_path / "left.json", "--model", str(folder))
    assert (done.returncode, done.stdout) == (3, "")
    assert left == {"imported": imports_mlx, "bytes": 0}
    assert reason in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_recurrent_model_runs_from_its_folder(tmp_path: Path) -> None:
    """The same way in for a model that works."""
    folder = write_folder(tmp_path, "qwen3_next")
    command = [sys.executable, "-m", "pie_mlx", "run", "--model", str(folder), "--raw", "--max-tokens", "5", "w1 w2"]
    done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_refused_model_leaves_no_weights(tmp_path: Path) -> None:
    """Its error can be kept and shown: the memory is free all the same."""
    folder = write_folder(tmp_path, "plamo3")
    gc.collect()
    before = mx.get_active_memory()
    with pytest.raises(UnsupportedModel, match="depends on how a prompt is cut") as kept:
        MlxBackend.load(folder)
    assert kept.value.__traceback__ is not None
    assert mx.get_active_memory() <= before

"""Adapters at load: the tokens of mlx-lm with the same adapter, an identity of their own, or a refusal."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.utils import load_adapters
from mlx_lm.utils import load_model

import pie_mlx
from pie_mlx.engine import EngineSettings
from pie_mlx.errors import SnapshotMismatch
from pie_mlx.kv.snapshot import SnapshotStore
from tests.families.folders import run_and_look, write_adapter, write_folder

_PROMPT = [(5 + 11 * at) % 96 for at in range(30)]
_SETTINGS = EngineSettings(pool_pages=40, page_size=8, prefill_chunk=11)
_STEPS = 24


def _mlx_lm(folder: Path, adapter: Path) -> list[int]:
    """Return the tokens that mlx-lm decodes greedily."""
    module, _ = load_model(folder)
    module = load_adapters(module, str(adapter))
    module.eval()
    cache = make_prompt_cache(module)
    tokens, step = [], mx.array([_PROMPT])
    for _ in range(_STEPS):
        tokens.append(int(module(step, cache=cache)[0, -1].argmax().item()))
        step = mx.array([tokens[-1:]])
    return tokens


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_the_tokens_are_those_of_mlx_lm_with_the_adapter(tmp_path: Path, name: str) -> None:
    """Other tokens than without it, and the same as mlx-lm's; what was kept without it does not fit."""
    folder, adapter = write_folder(tmp_path, name), write_adapter(tmp_path / "adapter", name)
    store = SnapshotStore(tmp_path / "snapshots")
    with pie_mlx.open_engine(str(folder), _SETTINGS) as engine, engine.context(_PROMPT) as context:
        plain, without = engine.facts.fingerprint, context.generate(max_tokens=_STEPS).tokens
        context.save("without", store)
    with pie_mlx.open_engine(str(folder), _SETTINGS, adapter=adapter) as engine:
        with engine.context(_PROMPT) as context, context.fork() as fork:
            adapted = context.generate(max_tokens=_STEPS).tokens
            assert fork.generate(max_tokens=_STEPS).tokens == adapted
        assert engine.facts.fingerprint != plain
        with pytest.raises(SnapshotMismatch):
            engine.open_context("without", store)
    assert list(adapted) == _mlx_lm(folder, adapter)
    assert adapted != without


def test_the_flag_reaches_the_model(tmp_path: Path) -> None:
    """The text is another one."""
    folder, adapter = write_folder(tmp_path, "llama"), write_adapter(tmp_path / "adapter", "llama")
    plain, _ = run_and_look(tmp_path / "left.json", "--model", str(folder))
    adapted, _ = run_and_look(tmp_path / "left.json", "--model", str(folder), "--adapter", str(adapter))
    assert (plain.returncode, adapted.returncode) == (0, 0), adapted.stderr
    assert plain.stdout.strip()
    assert adapted.stdout.strip() != plain.stdout.strip()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("missing", "there is no such adapter folder"),
        ("shapes", "the adapter does not fit this model"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_with_exit_code_3(tmp_path: Path, fault: str, reason: str) -> None:
    """One sentence on stderr, nothing on stdout, and no weights are left."""
    folder, adapter = write_folder(tmp_path, "llama"), tmp_path / "adapter"
    if fault == "shapes":
        write_adapter(adapter, "llama", rank=5)
    done, left = run_and_look(tmp_path / "left.json", "--model", str(folder), "--adapter", str(adapter))
    assert (done.returncode, done.stdout, left["bytes"]) == (3, "", 0)
    assert reason in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr

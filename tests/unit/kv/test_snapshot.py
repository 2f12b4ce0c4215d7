"""A snapshot is complete or it does not exist, and says exactly why it cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pie_mlx.backend.fake import FakeBackend
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.errors import (
    InvalidParameter,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotMismatch,
    SnapshotMissing,
    SnapshotVersion,
)
from pie_mlx.kv.snapshot import SnapshotStore

SETTINGS = EngineSettings(pool_pages=32, page_size=16, prefix_cache=False)


def engine(vocab_size: int = 256, settings: EngineSettings = SETTINGS) -> Engine:
    """Return an engine whose K/V can be read back."""
    return Engine.start(lambda: FakeBackend(vocab_size=vocab_size), settings)


def test_a_saved_context_goes_on_in_another_process_as_if_never_closed(tmp_path: Path) -> None:
    """Tokens and K/V survive the context and the engine; nothing but the last token is computed."""
    store = SnapshotStore(tmp_path)
    with engine() as first:
        context = first.context(range(1, 100))
        context.generate(max_tokens=7)
        facts = context.save("talk", store)
        expected = context.generate(max_tokens=20).tokens
        context.close()
    assert (facts.num_tokens, facts.num_resident) == (106, 105)
    with engine() as second:
        again, restored = second.open_context("talk", store)
        assert (restored.resident_tokens, restored.loaded_tokens, restored.recomputed_tokens) == (0, 105, 1)
        completion = again.generate(max_tokens=20)
        assert completion.tokens == expected
        assert completion.prefilled_tokens == 1
        second.check()


def test_restoring_finds_what_is_resident_and_loads_the_rest(tmp_path: Path) -> None:
    """Pages in the prefix index are viewed, not loaded again."""
    store = SnapshotStore(tmp_path)
    with engine(settings=EngineSettings(pool_pages=32, page_size=16)) as live:
        context = live.context(range(1, 100))
        context.generate(max_tokens=1)
        context.save("talk", store)
        again, restored = live.open_context("talk", store)
        assert restored.resident_tokens == 96
        assert restored.loaded_tokens == 99 - 96
        assert again.tokens == context.tokens
        assert again.generate(max_tokens=9).tokens == context.generate(max_tokens=9).tokens
        live.check()


def test_a_pool_without_room_recomputes_and_says_so(tmp_path: Path) -> None:
    """Restoring takes no page from a context that has it."""
    store = SnapshotStore(tmp_path)
    with engine() as live:
        context = live.context([5] * 300)
        context.generate(max_tokens=2)
        context.save("long", store)
        context.pin()
        held = live.context([7] * 150)
        held.generate(max_tokens=1)
        again, restored = live.open_context("long", store)
        assert restored.loaded_tokens == (32 - 19 - 10) * 16
        assert restored.loaded_tokens + restored.recomputed_tokens == 302
        context.pin(pinned=False)
        assert again.generate(max_tokens=3).tokens == context.generate(max_tokens=3).tokens
        live.check()


@pytest.mark.parametrize("tokens", [[], [3]])
def test_a_context_without_resident_tokens_is_saved_and_restored(tmp_path: Path, tokens: list[int]) -> None:
    """An empty context is a snapshot like any other."""
    store = SnapshotStore(tmp_path)
    with engine() as live:
        live.context(tokens).save("small", store)
        again, restored = live.open_context("small", store)
        assert (restored.resident_tokens, restored.loaded_tokens, restored.recomputed_tokens) == (0, 0, len(tokens))
        again.append([9])
        assert again.generate(max_tokens=4).tokens == live.context([*tokens, 9]).generate(max_tokens=4).tokens


@pytest.mark.parametrize("count", [15, 16, 17, 31, 32, 33])
def test_restoring_at_every_boundary_equals_cold(tmp_path: Path, count: int) -> None:
    """Whatever part of the last page was saved, what follows is what a fresh context would give."""
    store = SnapshotStore(tmp_path)
    tokens = list(range(1, count + 2))
    with engine() as live:
        context = live.context(tokens)
        context.prefill().result()
        assert context.save("a", store).num_resident == count
        context.close()
        again, _restored = live.open_context("a", store)
        assert again.generate(max_tokens=20).tokens == live.context(tokens).generate(max_tokens=20).tokens


def test_arrays_of_another_kind_are_refused_and_take_no_page(tmp_path: Path) -> None:
    """Same model, other K/V (a quantized arena, say): named, and nothing is left behind."""
    store = SnapshotStore(tmp_path)
    with engine() as live:
        arrays = {"k.0.scales": np.zeros((20, 2), dtype=np.float32)}
        fingerprint = live.facts.fingerprint
        store.save("a", model="fake", fingerprint=fingerprint, tokens=list(range(20)), arrays=arrays)
        with pytest.raises(SnapshotMismatch, match="do not fit"):
            live.open_context("a", store)
        assert live.readings().contexts == ()
        assert live.readings().pages.free == 32
        live.check()


def test_each_fault_has_its_own_error(tmp_path: Path) -> None:
    """Missing, truncated, damaged, foreign model, foreign version, bad name."""
    store = SnapshotStore(tmp_path)
    with engine() as live:
        live.context(range(1, 60)).save("a", store)
        context = live.context(range(1, 60))
        context.generate(max_tokens=1)
        context.save("b", store)
        with pytest.raises(SnapshotMissing):
            live.open_context("nobody", store)
        for name in ("../etc", "", ".hidden", "a/b", "x" * 101):
            with pytest.raises(InvalidParameter):
                store.load(name, fingerprint="any")
        whole = (tmp_path / "b.safetensors").read_bytes()
        for cut in (0, 7, 100, len(whole) // 2, len(whole) - 1):
            (tmp_path / "b.safetensors").write_bytes(whole[:cut])
            with pytest.raises(SnapshotCorrupt):
                live.open_context("b", store)
        flipped = bytearray(whole)
        flipped[-1] ^= 1
        (tmp_path / "b.safetensors").write_bytes(bytes(flipped))
        with pytest.raises(SnapshotCorrupt, match="checksum"):
            live.open_context("b", store)
        live.check()
    meta = {"pie_mlx": json.dumps({"schema": "pie-mlx.snapshot/99"})}
    save_file({"sequence": np.zeros(1, dtype=np.int32)}, tmp_path / "new.safetensors", metadata=meta)
    with engine(vocab_size=300) as other:
        with pytest.raises(SnapshotVersion, match="snapshot/99"):
            other.open_context("new", store)
        with pytest.raises(SnapshotMismatch, match="fake-256"):
            other.open_context("a", store)
        assert other.readings().contexts == ()


def test_a_failed_save_leaves_the_old_snapshot_and_no_half_file(tmp_path: Path) -> None:
    """The folder's place is taken by a file: nothing can be written."""
    (tmp_path / "blocked").write_text("in the way", encoding="utf-8")
    with engine() as live:
        with pytest.raises(SnapshotError, match="cannot be written"):
            live.context([1, 2]).save("a", SnapshotStore(tmp_path / "blocked"))
        store = SnapshotStore(tmp_path / "store")
        live.context([1, 2]).save("a", store)
        live.context([1, 2, 3]).save("a", store)
        assert store.look("a").num_tokens == 3
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["a.safetensors"]
    assert store.names() == ["a"]
    assert store.remove("a") > 0
    with pytest.raises(SnapshotMissing):
        store.remove("a")

"""The pool's size: what was asked for or a refusal with numbers, and else what the machine can spare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import pie_mlx
from pie_mlx.backend.fake import FakeBackend
from pie_mlx.engine import EngineSettings
from pie_mlx.engine.sizing import AUTO_TOKENS, RESERVE_BYTES, choose_pool
from pie_mlx.errors import NotEnoughMemory

GIB = 1 << 30
FACTS = replace(FakeBackend(context_tokens=8192).facts, kv_bytes_per_token=128 * 1024)
"""A model of 128 KiB a token: a gibibyte holds a context of 8,192."""


def test_an_automatic_pool_leaves_the_system_its_share() -> None:
    """Half of what is free after the reserve, and the reason says so."""
    for free_gib in (4, 6, 8):
        size = choose_pool(FACTS, EngineSettings(), free_gib * GIB)
        assert size.arena_bytes <= (free_gib * GIB - RESERVE_BYTES) // 2 + size.page_bytes
        assert size.num_pages * size.page_bytes > (free_gib * GIB - RESERVE_BYTES) // 2 - size.page_bytes
        assert f"{free_gib}.0 GiB" in size.reason


def test_an_automatic_pool_is_not_larger_than_is_of_use() -> None:
    """A large machine is not filled with pages that nobody will ever write."""
    size = choose_pool(FACTS, EngineSettings(), 512 * GIB)
    assert size.num_pages * 16 == AUTO_TOKENS == 4 * FACTS.context_tokens
    assert "32,768 tokens" in size.reason


@pytest.mark.parametrize("free", [0, RESERVE_BYTES, RESERVE_BYTES + GIB // 8])
def test_a_machine_too_small_for_one_sensible_context_is_refused(free: int) -> None:
    """Before anything is touched, with what is needed and what there is."""
    with pytest.raises(NotEnoughMemory) as caught:
        choose_pool(FACTS, EngineSettings(), free)
    assert caught.value.need_bytes == 1024 * FACTS.kv_bytes_per_token
    assert caught.value.available_bytes == max(0, free - RESERVE_BYTES) // 2
    assert "1,024 tokens" in caught.value.message
    assert "--pool-memory" in str(caught.value.hint)


def test_what_was_asked_for_is_obeyed_or_refused_but_never_changed() -> None:
    """In pages or in bytes; too much for what is free is an error with both numbers."""
    assert choose_pool(FACTS, EngineSettings(pool_pages=77), 8 * GIB).num_pages == 77
    assert choose_pool(FACTS, EngineSettings(pool_memory_bytes=GIB), 8 * GIB).num_pages == 512
    assert choose_pool(FACTS, EngineSettings(pool_pages=77), None).reason == "as asked"
    with pytest.raises(NotEnoughMemory, match="5,000 pages") as caught:
        choose_pool(FACTS, EngineSettings(pool_pages=5000), 8 * GIB)
    assert caught.value.need_bytes == 5001 * 16 * FACTS.kv_bytes_per_token
    assert caught.value.available_bytes == 8 * GIB
    with pytest.raises(NotEnoughMemory):
        choose_pool(FACTS, EngineSettings(pool_memory_bytes=1000), 8 * GIB)


def test_recurrent_states_are_counted() -> None:
    """Each context that runs has one, and the one before it: the pages get what is left."""
    with_state = replace(FACTS, has_state=True, state_bytes=16 << 20)
    plain, stateful = (choose_pool(facts, EngineSettings(), 6 * GIB) for facts in (FACTS, with_state))
    lost = (plain.num_pages - stateful.num_pages) * plain.page_bytes
    assert abs(lost - EngineSettings().max_batch * (16 << 20)) <= plain.page_bytes


def test_a_system_that_does_not_say_what_is_free_gets_four_contexts() -> None:
    """Nothing is guessed from the machine's total."""
    size = choose_pool(FACTS, EngineSettings(), None)
    assert size.num_pages * 16 == 4 * FACTS.context_tokens
    assert "does not say" in size.reason


def test_memory_is_never_wired() -> None:
    """Wiring memory that others need has brought whole machines down: no code of ours asks for it."""
    folder = Path(pie_mlx.__file__).parent
    callers = [path.name for path in folder.rglob("*.py") if "set_wired_limit" in path.read_text(encoding="utf-8")]
    assert callers == []

"""Limits of one request are its own, and what a request used is gone when it ends."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from pie_mlx.backend.fake import FakeBackend
from pie_mlx.engine import Engine
from pie_mlx.engine.job import Job
from pie_mlx.errors import ContextTooLong, DeviceFailed, Impossible, UsageError
from pie_mlx.kv.snapshot import SnapshotStore

StartEngine = Callable[..., Engine]
Answer = Callable[[list[int], int], list[int]]


def text(kind: int, count: int) -> list[int]:
    """Return a text of its own."""
    return [(kind * 37 + at * 11 + kind * at) % 256 for at in range(count)]


def test_a_branch_at_the_models_end_ends_alone(start: StartEngine, answer: Answer) -> None:
    """One of three forks starts near the end of the model's context; the other two go on as if it were not there."""
    engine = start(64, FakeBackend(context_tokens=128))
    root = engine.context(text(1, 40))
    root.prefill().result(20)
    long = root.fork()
    long.append(text(2, 80))
    others = [root.fork(), root.fork()]
    others[1].append([7])
    requests = [long.submit(max_tokens=50), *(context.submit(max_tokens=50) for context in others)]
    done = [request.result(20) for request in requests]
    assert [each.finish_reason for each in done] == ["context_full", "length", "length"]
    assert done[0].completion_tokens == 8
    assert list(done[1].tokens) == answer(text(1, 40), 50)
    assert list(done[2].tokens) == answer([*text(1, 40), 7], 50)


def test_the_context_is_not_divided_among_branches(start: StartEngine) -> None:
    """Each of four branches may fill the model's whole context; what they share is pages, not length."""
    engine = start(200, FakeBackend(context_tokens=512))
    contexts = [engine.context(text(kind, 10)) for kind in range(4)]
    done = [request.result(60) for request in [context.submit(max_tokens=10_000) for context in contexts]]
    assert [each.finish_reason for each in done] == ["context_full"] * 4
    assert [context.num_tokens for context in contexts] == [512] * 4


def test_tokens_that_may_never_come_are_not_asked_for(start: StartEngine) -> None:
    """A short prompt with a huge `max_tokens` is admitted to a small pool, and stopped only where it must be."""
    engine = start(20, FakeBackend(eos_ids=frozenset(range(0, 256, 8))))
    done = engine.context(text(1, 30)).generate(max_tokens=1_000_000)
    assert done.finish_reason == "stop"
    with pytest.raises(Impossible):
        engine.context(text(1, 20 * 16 + 1)).submit(max_tokens=1)


def test_too_long_for_the_model_is_not_too_large_for_the_pool(start: StartEngine) -> None:
    """Two kinds, two codes, two exit codes, two hints: nobody shortens a prompt because of a small pool."""
    engine = start(4, FakeBackend(context_tokens=100))
    with pytest.raises(ContextTooLong) as length:
        engine.context(text(1, 100)).submit(max_tokens=1)
    with pytest.raises(Impossible) as memory:
        engine.context(text(1, 70)).submit(max_tokens=1)
    assert (length.value.code, length.value.exit_code) == ("context_too_long", 2)
    assert (memory.value.code, memory.value.exit_code) == ("impossible", 4)
    assert "pool" not in str(length.value.hint)
    assert "--pool-pages" in str(memory.value.hint)


def test_the_pool_that_is_stated_is_the_arena_that_is_there(start: StartEngine) -> None:
    """One source of truth: the size that was chosen, in bytes, is that of the arrays."""
    engine = start(37)
    assert engine.pool_size.num_pages == engine.readings().pages.total == 37
    assert engine.pool_size.arena_bytes == engine.backend.memory()["arena"]


def test_a_thousand_requests_leave_nothing(start: StartEngine) -> None:
    """No record of a request or a context outlives them, and every page is free or cached."""
    engine = start(16)
    for kind in range(1000):
        with engine.context(text(kind, 5)) as context:
            context.generate(max_tokens=2)
    gc.collect()
    with engine.locked() as core:
        assert (len(core.jobs), len(core.sequences), len(core.running)) == (0, 0, 0)
    assert sum(isinstance(each, Job) for each in gc.get_objects()) <= 1, "the last one's, at most, until the next step"
    pages = engine.readings().pages
    assert pages.free + pages.cached == pages.total


def test_forked_saved_evicted_and_freed_pages_come_back(start: StartEngine, tmp_path: Path) -> None:
    """Every way to hold a page has its way to give it back, in any order."""
    engine, store = start(40), SnapshotStore(tmp_path)
    for order in ("save, evict, close", "evict, save, close", "close, save"):
        root = engine.context(text(1, 70))
        root.prefill().result(20)
        fork = root.fork()
        fork.generate(max_tokens=20)
        for verb in order.split(", "):
            if verb == "save":
                fork.save("kept", store)
            elif verb == "evict":
                with engine.locked() as core:
                    core.evict(core.get(fork.id), all_views=True, was_running=False)
            else:
                root.close()
        again, _restored = engine.open_context("kept", store)
        assert again.tokens == fork.tokens
        for context in (fork, again):
            context.close()
        engine.clear_cache()
        assert engine.readings().pages.free == 40


def test_twenty_turns_cost_what_they_add(start: StartEngine) -> None:
    """A conversation's pages are those of its tokens, turn after turn; closed, it leaves none."""
    engine = start(200, prefix_cache=False)
    context = engine.context()
    for turn in range(20):
        context.append(text(turn, 30))
        done = context.generate(max_tokens=10)
        assert done.prefilled_tokens <= 31
        assert context.pages.total == -(-(context.num_tokens - 1) // 16)
    context.close()
    assert engine.readings().pages.free == 200


def test_taking_tokens_back_from_a_fork_leaves_its_parent_whole(start: StartEngine, answer: Answer) -> None:
    """Below the place where it was forked too: only the fork's views are shortened."""
    engine = start(20)
    root = engine.context(text(1, 70))
    root.prefill().result(20)
    fork = root.fork()
    fork.truncate(33)
    fork.append(text(2, 20))
    assert list(fork.generate(max_tokens=9).tokens) == answer([*text(1, 70)[:33], *text(2, 20)], 9)
    assert root.num_resident == 69
    assert list(root.generate(max_tokens=9).tokens) == answer(text(1, 70), 9)


def test_a_context_is_forked_and_never_copied(start: StartEngine) -> None:
    """Two handles on one context would close it under each other."""
    context = start(8).context(text(1, 20))
    for take in (copy.copy, copy.deepcopy):
        with pytest.raises(UsageError, match="cannot be copied"):
            take(context)


def test_a_display_that_was_starved_of_its_gpu_is_recognised() -> None:
    """The system's own words for it lead to a smaller prefill chunk."""
    error = DeviceFailed("command buffer: Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpacting)")
    assert "--prefill-chunk" in str(error.hint)

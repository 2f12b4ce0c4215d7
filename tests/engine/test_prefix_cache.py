"""The prefix cache: what was computed once is found again, never a wrong page, never over its limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pie_mlx.backend.fake import FakeBackend, Faults
from pie_mlx.engine import Context, Engine, Request

StartEngine = Callable[..., Engine]
Answer = Callable[[list[int], int], list[int]]


def text(kind: int, count: int) -> list[int]:
    """Return a text of its own."""
    return [(kind * 37 + at * 11 + kind * at) % 256 for at in range(count)]


def test_each_turn_prefills_only_what_is_new(start: StartEngine) -> None:
    """Twenty turns on one context: a turn computes the new message and the token before it, nothing else."""
    engine = start(128)
    context = engine.context(text(0, 50))
    context.generate(max_tokens=7)
    for turn in range(1, 20):
        context.append(text(turn, 9))
        done = context.generate(max_tokens=7)
        assert done.prefilled_tokens == 10
        assert done.cached_tokens == done.prompt_tokens - 10


def test_rebased_conversation_keeps_the_common_prefix(start: StartEngine, answer: Answer) -> None:
    """A template that rewrites the last turn costs only what changed; shorter and equal texts cost nothing new."""
    engine = start(64)
    context = engine.context(text(0, 60))
    context.generate(max_tokens=4)
    changed = text(0, 55) + text(9, 20)
    assert context.rebase(changed) == 55
    done = context.generate(max_tokens=3)
    assert (list(done.tokens), done.prefilled_tokens) == (answer(changed, 3), 20)
    assert context.rebase(text(0, 30)) == 30
    assert (context.num_tokens, context.num_resident) == (30, 30)
    assert context.rebase(text(0, 30)) == 30
    assert list(context.generate(max_tokens=3).tokens) == answer(text(0, 30), 3)
    assert context.rebase([]) == 0
    assert context.pages.total == 0


def test_repeated_system_prompt_is_found(start: StartEngine, answer: Answer) -> None:
    """A new context with a known beginning takes its full pages, also after the first one is closed."""
    engine = start(64)
    system = text(1, 70)
    with engine.context(system + text(2, 10)) as first:
        first.generate(max_tokens=3)
    for kind in range(3, 8):
        prompt = system + text(kind, 11)
        with engine.context(prompt) as context:
            done = context.generate(max_tokens=3)
            assert (done.cached_tokens, done.prefilled_tokens) == (64, 17)
            assert list(done.tokens) == answer(prompt, 3)


@pytest.mark.parametrize("shared", [1, 2, 14, 15, 16, 17, 18, 31, 32, 33, 47, 48, 49, 63, 64, 65])
def test_hit_equals_cold_at_every_boundary(start: StartEngine, answer: Answer, shared: int) -> None:
    """Whatever is common, up to one token before and after every page's end, the answer is the cold one."""
    engine = start(64)
    engine.context(text(1, 80)).generate(max_tokens=2)
    for rest in (0, 1, 15, 16, 17):
        prompt = text(1, shared) + text(5, rest)
        done = engine.context(prompt).generate(max_tokens=4)
        assert list(done.tokens) == answer(prompt, 4)
        most = (len(prompt) - 1) // 16
        assert done.cached_tokens >= 16 * min(shared // 16, most)


def test_fork_of_a_prefilling_parent_waits_for_it(start: StartEngine, answer: Answer) -> None:
    """A child forked in the middle of its parent's prefill starts after it and computes nothing twice."""
    backend = FakeBackend()
    engine = start(64, backend, prefill_chunk=24)
    parent = engine.context(text(1, 200))
    children: list[Context] = []
    requests: list[Request] = []

    def fork() -> None:
        children.extend(parent.fork() for _ in range(4))
        assert children[0].num_resident == 72
        requests.extend(child.submit(max_tokens=6) for child in children)

    backend.faults.before_step = {3: fork}
    assert list(parent.generate(max_tokens=6).tokens) == answer(text(1, 200), 6)
    for done in [request.result(20) for request in requests]:
        assert list(done.tokens) == answer(text(1, 200), 6)
        assert done.cached_tokens == 192, "all full pages come from the parent"
    assert backend.num_rows == 200 + 5 + 4 * (8 + 5)


def test_children_do_not_compute_beside_their_parent(start: StartEngine, answer: Answer) -> None:
    """Parent and forks asked at the same moment, a wide prefill budget: the prompt is computed once."""
    faults = Faults(hang=frozenset({0}))
    backend = FakeBackend(faults=faults)
    engine = start(64, backend)
    blocker = engine.context([9]).submit(max_tokens=1)
    assert faults.is_hanging.wait(20)
    parent = engine.context(text(1, 100))
    contexts = [parent, *(parent.fork() for _ in range(3))]
    requests = [context.submit(max_tokens=2) for context in contexts]
    readings = engine.readings()
    assert readings.waiting_by_reason == {"turn": 1, "prefix": 3}
    assert readings.requests[-1].waits_for == f"request {requests[0].id} computes its prefix"
    faults.release.set()
    blocker.result(20)
    for request in requests:
        assert list(request.result(20).tokens) == answer(text(1, 100), 2)
    assert backend.num_rows == 1 + 100 + 3 * 4 + 4, "one prompt, the tokens behind its last full page, the answers"


def test_touched_entry_survives_and_the_oldest_goes(start: StartEngine) -> None:
    """Least recently used is about use, not about age: A is touched, B and C are not, A survives."""
    engine = start(40, prefix_cache_share=0.25)
    for kind in (1, 2, 3):
        with engine.context(text(kind, 49)) as context:
            context.prefill().result(20)
    assert engine.readings().pages.cached == 9
    with engine.context(text(1, 49)) as again:
        assert again.generate(max_tokens=1).cached_tokens == 48
    with engine.context(text(4, 65)) as new:
        new.prefill().result(20)
    assert engine.readings().pages.cached == 10
    cached = {}
    for kind in (1, 4, 3, 2):
        with engine.context(text(kind, 49)) as context:
            cached[kind] = context.generate(max_tokens=1).cached_tokens
    assert cached[1] == cached[4] == 48
    assert cached[2] == 0


def test_long_prefix_is_shortened_from_its_end(start: StartEngine) -> None:
    """Of a prefix that does not fit the limit, the beginning stays: its end is worth nothing without it."""
    engine = start(40, prefix_cache_share=0.25)
    with engine.context(text(1, 16 * 20 + 1)) as context:
        context.prefill().result(20)
    assert engine.readings().pages.cached == 10
    assert engine.context(text(1, 16 * 20 + 1)).generate(max_tokens=1).cached_tokens == 160


def test_hundred_prompts_stay_within_the_limit(start: StartEngine) -> None:
    """Whatever comes and goes, no more is kept than the limit says, at any moment."""
    engine = start(64, prefix_cache_share=0.25)
    for kind in range(100):
        with engine.context(text(kind, 20 + kind % 100)) as context:
            context.generate(max_tokens=1)
            assert engine.readings().pages.cached <= 16
        assert engine.readings().pages.cached <= 16
    assert engine.clear_cache() == 16
    assert engine.readings().pages.free == 64


@pytest.mark.parametrize("setting", [{"prefix_cache": False}, {"prefix_cache_share": 0.0}])
def test_switched_off_it_keeps_nothing(start: StartEngine, setting: dict[str, object]) -> None:
    """Off means off: no hit, no page kept."""
    engine = start(32, **setting)
    for _ in range(2):
        with engine.context(text(1, 50)) as context:
            assert context.generate(max_tokens=1).cached_tokens == 0
        assert engine.readings().pages.free == 32


def test_cache_gives_way_to_requests(start: StartEngine) -> None:
    """Cached pages are free for the taking: a request that needs the whole pool gets it."""
    engine = start(16, prefix_cache_share=1.0)
    for kind in range(5):
        with engine.context(text(kind, 49)) as context:
            context.generate(max_tokens=1)
    assert engine.readings().pages.free < 4
    assert engine.context(text(9, 250)).generate(max_tokens=6).completion_tokens == 6

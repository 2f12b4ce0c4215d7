"""A fork equals a fresh context with the same tokens, whenever and wherever it was made, and costs no page."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.backend.fake import FakeBackend
from pie_mlx.engine import Context, Engine, EngineSettings, Request

StartEngine = Callable[..., Engine]
Answer = Callable[[list[int], int], list[int]]


def text(kind: int, count: int) -> list[int]:
    """Return a text of its own."""
    return [(kind * 37 + at * 11 + kind * at) % 256 for at in range(count)]


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 31, 32, 33])
def test_fork_equals_a_fresh_context(start: StartEngine, answer: Answer, count: int, cache: bool) -> None:
    """Around a page's end, parent and forks go their own ways in one batch, each as if it were alone."""
    engine = start(64, prefix_cache=cache)
    parent = engine.context(text(1, count))
    if count:
        parent.prefill().result(20)
    forks = [parent.fork() for _ in range(4)]
    for at, fork in enumerate(forks):
        fork.append(text(at + 5, 3))
    parent.append([1])
    requests = [context.submit(max_tokens=20) for context in (parent, *forks)]
    prompts = [[*text(1, count), 1], *(text(1, count) + text(at + 5, 3) for at in range(4))]
    for request, prompt in zip(requests, prompts, strict=True):
        assert list(request.result(20).tokens) == answer(prompt, 20)


def test_forks_of_a_generating_parent(start: StartEngine, answer: Answer) -> None:
    """Forked at every step while the parent goes on: each fork continues from what it saw."""
    backend = FakeBackend()
    engine = start(128, backend)
    parent = engine.context(text(1, 30))
    forks: list[Context] = []
    backend.faults.before_step = dict.fromkeys(range(1, 40), lambda: forks.append(parent.fork()))
    done = parent.generate(max_tokens=40)
    whole = text(1, 30) + answer(text(1, 30), 50)
    assert list(done.tokens) == whole[30:70]
    prompts = [list(fork.tokens) for fork in forks]
    assert prompts == [whole[: 30 + step] for step in range(1, 40)]
    for prompt, request in zip(prompts, [fork.submit(max_tokens=5) for fork in forks], strict=True):
        assert list(request.result(20).tokens) == whole[len(prompt) : len(prompt) + 5]
    engine.check()


def test_fork_outlives_its_parent(start: StartEngine, answer: Answer) -> None:
    """Parents closed at once, forks of forks: the chain's last context has all of its tokens and pages."""
    engine = start(32)
    context = engine.context(text(1, 20))
    tokens = text(1, 20)
    for depth in range(12):
        tokens += context.generate(max_tokens=7).tokens
        child = context.fork(name=f"depth {depth}")
        context.close()
        context = child
    assert list(context.tokens) == tokens == text(1, 20) + answer(text(1, 20), 84)
    assert len(engine.readings().contexts) == 1


def test_a_thousand_forks_give_back_exactly_what_they_took(start: StartEngine) -> None:
    """Forks of a 2,000-token prefix take no page; closed in random order, the pool is as before."""
    engine = start(160)
    root = engine.context(text(1, 2000))
    root.prefill().result(60)
    before = engine.readings().pages
    forks = [root.fork() for _ in range(1000)]
    shared = engine.readings().pages
    assert (shared.free, shared.shared) == (before.free, before.private)
    assert shared.sharing_ratio == 1001
    random.Random(2).shuffle(forks)
    assert [fork.close() for fork in forks] == [0] * 1000
    assert engine.readings().pages == before


@given(
    moves=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=8),
    pages=st.integers(12, 24),
)
def test_random_trees_equal_fresh_contexts(moves: list[tuple[int, int, int]], pages: int) -> None:
    """Grow a tree in a pool that cannot hold it all: every node's text is what a roomy pool would give."""
    settings = EngineSettings(pool_pages=pages, page_size=16, prefill_chunk=32)
    with (
        Engine.start(FakeBackend, settings) as engine,
        Engine.start(FakeBackend, EngineSettings(pool_pages=2000, page_size=16, prefix_cache=False)) as roomy,
    ):
        nodes, requests = [engine.context([1, 2, 3])], list[tuple[list[int], int, Request]]()
        for parent, num_new, max_tokens in moves:
            node = nodes[parent % len(nodes)].fork()
            node.append([num_new] * min(num_new, max(0, 150 - node.num_tokens)))
            nodes.append(node)
            requests.append((list(node.tokens), max_tokens, node.submit(max_tokens=max_tokens)))
        for tokens, max_tokens, request in requests:
            found = request.result(60)
            assert found.tokens == roomy.context(tokens).generate(max_tokens=max_tokens).tokens
        engine.check()

"""Models whose layers all have a window: pages behind it are given back, and no answer changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pie_mlx.backend.fake import FakeBackend, sequence_hash
from pie_mlx.engine import Context, Engine
from pie_mlx.errors import Impossible
from pie_mlx.events import ContextRewound
from pie_mlx.kv.snapshot import SnapshotStore
from pie_mlx.sampling import mix

StartEngine = Callable[..., Engine]

WINDOW = 64
KEPT = WINDOW - 1 + WINDOW // 4
MOST_PAGES = -(-KEPT // 16) + 1


def text(kind: int, count: int) -> list[int]:
    """Return a text of its own."""
    return [(kind * 37 + at * 11 + kind * at) % 256 for at in range(count)]


def after(tokens: list[int], count: int) -> tuple[int, ...]:
    """Return what the fake device generates when it sees the last tokens alone."""
    sequence = list(tokens)
    for _ in range(count):
        sequence.append(mix(sequence_hash(sequence[-WINDOW:])) % 256)
    return tuple(sequence[len(tokens) :])


@pytest.fixture
def engine(start: StartEngine) -> Engine:
    """Return an engine of 48 pages of 16 tokens without a prefix cache."""
    return start(48, FakeBackend(window=WINDOW), prefix_cache=False, prefill_chunk=64)


def let_go(engine: Engine, context: Context) -> int:
    """Return how many of a context's tokens were let go."""
    return next(each.num_let_go for each in engine.readings().contexts if each.id == context.id)


def test_a_context_holds_its_window_however_long_it_grows(engine: Engine) -> None:
    """A prompt and an answer that together are larger than the pool: the pages stay those of the window."""
    context = engine.context(text(1, 700))
    assert context.generate(max_tokens=200).tokens == after(text(1, 700), 200)
    assert context.num_tokens == 900 > engine.readings().pages.total * 16
    assert context.pages.total <= MOST_PAGES
    assert let_go(engine, context) >= 899 - KEPT - 16
    assert context.num_resident == 899
    assert engine.readings().pages.free == 48 - context.pages.total


def test_a_pool_smaller_than_the_window_is_refused_at_once(start: StartEngine) -> None:
    """The window is what must fit, and the refusal says how many pages that is."""
    engine = start(5, FakeBackend(window=WINDOW))
    with pytest.raises(Impossible, match="6 pages"):
        engine.context(text(1, 700)).generate(max_tokens=1)
    assert engine.context(text(1, 60)).generate(max_tokens=10).tokens == after(text(1, 60), 10)


def test_forks_share_what_is_left_and_go_their_own_way(engine: Engine) -> None:
    """Fifty forks of a long context take no page, and each says what a fresh context says."""
    root = engine.context(text(2, 400))
    root.prefill().result(20)
    held = engine.readings().pages.held
    forks = [root.fork() for _ in range(50)]
    assert engine.readings().pages.held == held <= MOST_PAGES
    for at, fork in enumerate(forks[:3]):
        fork.append([at])
    requests = [fork.submit(max_tokens=120) for fork in forks[:3]]
    for at, request in enumerate(requests):
        assert request.result(20).tokens == after([*text(2, 400), at], 120)
    assert root.generate(max_tokens=5).tokens == after(text(2, 400), 5), "what its forks let go is still its own"


def test_taking_a_little_back_computes_nothing_again(engine: Engine) -> None:
    """A quarter of the window is kept behind it."""
    context = engine.context(text(3, 500))
    context.generate(max_tokens=1)
    context.truncate(500 - WINDOW // 4)
    assert context.num_resident == 500 - WINDOW // 4
    done = context.generate(max_tokens=3)
    assert done.tokens == after(text(3, 500 - WINDOW // 4), 3)
    assert done.prefilled_tokens == 1


def test_taking_much_back_computes_again_and_says_so(engine: Engine) -> None:
    """Behind the window nothing is left to go on from: an event tells it, and the answer is right."""
    context = engine.context(text(4, 500))
    context.generate(max_tokens=1)
    with engine.listen() as events:
        context.truncate(300)
        told = [event for event in events.drain() if isinstance(event, ContextRewound)]
    assert told == [ContextRewound(context.id, 0, 300)]
    assert engine.readings().counters["rewound_tokens"] == 300
    done = context.generate(max_tokens=3)
    assert (done.tokens, done.prefilled_tokens) == (after(text(4, 300), 3), 300)


def test_scoring_keeps_what_the_context_goes_back_to(engine: Engine) -> None:
    """Targets longer than the window leave the context as it was: it goes on without computing anything again."""
    context = engine.context(text(5, 300))
    context.generate(max_tokens=1)
    sequence = [*context.tokens]
    for _ in range(2):
        context.submit_logprobs(text(6, 150)).result(20)
    done = context.generate(max_tokens=2)
    assert (done.tokens, done.prefilled_tokens) == (after(sequence, 2), 1)


def test_a_prompt_that_was_let_go_is_found_while_the_cache_keeps_it(start: StartEngine) -> None:
    """Pages behind the window stay cached while nobody needs them; afterwards the look-up misses."""
    engine = start(48, FakeBackend(window=WINDOW), prefix_cache_share=1.0)
    with engine.context(text(7, 400)) as first:
        first.generate(max_tokens=1)
        assert engine.readings().pages.cached > 10
    again = engine.context(text(7, 400))
    assert again.generate(max_tokens=4).tokens == after(text(7, 400), 4)
    assert again.generate(max_tokens=1).cached_tokens == 403
    assert again.pages.total <= MOST_PAGES
    engine.clear_cache()
    done = engine.context(text(7, 400)).generate(max_tokens=4)
    assert (done.tokens, done.cached_tokens) == (after(text(7, 400), 4), 0)


def test_a_snapshot_of_a_long_context_holds_its_tokens(engine: Engine, tmp_path: Path) -> None:
    """Its beginning is gone, so the K/V is computed again: the three counts say so."""
    store = SnapshotStore(tmp_path)
    context = engine.context(text(8, 300))
    context.generate(max_tokens=1)
    assert context.save("long", store).num_resident == 0
    opened, restored = engine.open_context("long", store)
    assert (restored.resident_tokens, restored.loaded_tokens, restored.recomputed_tokens) == (0, 0, 301)
    assert opened.generate(max_tokens=3).tokens == after([*context.tokens], 3)
    short = engine.context(text(9, 40))
    short.generate(max_tokens=1)
    assert short.save("short", store).num_resident == 40


def test_long_contexts_fit_a_pool_that_could_not_hold_one_of_them_whole(start: StartEngine) -> None:
    """Six answers of 400 tokens at the same time, in a pool of 768: nobody is preempted for long, all are right."""
    engine = start(48, FakeBackend(window=WINDOW), prefill_chunk=32)
    contexts = [engine.context(text(10 + at, 350)) for at in range(6)]
    requests = [context.submit(max_tokens=50) for context in contexts]
    for at, request in enumerate(requests):
        assert request.result(30).tokens == after(text(10 + at, 350), 50)
    assert engine.readings().counters.get("preemptions", 0) == 0

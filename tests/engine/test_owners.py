"""Owners: handles that are dropped, threads that share an engine, listeners, and the engine's own end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest

from pie_mlx.backend.fake import FakeBackend, Faults
from pie_mlx.engine import Engine, Request
from pie_mlx.errors import (
    Cancelled,
    ContextBusy,
    ContextClosed,
    DeviceFailed,
    EngineDead,
    InvalidParameter,
    UsageError,
)
from pie_mlx.events import StepDone
from pie_mlx.sampling import Sampling

StartEngine = Callable[..., Engine]
Answer = Callable[[list[int], int], list[int]]


def text(kind: int, count: int) -> list[int]:
    """Return a text of its own."""
    return [(kind * 37 + at * 11 + kind * at) % 256 for at in range(count)]


def test_dropped_handles_give_their_pages_back(start: StartEngine) -> None:
    """A handle that goes out of scope closes its context: no page waits for the end of the program."""
    engine = start(32, prefix_cache=False)
    for _ in range(50):
        context = engine.context(text(1, 60))
        context.generate(max_tokens=2)
        _fork = context.fork()
        del context, _fork
    gc.collect()
    readings = engine.readings()
    assert readings.pages.free == 32
    assert readings.contexts == ()
    assert readings.counters["contexts_closed"] == readings.counters["contexts_opened"] == 100


def test_handle_dropped_inside_a_locked_section_does_not_block(start: StartEngine) -> None:
    """A finalizer can run anywhere, also where its own thread holds the lock: it waits for nobody."""
    engine = start(8)
    kept = {"context": engine.context(text(1, 20))}
    kept["context"].generate(max_tokens=1)
    with engine.locked() as core:
        del kept["context"]
        gc.collect()
        assert len(core.sequences) == 1
    assert engine.readings().contexts == ()


def test_request_keeps_its_context(start: StartEngine, answer: Answer) -> None:
    """A context that only its request knows stays open until the request ends, then closes."""
    engine = start(8)
    assert list(engine.context(text(1, 20)).submit(max_tokens=9).result(20).tokens) == answer(text(1, 20), 9)
    gc.collect()
    assert engine.readings().contexts == ()
    engine.context(text(1, 20)).submit(max_tokens=10_000_000)
    gc.collect()
    assert engine.readings().requests == (), "nobody can ever read it: it is cancelled"


def test_leaving_a_stream_early_cancels(start: StartEngine) -> None:
    """Whoever leaves the loop stops the generation: at most the step in flight is finished."""
    backend = FakeBackend()
    engine = start(64, backend)
    context = engine.context(text(1, 20))
    for count, _piece in enumerate(context.stream(max_tokens=100_000)):
        if count == 5:
            break
    gc.collect()
    with engine.locked() as core:
        steps = backend.num_steps
        assert not core.jobs
    with engine.locked():
        assert backend.num_steps <= steps + 1
    tokens = context.tokens
    assert len(tokens) < 1000
    cold = engine.context(tokens).generate(max_tokens=5)
    assert context.generate(max_tokens=5).tokens == cold.tokens, "the cancelled context goes on like a fresh one"


def test_cancelled_prefill_continues_like_a_fresh_context(start: StartEngine, answer: Answer) -> None:
    """A cancellation in the middle of a prefill leaves the recorded tokens and only their K/V."""
    backend = FakeBackend()
    engine = start(64, backend, prefill_chunk=16)
    context = engine.context(text(1, 100))
    requests: list[Request] = []
    backend.faults.before_step = {3: lambda: requests[0].cancel()}  # noqa: PLW0108  (there is none yet)
    backend.faults.hang = frozenset({0})
    requests.append(context.submit(max_tokens=5))
    backend.faults.release.set()
    with pytest.raises(Cancelled):
        requests[0].result(20)
    assert context.num_resident == 48
    done = context.generate(max_tokens=5)
    assert (list(done.tokens), done.cached_tokens) == (answer(text(1, 100), 5), 48)


def test_eight_threads(start: StartEngine, answer: Answer) -> None:
    """Many callers at once, in a pool for a few of them: each gets its own answers."""
    engine = start(24)
    wrong: list[str] = []

    def work(kind: int) -> None:
        for turn in range(6):
            tokens = text(kind * 10 + turn, 30 + kind)
            with engine.context(tokens) as context, context.fork() as fork:
                request = fork.submit(max_tokens=8)
                first = context.generate(max_tokens=8)
                if list(first.tokens) != answer(tokens, 8) or request.result(60).tokens != first.tokens:
                    wrong.append(f"{kind}.{turn}")

    threads = [threading.Thread(target=work, args=(kind,)) for kind in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
    assert engine.readings().counters["completed"] == 8 * 6 * 2


def test_everybody_who_waits_for_one_request_gets_its_end(start: StartEngine) -> None:
    """Two threads wait for one request: both return."""
    faults = Faults(hang=frozenset({0}))
    engine = start(8, FakeBackend(faults=faults))
    request = engine.context(text(1, 5)).submit(max_tokens=1)
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(len(request.result(20).tokens))) for _ in range(2)]
    for thread in threads:
        thread.start()
    faults.release.set()
    for thread in threads:
        thread.join(20)
    assert len(results) == 2


def test_closing_the_engine_ends_what_is_in_flight(start: StartEngine) -> None:
    """Every request is cancelled with its type, contexts close, and later calls say that it has ended."""
    engine = start(16)
    contexts = [engine.context(text(kind, 20)) for kind in range(5)]
    requests = [context.submit(max_tokens=10_000) for context in contexts]
    requests[0].poll(20)
    engine.close()
    for request in requests:
        with pytest.raises(Cancelled) as caught:
            request.result(20)
        assert caught.value.by == "shutdown"
    assert all(context.closed for context in contexts)
    with pytest.raises(ContextClosed):
        _ = contexts[0].tokens
    with pytest.raises(EngineDead):
        contexts[0].submit(max_tokens=1)
    with pytest.raises(EngineDead):
        engine.context(text(1, 5)).submit(max_tokens=1)
    engine.close()
    readings = engine.readings()
    assert not readings.is_alive
    assert readings.pages.free + readings.pages.cached == readings.pages.total


def test_closing_while_the_device_hangs_does_not_wait_for_ever(start: StartEngine) -> None:
    """A device call that never returns is waited for up to its own limit, then given up."""
    faults = Faults(hang=frozenset({0}))
    engine = start(8, FakeBackend(faults=faults), step_timeout_s=0.2)
    request = engine.context(text(1, 5)).submit(max_tokens=3)
    engine.close()
    with pytest.raises((Cancelled, DeviceFailed)):
        request.result(20)
    faults.release.set()


def test_pages_of_a_closed_context_are_not_overwritten_by_its_own_step(start: StartEngine, answer: Answer) -> None:
    """Closed in flight, its pages go to others with the next plan: the late writes of the step harm nobody."""
    backend = FakeBackend()
    engine = start(6, backend, prefix_cache=False)
    doomed = engine.context(text(1, 60))
    others = [engine.context(text(2 + kind, 40)) for kind in range(3)]
    requests: list[Request] = []

    def swap() -> None:
        doomed.close()
        requests.extend(other.submit(max_tokens=20) for other in others)

    backend.faults.before_step = {1: swap}
    with pytest.raises(Cancelled):
        doomed.submit(max_tokens=30).result(20)
    for kind, request in enumerate(requests):
        assert list(request.result(20).tokens) == answer(text(2 + kind, 40), 20)


def test_readings_map_and_events_agree(start: StartEngine) -> None:
    """Free, private, shared and cached pages add up to the pool, in every event and in the map."""
    engine = start(24)
    with engine.listen() as events:
        root = engine.context(text(1, 50))
        root.prefill().result(20)
        forks = [root.fork(name=f"f{at}") for at in range(10)]
        for request in [
            fork.submit(max_tokens=40, sampling=Sampling(temperature=1.0, seed=at)) for at, fork in enumerate(forks)
        ]:
            request.result(60)
        steps = [event for event in events.drain() if isinstance(event, StepDone)]
    for event in steps:
        pages = event.pages
        assert pages.free + pages.private + pages.shared + pages.cached == pages.total == 24
    assert max(step.decode_rows for step in steps) == 10, "siblings run in one batch"
    assert [step.step for step in steps] == sorted({step.step for step in steps})
    counts, page_map = engine.readings().pages, engine.page_map()
    assert len(page_map) == counts.held
    assert sum(len(page.owners) == 1 for page in page_map) == counts.private
    assert sum(len(page.owners) > 1 for page in page_map) == counts.shared
    assert sum(not page.owners for page in page_map) == counts.cached
    assert all(0 < page.used <= 16 for page in page_map)


class Broken:
    """A constraint whose owner made a mistake."""

    def __init__(self, verb: str) -> None:
        """Fail in ``verb``."""
        self.verb = verb

    def allowed(self) -> list[int] | None:
        """Return ids, none at all, one too many, or fail."""
        if self.verb == "allowed":
            raise ZeroDivisionError("oops")
        return {"empty": [], "outside": [256]}.get(self.verb, [7])

    def accept(self, token: int) -> None:
        """Fail or not."""
        if self.verb == "accept":
            raise ZeroDivisionError("oops")


@pytest.mark.parametrize(
    ("verb", "error"),
    [("allowed", UsageError), ("accept", UsageError), ("empty", InvalidParameter), ("outside", InvalidParameter)],
)
def test_faulty_constraint_fails_its_own_request_alone(
    start: StartEngine, answer: Answer, verb: str, error: type[Exception]
) -> None:
    """An error in an owner's constraint keeps its type and ends no other request of the same step."""
    engine = start(16)
    good, bad = engine.context(text(1, 20)), engine.context(text(2, 20))
    request = good.submit(max_tokens=20)
    with pytest.raises(error):
        bad.submit(max_tokens=5, constraint=Broken(verb)).result(20)
    assert list(request.result(20).tokens) == answer(text(1, 20), 20)
    assert bad.generate(max_tokens=2).completion_tokens == 2
    ok = bad.submit(max_tokens=3, constraint=Broken("none")).result(20)
    assert ok.tokens == (7, 7, 7)


def test_references_are_dropped_at_the_end(start: StartEngine) -> None:
    """A thousand short requests leave no request behind."""
    engine = start(16)
    context = engine.context(text(1, 20))
    for _ in range(1000):
        context.generate(max_tokens=1)
        context.truncate(20)
    with engine.locked() as core:
        assert not core.jobs
        assert not core.running
        assert len(core.sequences) == 1
    assert engine.readings().counters["completed"] == 1000


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_that_ends_in_any_way_leaves_nobody_waiting(start: StartEngine) -> None:
    """Whatever ends the engine's thread, callers get the reason instead of waiting for ever."""

    def leave() -> None:
        raise SystemExit(3)

    backend = FakeBackend(faults=Faults(before_step={2: leave}))
    engine = start(8, backend)
    context = engine.context(text(1, 20))
    with pytest.raises(EngineDead, match="SystemExit"):
        context.generate(max_tokens=9)
    with pytest.raises(EngineDead):
        context.generate(max_tokens=1)
    engine.check()


def test_a_context_is_closed_by_its_id_only_while_it_is_idle(start: StartEngine) -> None:
    """Whoever holds the handle, the pages come back; one that runs is left alone, one that is gone is named."""
    faults = Faults(hang=frozenset({1}))
    engine = start(8, FakeBackend(faults=faults))
    context = engine.context(text(1, 40))
    context.prefill().result(20)
    request = context.submit(max_tokens=3)
    assert faults.is_hanging.wait(20)
    with pytest.raises(ContextBusy):
        engine.close_context(context.id)
    faults.release.set()
    assert len(request.result(20).tokens) == 3
    held = engine.readings().pages.private
    assert held == 3
    engine.close_context(context.id)
    assert context.closed
    assert engine.readings().pages.private == 0
    with pytest.raises(ContextClosed):
        engine.close_context(context.id)
    assert context.close() == 0, "the handle's own close stays harmless"


def test_listeners_may_come_and_go_from_many_threads(start: StartEngine) -> None:
    """Nobody's subscription is lost when another is made or closed at the same time."""
    engine = start(8)
    kept = []

    def subscribe() -> None:
        for _ in range(200):
            kept.append(engine.listen())
            engine.listen().close()

    threads = [threading.Thread(target=subscribe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    engine.context(text(1, 5)).close()
    assert all(len(subscription.drain()) == 2 for subscription in kept)
    assert len(kept) == 800

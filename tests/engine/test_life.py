"""The life of a request: however it ends, it ends once, with its type, and gives everything back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from pie_mlx.backend.fake import FakeBackend, Faults
from pie_mlx.engine import Context, Engine, Request
from pie_mlx.errors import (
    Cancelled,
    ContextBusy,
    ContextClosed,
    ContextTooLong,
    DeviceFailed,
    EmptyPrompt,
    EngineDead,
    Impossible,
    InvalidParameter,
    UsageError,
)
from pie_mlx.events import RequestEnded, StepDone
from pie_mlx.sampling import Sampling

StartEngine = Callable[..., Engine]
Answer = Callable[[list[int], int], list[int]]


class EveryStep(Mapping[int, Callable[[], None]]):
    """One action before every step, on the engine's thread, while the step is in flight."""

    def __init__(self, action: Callable[[], None]) -> None:
        """Run ``action`` whatever the step's number."""
        self._action = action

    def __getitem__(self, step: int) -> Callable[[], None]:
        """Return the action."""
        return self._action

    def __contains__(self, step: object) -> bool:
        """Every step has it."""
        return True

    def __iter__(self) -> Iterator[int]:
        """There is no list of all steps."""
        return iter(())

    def __len__(self) -> int:
        """There is no list of all steps."""
        return 0


def text(kind: int, count: int) -> list[int]:
    """Return a text of its own."""
    return [(kind * 37 + at * 11 + kind * at) % 256 for at in range(count)]


@pytest.mark.parametrize("verb", ["cancel", "close"])
@pytest.mark.parametrize("phase", ["waiting", "prefilling", "decoding", "preempted", "restoring"])
def test_ending_a_request_in_every_phase(start: StartEngine, phase: str, verb: str) -> None:
    """Cancelled or closed while a step is in flight, in any phase: one terminal event, the others are unharmed."""
    backend = FakeBackend()
    engine = start(14, backend, prefill_chunk=16, max_batch=4)
    gate, ended = threading.Event(), threading.Event()
    requests: list[Request] = []
    contexts: list[Context] = []
    hit: list[int] = []

    def act() -> None:
        gate.wait()
        for at, request in enumerate(requests):
            if not hit and request.phase == phase:
                hit.append(at)
                request.cancel() if verb == "cancel" else contexts[at].close()
                ended.set()

    backend.faults.before_step = EveryStep(act)
    with engine.listen() as events:
        for kind in range(6):
            contexts.append(engine.context(text(kind, 40), name=f"c{kind}"))
            requests.append(contexts[-1].submit(max_tokens=90))
        gate.set()
        for at, request in enumerate(requests):
            if at in hit or (at == len(requests) - 1 and not hit):
                continue
            try:
                assert len(request.result(60).tokens) == 90
            except Cancelled:
                assert at in hit
        assert ended.is_set(), f"no request was ever {phase}"
        with pytest.raises(Cancelled):
            requests[hit[0]].result(60)
        assert requests[hit[0]].phase == "cancelled"
        assert requests[hit[0]].partial.finish_reason == "cancelled"
        terminal = [event.request for event in events.drain() if isinstance(event, RequestEnded)]
    assert sorted(terminal) == [request.id for request in requests]
    counters = engine.readings().counters
    assert counters["cancelled"] == 1
    assert counters["completed"] == counters["submitted"] - 1 == 5
    engine.check()


def test_what_is_refused_is_refused_before_any_work(start: StartEngine) -> None:
    """Each wrong ask has its own type, counts as nothing, and leaves the context as it was."""
    engine = start(8, FakeBackend(context_tokens=100))
    empty, full = engine.context(), engine.context(text(1, 100))
    asks: list[Callable[[], object]] = [
        lambda: empty.submit(max_tokens=3),
        lambda: empty.submit_labels([1]),
        lambda: empty.submit_logprobs([1]),
        empty.prefill,
    ]
    for submit in asks:
        with pytest.raises(EmptyPrompt):
            submit()
    with pytest.raises(ContextTooLong) as caught:
        full.submit(max_tokens=1)
    assert (caught.value.num_tokens, caught.value.limit_tokens) == (100, 100)
    with pytest.raises(ContextTooLong):
        full.submit_logprobs([1])
    with pytest.raises(ContextTooLong):
        engine.context(text(1, 101)).submit(max_tokens=0)
    small = engine.context(text(1, 10))
    for wrong in (
        lambda: small.submit(max_tokens=-1),
        lambda: small.submit(max_tokens=True),
        lambda: small.submit_labels([]),
        lambda: small.submit_labels([1, 1]),
        lambda: small.submit_labels([256]),
        lambda: small.submit_logprobs([]),
        lambda: small.submit_logprobs([-1]),
        lambda: small.append([256]),
        lambda: small.truncate(11),
        lambda: engine.context([-1]),
    ):
        with pytest.raises(InvalidParameter):
            wrong()
    with pytest.raises(UsageError):
        small.submit(max_tokens=1, stop=["x"])
    small.close()
    with pytest.raises(ContextClosed):
        small.submit(max_tokens=1)
    with pytest.raises(ContextClosed):
        small.fork()
    readings = engine.readings()
    assert readings.counters.get("submitted", 0) == 0
    assert readings.pages.free == readings.pages.total


def test_a_full_context_can_still_be_scored(start: StartEngine) -> None:
    """A sequence of exactly the model's length has no room for a token, but every one of its own has a place."""
    engine = start(8, FakeBackend(context_tokens=100))
    full = engine.context(text(1, 100))
    assert full.prefill().result(20).finish_reason == "length"
    assert full.submit_labels([1, 2]).result(20).finish_reason == "scored"
    full.truncate(90)
    assert len(full.submit_logprobs(text(2, 10)).result(20).logprobs) == 10
    assert full.num_tokens == 90


def test_impossible_is_refused_and_says_how_much(start: StartEngine) -> None:
    """A prompt that the pool could never hold is refused at once; one that just fits is not."""
    engine = start(4)
    with pytest.raises(Impossible) as caught:
        engine.context(text(1, 65)).submit(max_tokens=1)
    assert (caught.value.need_pages, caught.value.total_pages) == (5, 4)
    assert engine.context(text(1, 65)).prefill().result(20).prefilled_tokens == 64, "its last token is not computed"


def test_pinned_pages_count_as_taken_unless_they_hold_the_prefix(start: StartEngine) -> None:
    """What is pinned cannot be had, but a request that continues it needs no second copy."""
    engine = start(10, prefix_cache_share=1.0)
    system = engine.context(text(1, 97))
    system.prefill().result(20)
    system.pin()
    with pytest.raises(Impossible) as caught:
        engine.context(text(2, 80)).submit(max_tokens=1)
    assert caught.value.pinned_pages == 6
    done = engine.context(text(1, 97) + text(2, 30)).generate(max_tokens=5)
    assert done.cached_tokens == 96
    system.pin(pinned=False)
    assert engine.context(text(2, 80)).generate(max_tokens=1).completion_tokens == 1


def test_one_context_runs_one_request(start: StartEngine) -> None:
    """A second request, or any change of the sequence, is refused while the first runs; a fork is not."""
    faults = Faults(hang=frozenset({0}))
    engine = start(16, FakeBackend(faults=faults))
    context = engine.context(text(1, 20))
    request = context.submit(max_tokens=5)
    for change in (
        lambda: context.submit(max_tokens=1),
        lambda: context.append([1]),
        lambda: context.truncate(1),
        lambda: context.rebase([1]),
    ):
        with pytest.raises(ContextBusy):
            change()
    fork = context.fork()
    other = fork.submit(max_tokens=5)
    faults.release.set()
    assert request.result(20).tokens == other.result(20).tokens


@pytest.mark.parametrize("count", [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255])
@pytest.mark.parametrize("chunk", [1, 16, 64, 512])
def test_prompt_lengths_around_page_and_chunk(start: StartEngine, answer: Answer, count: int, chunk: int) -> None:
    """Every length around the sizes of page, chunk and pool gives what the sequence alone decides."""
    engine = start(16, prefill_chunk=chunk)
    with engine.context(text(count, count)) as context:
        done = context.generate(max_tokens=1)
        assert list(done.tokens) == answer(text(count, count), 1)
        assert done.finish_reason == "length"
        assert (done.prompt_tokens, done.cached_tokens, done.prefilled_tokens) == (count, 0, count)
    assert engine.readings().pages.private == 0


def test_max_tokens_zero_only_prefills(start: StartEngine) -> None:
    """No token, a finish reason, clean counts; what was prefilled is not computed again."""
    engine = start(16)
    for count in (1, 2, 16, 17, 33):
        context = engine.context(text(count, count))
        done = context.prefill().result(20)
        assert (done.tokens, done.text, done.finish_reason) == ((), "", "length")
        assert done.ttft_s is None
        assert context.num_resident == count - 1
        assert context.generate(max_tokens=1).prefilled_tokens == 1


@pytest.mark.parametrize("count", [16, 17, 18, 33])
def test_prefill_of_what_the_cache_holds_completes(start: StartEngine, count: int) -> None:
    """A prefill that finds everything in the prefix index has nothing to compute, and says so."""
    engine = start(16)
    engine.context(text(1, 40)).prefill().result(20)
    context = engine.context(text(1, count))
    assert context.prefill().result(20).finish_reason == "length"
    assert context.num_resident == count - 1


def test_context_full_is_a_reason_and_not_a_loop(start: StartEngine) -> None:
    """Three branches, one at the model's limit: it stops with its reason, the others finish."""
    engine = start(32, FakeBackend(context_tokens=64))
    contexts = [engine.context(text(kind, count)) for kind, count in ((1, 60), (2, 20), (3, 20))]
    done = [request.result(20) for request in [c.submit(max_tokens=30) for c in contexts]]
    assert [(d.finish_reason, len(d.tokens)) for d in done] == [("context_full", 4), ("length", 30), ("length", 30)]
    assert contexts[0].num_tokens == 64


def test_stop_ids_end_without_joining(start: StartEngine, answer: Answer) -> None:
    """A stop token ends the request and stays out of text and sequence; an empty set ignores the model's own."""
    tokens = answer(text(1, 20), 12)
    stop = next(at for at in range(3, 12) if tokens[at] not in tokens[:at])
    engine = start(16, FakeBackend(eos_ids=frozenset({tokens[stop]})))
    context = engine.context(text(1, 20))
    done = context.generate(max_tokens=12)
    assert (list(done.tokens), done.finish_reason) == (tokens[:stop], "stop")
    assert context.tokens == tuple(text(1, 20) + tokens[:stop])
    ignoring = engine.context(text(1, 20)).generate(max_tokens=12, stop_ids=())
    assert (list(ignoring.tokens), ignoring.finish_reason) == (tokens, "length")
    at_once = engine.context(text(1, 20)).generate(max_tokens=12, stop_ids=[tokens[0]])
    assert (at_once.tokens, at_once.finish_reason) == ((), "stop"), "a natural stop is not starvation"


class Letters:
    """A codec of one letter a token."""

    class Stream:
        """Letters as they come."""

        def push(self, token: int) -> str:
            """Return the token's letter."""
            return chr(97 + token % 26)

        def finish(self) -> str:
            """Hold nothing back."""
            return ""

    def stream(self) -> Letters.Stream:
        """Return a new stream."""
        return Letters.Stream()


def test_stop_strings_cut_the_text(start: StartEngine, answer: Answer) -> None:
    """The text ends before a stop string that spans tokens, and pieces join to it."""
    letters = "".join(chr(97 + token % 26) for token in answer(text(1, 20), 20))
    stop = letters[6:9]
    engine = start(16, codec=Letters())
    pieces = list(engine.context(text(1, 20)).stream(max_tokens=20, stop=[stop, "never this"]))
    expected = letters[: letters.index(stop)]
    assert "".join(piece.text for piece in pieces) == expected
    done = engine.context(text(1, 20)).generate(max_tokens=20, stop=[stop])
    assert (done.text, done.finish_reason) == (expected, "stop")
    whole = engine.context(text(1, 20)).generate(max_tokens=20, stop=["no such text"])
    assert (whole.text, whole.finish_reason) == (letters, "length")


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

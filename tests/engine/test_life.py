"""The life of a request: however it ends, it ends once, with its type, and gives everything back."""

from __future__ import annotations

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
    EmptyPrompt,
    Impossible,
    InvalidParameter,
    UsageError,
)
from pie_mlx.events import RequestEnded
from pie_mlx.ids import PageId

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


def own_pages(engine: Engine, context: Context) -> set[PageId]:
    """Return the pages that a context alone views, those of a step in flight included."""
    with engine.locked() as core:
        sequence = core.sequences.get(context.id)
        views = core.index.views_by_page()
        pages = [] if sequence is None else [page for page, _shown in sequence.table.views()]
        return {page for page in pages if core.pool.refs(page) - views[page] == 1}


def end_and_look(engine: Engine, request: Request, context: Context, verb: str) -> None:
    """End a request; everything that it alone had is back at once, though a step may still be out."""
    own = own_pages(engine, context)
    request.cancel() if verb == "cancel" else context.close()
    assert verb == "cancel" or own_pages(engine, context) == set()
    with engine.locked() as core:
        assert request.id not in core.jobs
        kept = set() if verb == "close" else set(core.get(context.id).table.pages)
        cached = set(core.index.pages())
        assert all(core.pool.refs(page) == 0 or page in cached for page in own - kept)
        core.check()


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
                end_and_look(engine, request, contexts[at], verb)
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

"""Faults at every step: each request ends once with the right type, the pool is whole, the next run works."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pie_mlx.backend.fake import FakeBackend
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.errors import Cancelled, DeviceFailed, NotEnoughMemory, PieError
from pie_mlx.events import RequestEnded, StepDone

StartEngine = Callable[..., Engine]
Answer = Callable[[list[int], int], list[int]]
STEPS = 30


def text(kind: int, count: int) -> list[int]:
    """Return a text of its own."""
    return [(kind * 37 + at * 11 + kind * at) % 256 for at in range(count)]


def run(engine: Engine, answer: Answer) -> list[str]:
    """Run four requests that together take about thirty steps; return how each ended, checking all results."""
    root = engine.context(text(1, 40), name="root")
    root.prefill().result(20)
    contexts = [root.fork(), root.fork(), engine.context(text(2, 50)), engine.context(text(3, 10))]
    prompts = [list(context.tokens) for context in contexts]
    requests = [context.submit(max_tokens=26) for context in contexts]
    ends = []
    for request, tokens in zip(requests, prompts, strict=True):
        try:
            done = request.result(20)
        except PieError as error:
            ends.append(type(error).__name__)
        else:
            ends.append(done.finish_reason)
        assert list(request.partial.tokens) == answer(tokens, len(request.partial.tokens))
    for context in (root, *contexts):
        context.close()
    return ends


def assert_once_each(engine: Engine, events: list[object]) -> None:
    """Every request has one terminal event, counters add up, pages are whole."""
    ended = [event.request for event in events if isinstance(event, RequestEnded)]
    counters = engine.readings().counters
    assert len(ended) == len(set(ended)) == counters["submitted"]
    total = sum(counters.get(name, 0) for name in ("completed", "failed", "cancelled"))
    assert total == counters["submitted"]
    engine.check()


@pytest.mark.parametrize("kind", ["fail", "fail_row", "lose_row"])
@pytest.mark.parametrize("step", range(STEPS))
def test_failure_at_every_step(start: StartEngine, answer: Answer, kind: str, step: int) -> None:
    """A failed step, a failed row, a lost row: a typed error for whom it concerns, never an empty success."""
    backend = FakeBackend()
    engine = start(20, backend, prefill_chunk=24)
    with engine.listen() as events:
        setattr(backend.faults, kind, frozenset({step}))
        try:
            ends = run(engine, answer)
        except DeviceFailed:
            ends = ["DeviceFailed"]  # the prefill before the forks met the fault
        if backend.num_steps > step:
            assert ends.count("DeviceFailed") >= 1
            assert kind == "fail" or ends.count("DeviceFailed") == 1
        assert set(ends) <= {"DeviceFailed", "length"}
        assert run(engine, answer) == ["length"] * 4, "the next run works"
        seen = events.drain()
        assert_once_each(engine, list(seen))
    failed_rows = sum(event.failed_rows for event in seen if isinstance(event, StepDone))
    assert failed_rows == engine.readings().counters["failed"] == ends.count("DeviceFailed")


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("all_views", [True, False])
def test_eviction_in_the_middle_of_every_step(start: StartEngine, answer: Answer, step: int, all_views: bool) -> None:
    """Every context loses its pages while a step is in flight: all requests complete with the same tokens."""
    backend = FakeBackend()
    engine = start(20, backend, prefill_chunk=24)

    def evict() -> None:
        with engine.locked() as core:
            for sequence in list(core.sequences.values()):
                core.evict(sequence, all_views=all_views, was_running=sequence.job is not None)
            core.check()

    backend.faults.before_step = {step: evict}
    with engine.listen() as events:
        assert run(engine, answer) == ["length"] * 4
        assert_once_each(engine, list(events.drain()))


@pytest.mark.parametrize("step", range(0, STEPS, 3))
def test_cancel_everything_in_the_middle_of_a_step(start: StartEngine, answer: Answer, step: int) -> None:
    """All contexts are closed in flight: cancelled once each, every page is free when the step is over."""
    backend = FakeBackend()
    engine = start(20, backend, prefill_chunk=24)

    def close() -> None:
        with engine.locked() as core:
            for context in list(core.sequences):
                core.close(context)

    backend.faults.before_step = {step: close}
    with engine.listen() as events:
        try:
            ends = run(engine, answer)
        except Cancelled:
            ends = ["Cancelled"]
        assert set(ends) == {"Cancelled"}
        assert_once_each(engine, list(events.drain()))
    assert engine.readings().pages.private == engine.readings().pages.shared == 0
    assert run(engine, answer) == ["length"] * 4


@pytest.mark.parametrize("step", range(0, STEPS, 5))
def test_hang_at_a_step_is_a_device_failure_for_all(start: StartEngine, answer: Answer, step: int) -> None:
    """A device that never returns ends the engine: nobody waits for ever, and nobody gets an empty success."""
    backend = FakeBackend()
    backend.faults.hang = frozenset({step})
    engine = start(20, backend, prefill_chunk=24, step_timeout_s=0.1)
    with engine.listen() as events:
        try:
            ends = run(engine, answer)
        except DeviceFailed:
            ends = ["DeviceFailed"]
        assert "DeviceFailed" in ends
        assert set(ends) <= {"DeviceFailed", "length"}
        assert not engine.is_alive
        assert_once_each(engine, list(events.drain()))
    backend.faults.release.set()


def test_a_backend_without_a_pool_is_closed() -> None:
    """A pool that does not fit ends the start with its error, and the model does not stay in memory."""
    device = FakeBackend()
    device.allocate(4, 16)

    def refuse(*_: object) -> int:
        raise NotEnoughMemory("the pool", 2, 1)

    with pytest.raises(NotEnoughMemory):
        Engine.start(lambda: device, EngineSettings(), pool_sizer=refuse)
    assert device.memory()["arena"] == 0

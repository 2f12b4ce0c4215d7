"""Faults at every step: each request ends once with the right type, the pool is whole, the next run works."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pie_mlx.backend.fake import FakeBackend
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.engine.sizing import PoolSize
from pie_mlx.errors import Cancelled, DeviceFailed, EngineDead, NotEnoughMemory, PieError
from pie_mlx.events import Alarm, EngineEnded, RequestEnded, StepDone

StartEngine = Callable[..., Engine]
Answer = Callable[[list[int], int], list[int]]
STEPS = 30


def text(kind: int, count: int) -> list[int]:
    """Return a text of its own."""
    return [(kind * 37 + at * 11 + kind * at) % 256 for at in range(count)]


def run(engine: Engine, answer: Answer) -> list[str]:
    """Run four requests that together take over thirty steps; return how each ended, checking all results."""
    root = engine.context(text(1, 40), name="root")
    root.prefill().result(20)
    contexts = [root.fork(), root.fork(), engine.context(text(2, 50)), engine.context(text(3, 10))]
    prompts = [list(context.tokens) for context in contexts]
    # Together, between two steps: so that every run has the same steps.
    requests = engine.run_errand(lambda: [context.submit(max_tokens=30) for context in contexts])
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
        assert backend.num_steps > step, "the fault took place"
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


@pytest.mark.parametrize("step", range(STEPS))
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


def hang_at(step: int, start: StartEngine, answer: Answer) -> tuple[Engine, FakeBackend, list[str]]:
    """Run until the device hangs at ``step``, let the watchdog's time pass, return how each request ended.

    The limit is far above what any machine needs; the test says when it is over.
    """
    backend = FakeBackend()
    backend.faults.hang = frozenset({step})
    engine = start(20, backend, prefill_chunk=24, step_timeout_s=1000.0)
    with ThreadPoolExecutor(1) as owner:
        running = owner.submit(run, engine, answer)
        assert backend.faults.is_hanging.wait(20), "the run has this many steps"
        engine._watchdog.look(time.monotonic() + 1001.0)
        try:
            ends = running.result(20)
        except DeviceFailed as error:  # the prefill before the forks met the fault
            ends = [type(error).__name__]
    return engine, backend, ends


@pytest.mark.parametrize("step", range(STEPS))
def test_hang_at_every_step(start: StartEngine, answer: Answer, step: int) -> None:
    """A device that never returns ends the engine: all fail once, typed, pages are whole, a new engine works."""
    engine, backend, ends = hang_at(step, start, answer)
    assert set(ends) == {"StepTimeout"}, "nobody waits for ever, and nobody gets an empty success"
    assert not engine.is_alive
    counters = engine.readings().counters
    done = counters.get("completed", 0)
    assert counters["submitted"] == counters["failed"] + done
    assert done == (1 if len(ends) > 1 else 0), "the prefill before the forks, if it came so far"
    engine.check()
    with pytest.raises(EngineDead, match="has not returned"):
        engine.context([1]).submit(max_tokens=1)
    backend.faults.release.set()
    engine.close()
    assert engine.readings().pages.held == engine.readings().pages.cached
    assert run(start(20), answer) == ["length"] * 4, "a new engine works"


def test_hang_is_told_once_to_each(start: StartEngine, answer: Answer) -> None:
    """One terminal event a request, one alarm, one end of the engine."""
    backend = FakeBackend()
    backend.faults.hang = frozenset({7})
    engine = start(20, backend, prefill_chunk=24, step_timeout_s=1000.0)
    with engine.listen() as events, ThreadPoolExecutor(1) as owner:
        running = owner.submit(run, engine, answer)
        assert backend.faults.is_hanging.wait(20)
        for _ in range(3):
            engine._watchdog.look(time.monotonic() + 1001.0)
        assert set(running.result(20)) == {"StepTimeout"}
        seen = events.drain()
    assert_once_each(engine, list(seen))
    assert {event.reason for event in seen if isinstance(event, RequestEnded)} == {"length", "step_timeout"}
    assert [event.kind for event in seen if isinstance(event, Alarm)] == ["device"]
    assert sum(isinstance(event, EngineEnded) for event in seen) == 1


def test_process_ends_behind_hung_devices() -> None:
    """Engines whose devices hang, each at another step, do not keep the process from its end."""
    program = """
        import time
        from pie_mlx.backend.fake import FakeBackend, Faults
        from pie_mlx.engine import Engine, EngineSettings
        from pie_mlx.errors import DeviceFailed
        for step in range(0, 30, 5):
            faults = Faults(hang=frozenset({step}))
            settings = EngineSettings(pool_pages=8, prefill_chunk=2, step_timeout_s=1000)
            engine = Engine.start(lambda: FakeBackend(faults=faults), settings)
            request = engine.context([1, 2, 3, 4, 5]).submit(max_tokens=30)
            assert faults.is_hanging.wait(20)
            engine._watchdog.look(time.monotonic() + 1001)
            try:
                request.result(20)
            except DeviceFailed as error:
                exit_code = error.exit_code
        raise SystemExit(exit_code)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=100, check=False)
    assert done.returncode == 4


def test_a_backend_without_a_pool_is_closed() -> None:
    """A pool that does not fit ends the start with its error, and the model does not stay in memory."""
    device = FakeBackend()
    device.allocate(4, 16)

    def refuse(*_: object) -> PoolSize:
        raise NotEnoughMemory("the pool", 2, 1)

    with pytest.raises(NotEnoughMemory):
        Engine.start(lambda: device, EngineSettings(), pool_sizer=refuse)
    assert device.memory()["arena"] == 0

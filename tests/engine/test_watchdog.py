"""The watchdog: it says what stalls and why, ends only that, and takes nothing for a stall that is none."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

from pie_mlx.backend.fake import FakeBackend, Faults
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.engine.diagnosis import diagnose, find_cycle
from pie_mlx.engine.job import GenerateGoal, Phase
from pie_mlx.engine.scheduler import Blocked
from pie_mlx.engine.watchdog import Watchdog
from pie_mlx.errors import Deadlock, DeviceFailed, EngineDead, Leak, Starved, StepTimeout
from pie_mlx.events import Alarm, EngineEnded, RequestEnded
from pie_mlx.ids import PageId, RequestId
from pie_mlx.sampling import Sampling

StartEngine = Callable[..., Engine]
LIMIT_S = 10.0


def text(kind: int, count: int) -> list[int]:
    """Return a text of its own."""
    return [(kind * 37 + at * 11 + kind * at) % 256 for at in range(count)]


class Clock:
    """A second watchdog on the same books, whose time the test tells."""

    def __init__(self, engine: Engine, folder: Path | None = None) -> None:
        """Watch with a stall limit of ten seconds and a device limit of a hundred."""
        settings = EngineSettings(stall_timeout_s=LIMIT_S, step_timeout_s=100.0, report_dir=folder)
        self.watchdog = Watchdog(engine._books, settings)
        self.start_s = time.monotonic()
        self.events = engine.listen()
        self.watchdog.look(self.start_s)

    def look(self, after_s: float) -> list[Alarm]:
        """Look ``after_s`` seconds after the start; return the alarms."""
        self.watchdog.look(self.start_s + after_s)
        return [event for event in self.events.drain() if isinstance(event, Alarm)]


def wait_for_head(engine: Engine) -> None:
    """Return once the engine's thread has nothing more to run although a request is there."""
    for _ in range(2000):
        with engine.locked():
            if engine._books.stepper.head is not None and engine._books.call is None:
                return
        time.sleep(0.005)
    raise AssertionError("the request never blocked")


def test_starved_request_is_warned_of_then_failed_alone(start: StartEngine, tmp_path: Path) -> None:
    """Warning at half the time, failure at the whole: one each, with waiter, need, holders and a report."""
    engine = start(10)
    holder = engine.context(text(1, 120), name="saved thought")
    holder.prefill().result(20)
    holder.pin()
    blocked = engine.context(text(2, 20), name="answer")
    request = blocked.submit(max_tokens=100)
    wait_for_head(engine)
    clock = Clock(engine, tmp_path / "reports")
    assert clock.look(LIMIT_S * 0.4) == []
    warning = clock.look(LIMIT_S * 0.6)
    assert [(alarm.level, alarm.kind, alarm.request) for alarm in warning] == [("warning", "starved", request.id)]
    assert clock.look(LIMIT_S * 0.8) == [], "one warning a stall"
    failure = clock.look(LIMIT_S * 1.01)
    assert [(alarm.level, alarm.kind, alarm.request) for alarm in failure] == [("failure", "starved", request.id)]
    assert clock.look(LIMIT_S * 3) == [], "one report a stall"
    with pytest.raises(Starved) as caught:
        request.result(20)
    error = caught.value
    assert (error.need_pages, error.free_pages, error.total_pages) == (1, 0, 10)
    assert error.holders[0].name.startswith("saved thought")
    assert "pinned" in error.message
    assert request.partial.completion_tokens > 0
    (path,) = (tmp_path / "reports").iterdir()
    report = json.loads(path.read_text())
    assert report["waits_for"] == {str(request.id): []}, "nobody older holds pages: no request is in the way"
    assert report["try"][0] == f"close or unpin {error.holders[0].name}: 8 pages"
    assert report["try"][1] == "grow the pool: --pool-pages 11 or more"
    assert isinstance(report["tried"], list)
    assert (report["schema"], report["kind"], report["request"]) == ("pie-mlx.alarm/1", "starved", request.id)
    assert report["error"]["code"] == "starved"
    assert report["error"]["hint"]
    assert report["pages"] == {"total": 10, "free": 0, "private": 10, "shared": 0, "cached": 0}
    assert len(report["holders"]) == 2
    assert holder.num_resident == 119, "the pinned context is untouched"
    blocked.close()
    assert engine.context(text(3, 10)).generate(max_tokens=3).completion_tokens == 3


def test_only_the_blocked_request_fails(start: StartEngine) -> None:
    """A second request that waits behind it is served as soon as the first is ended."""
    engine = start(10)
    holder = engine.context(text(1, 120))
    holder.prefill().result(20)
    holder.pin()
    blocked = engine.context(text(2, 20)).submit(max_tokens=100)
    behind = engine.context(text(3, 20)).submit(max_tokens=5)
    wait_for_head(engine)
    readings = engine.readings()
    assert readings.waiting_by_reason == {"pages": 1, "turn": 1}
    assert readings.requests[1].waits_for == f"its turn: request {blocked.id} needs 1 pages first"
    Clock(engine).look(LIMIT_S * 1.01)
    with pytest.raises(Starved):
        blocked.result(20)
    assert len(behind.result(20).tokens) == 5


def test_unpinning_in_time_ends_the_stall(start: StartEngine) -> None:
    """The warning is not a verdict: pages that come back in time let the request go on."""
    engine = start(10)
    holder = engine.context(text(1, 120))
    holder.prefill().result(20)
    holder.pin()
    request = engine.context(text(2, 20)).submit(max_tokens=100)
    wait_for_head(engine)
    clock = Clock(engine)
    assert clock.look(LIMIT_S * 0.6)
    holder.pin(pinned=False)
    assert len(request.result(20).tokens) == 100
    assert clock.look(LIMIT_S * 1.5) == []


def test_leaked_page_is_found(start: StartEngine) -> None:
    """A page that is held by nobody is named, as a fault of ours."""
    engine = start(4)
    with engine.locked() as core:
        page = core.pool.allocate(2)
    request = engine.context(text(1, 30)).submit(max_tokens=50)
    with pytest.raises(Starved):
        request.result(20)
    holder = engine.context(text(1, 2))
    holder.generate(max_tokens=1)
    holder.pin()
    request = engine.context(text(1, 10)).submit(max_tokens=50)
    wait_for_head(engine)
    (alarm,) = Clock(engine).look(LIMIT_S * 1.01)
    assert alarm.kind == "leak"
    with pytest.raises(Leak) as caught:
        request.result(20)
    assert caught.value.pages == tuple(page)
    assert "report" in str(caught.value.hint)
    with engine.locked() as core:
        core.pool.release(page)


def test_long_steps_and_idle_time_are_no_stalls(start: StartEngine) -> None:
    """A device call has a limit of its own, and an engine without work may rest for ever."""
    faults = Faults(hang=frozenset({0}))
    engine = start(8, FakeBackend(faults=faults))
    clock = Clock(engine)
    assert clock.look(LIMIT_S * 50) == []
    request = engine.context(text(1, 60)).submit(max_tokens=3)
    while engine.readings().step_s is None:
        time.sleep(0.002)
    clock = Clock(engine)
    assert clock.look(LIMIT_S * 4.9) == [], "a long prefill is the device's own time"
    (warning,) = clock.look(61.0)
    assert (warning.level, warning.kind, warning.request) == ("warning", "device", None)
    faults.release.set()
    assert len(request.result(20).tokens) == 3
    assert clock.look(200.0) == []


def test_hung_device_ends_the_engine_and_everybody_hears_of_it(start: StartEngine) -> None:
    """A call over its limit: every request fails as a device failure, later ones say why, pages are whole."""
    faults = Faults(hang=frozenset({2}))
    engine = start(16, FakeBackend(faults=faults), step_timeout_s=0.2)
    with engine.listen() as events:
        contexts = [engine.context(text(kind, 20)) for kind in range(3)]
        requests = [context.submit(max_tokens=10) for context in contexts]
        for request in requests:
            with pytest.raises(DeviceFailed, match="has not returned"):
                request.result(20)
        seen = events.drain()
    assert [(event.level, event.kind) for event in seen if isinstance(event, Alarm)][-1] == ("failure", "device")
    assert sum(isinstance(event, RequestEnded) for event in seen) == 3
    assert sum(isinstance(event, EngineEnded) for event in seen) == 1
    with pytest.raises(EngineDead, match="has not returned"):
        contexts[0].submit(max_tokens=1)
    engine.check()
    assert not engine.readings().is_alive
    faults.release.set()


class Errand:
    """An errand that lasts until it is told to end, with requests that wait behind it."""

    def __init__(self, engine: Engine, limit_s: float | None = None) -> None:
        """Begin it; return once the engine's thread is on it."""
        self.engine = engine
        self.orders: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.done: SimpleQueue[None] = SimpleQueue()
        self.pool = ThreadPoolExecutor(1)
        self.future = self.pool.submit(engine.run_errand, self.work, limit_s=limit_s)
        self.done.get(timeout=20)

    def work(self) -> str:
        """Do as told, on the engine's thread."""
        self.done.put(None)
        while (order := self.orders.get()) is not None:
            order()
            self.done.put(None)
        return "done"

    def do(self, order: Callable[[], object]) -> None:
        """Have something done on the engine's thread."""
        self.orders.put(order)
        self.done.get(timeout=20)

    def end(self) -> None:
        """Let it end."""
        self.orders.put(None)
        self.pool.shutdown()


def test_errand_over_its_own_limit_is_a_hung_device(start: StartEngine) -> None:
    """Work that runs between two steps is timed too: its caller gets the device's failure, and later ones too."""
    engine = start(8, step_timeout_s=0.2, errand_timeout_s=500.0)
    errand = Errand(engine, limit_s=600.0)
    clock = Clock(engine)
    assert clock.look(299.0) == [], "neither a step's limit nor the usual one of errands"
    (warning,) = clock.look(301.0)
    assert (warning.level, warning.kind) == ("warning", "device")
    (failure,) = clock.look(601.0)
    assert (failure.level, failure.kind) == ("failure", "device")
    with pytest.raises(StepTimeout, match="limit of 600"):
        errand.future.result(20)
    with pytest.raises(EngineDead):
        engine.run_errand(lambda: None)
    errand.end()


def test_heartbeat_keeps_a_long_errand_alive(start: StartEngine) -> None:
    """What it says of itself counts anew from then; what others say does not."""
    engine = start(8)
    errand = Errand(engine, limit_s=100.0)
    waiting = engine.context(text(2, 20)).submit(max_tokens=3)
    clock = Clock(engine)
    call = engine._books.call
    assert call is not None
    call.alive_s -= 1000.0  # as if it had begun so long ago
    engine.heartbeat()
    assert call.alive_s < clock.start_s - 900, "only the engine's own thread can tell"
    errand.do(engine.heartbeat)
    assert clock.look(49.0) == []
    errand.end()
    assert errand.future.result(20) == "done"
    assert len(waiting.result(20).tokens) == 3, "who waited behind it was not taken for starved"


def test_time_of_device_calls_is_no_time_of_stalls(start: StartEngine) -> None:
    """A request that waits for a pinned context's pages is not failed for the length of somebody's errand."""
    engine = start(10)
    holder = engine.context(text(1, 120))
    holder.prefill().result(20)
    holder.pin()
    request = engine.context(text(2, 20)).submit(max_tokens=100)
    wait_for_head(engine)
    clock = Clock(engine)
    engine._books.busy_s += LIMIT_S * 5  # an errand of that length came and went
    assert clock.look(LIMIT_S * 5.4) == []
    assert [alarm.level for alarm in clock.look(LIMIT_S * 5.6)] == ["warning"]
    assert [alarm.level for alarm in clock.look(LIMIT_S * 6.1)] == ["failure"]
    with pytest.raises(Starved):
        request.result(20)


def test_new_requests_are_no_sign_of_life_of_a_device(start: StartEngine) -> None:
    """Clients that keep asking do not keep a hung device from being found out."""
    faults = Faults(hang=frozenset({0}))
    engine = start(8, FakeBackend(faults=faults))
    first = engine.context(text(1, 20)).submit(max_tokens=3)
    assert faults.is_hanging.wait(20)
    clock = Clock(engine)
    requests = [first]
    for after_s in (20.0, 50.0, 90.0, 99.0):
        requests.append(engine.context(text(2, 20)).submit(max_tokens=3))
        clock.look(after_s)
    limit_s = engine.settings.step_timeout_s
    assert [alarm.level for alarm in clock.look(limit_s + 1.0)][-1] == "failure"
    for request in requests:
        with pytest.raises(StepTimeout):
            request.result(20)
    faults.release.set()


def test_process_ends_although_the_device_hangs() -> None:
    """A hung device call does not keep the process: the error is shown and the program ends."""
    program = """
        from pie_mlx.backend.fake import FakeBackend, Faults
        from pie_mlx.engine import Engine, EngineSettings
        from pie_mlx.errors import DeviceFailed
        faults = Faults(hang=frozenset({1}))
        engine = Engine.start(lambda: FakeBackend(faults=faults), EngineSettings(pool_pages=8, step_timeout_s=0.3))
        try:
            engine.context([1, 2, 3]).generate(max_tokens=9)
        except DeviceFailed as error:
            raise SystemExit(error.exit_code)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=60, check=False)
    assert done.returncode == 4


def test_unwritable_report_does_not_end_the_watch(start: StartEngine, tmp_path: Path) -> None:
    """The request is failed all the same, and the alarm says what could not be written."""
    engine = start(10)
    holder = engine.context(text(1, 120))
    holder.prefill().result(20)
    holder.pin()
    request = engine.context(text(2, 20)).submit(max_tokens=100)
    wait_for_head(engine)
    (tmp_path / "file").write_text("not a folder")
    alarms = Clock(engine, tmp_path / "file").look(LIMIT_S * 1.01)
    assert [alarm.kind for alarm in alarms] == ["starved", "report"]
    with pytest.raises(Starved):
        request.result(20)


def test_what_may_be_evicted_counts_as_free(start: StartEngine) -> None:
    """A head that waits although idle contexts hold enough is not starved: the fault is the engine's."""
    engine = start(10)
    idle = engine.context(text(1, 120))
    idle.prefill().result(20)
    with engine.locked() as core:
        job = core.submit(core.open(text(2, 20), "").id, GenerateGoal(5, Sampling(), frozenset()))
        finding = diagnose(core, Blocked(job.id, 5, 2, "its prompt does not fit"), [], 11.0)
        core.end(job, Phase.FAILED, error=finding.error)
    assert finding.kind == "stalled"
    assert "10 are free or may be taken" in finding.error.message


def test_cycle_is_a_deadlock(start: StartEngine) -> None:
    """Requests that wait for each other in a ring are named in order, the youngest to be ended."""
    engine = start(10)
    with engine.locked() as core:
        jobs = []
        for kind in range(3):
            sequence = core.open(text(kind, 20), "")
            jobs.append(core.submit(sequence.id, GenerateGoal(5, Sampling(), frozenset())))
        jobs[0].sequence.table.reserve(4)
        jobs[0].sequence.table.commit(4)
        finding = diagnose(core, Blocked(jobs[2].id, 5, 2, "its prompt does not fit"), [], 11.0)
        for job in jobs:
            core.end(job, Phase.FAILED, error=finding.error)
    assert finding.kind == "deadlock"
    assert isinstance(finding.error, Deadlock)
    assert set(finding.error.cycle) == {f"request {jobs[0].id}", f"request {jobs[2].id}"}
    assert finding.request == jobs[2].id


def test_cycles_are_found_and_trees_are_not() -> None:
    """A ring anywhere in a wait-for graph is found; diamonds and chains are none."""
    one, two, three, four = (RequestId(number) for number in (1, 2, 3, 4))
    assert find_cycle({}) == ()
    assert find_cycle({one: [two, three], two: [four], three: [four], four: []}) == ()
    assert find_cycle({one: [two], two: [three], three: [two]}) == (two, three)
    assert find_cycle({one: [one]}) == (one,)


def test_pages_in_flight_are_no_leak(start: StartEngine) -> None:
    """Pages reserved for the step on the device have an owner."""
    backend = FakeBackend()
    engine = start(8, backend)
    found: list[tuple[PageId, ...]] = []

    def look() -> None:
        with engine.locked() as core:
            core.check()
            found.append(tuple(page for page, shown in core.views() if shown == 0))

    backend.faults.before_step = {0: look}
    engine.context(text(1, 40)).generate(max_tokens=1)
    assert [len(pages) for pages in found] == [3]

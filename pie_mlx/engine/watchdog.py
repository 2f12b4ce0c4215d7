"""The watchdog: its own thread, reading the engine's records, never the device.

A **progress clock** counts tokens committed, pages freed and requests that came, were admitted or ended.
The engine is stalled iff work is there and the clock stood still for ``stall_timeout_s``; a device call
over ``step_timeout_s`` is a dead device. At half the time it warns, at the full time it ends the one
request that is blocked, or the engine if it is the device that hangs.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

from pie_mlx.engine.settings import EngineSettings
from pie_mlx.engine.world import CoreWorld
from pie_mlx.errors import DeviceFailed, Fact, Leak, PieError, Stalled, Starved
from pie_mlx.events import Alarm
from pie_mlx.ids import RequestId

if TYPE_CHECKING:
    from pie_mlx.engine.core import Core
    from pie_mlx.engine.engine import Engine


class Watchdog:
    """Watches one engine until it is stopped."""

    def __init__(self, engine: Engine, settings: EngineSettings) -> None:
        """Prepare to watch; :meth:`start` begins."""
        self._engine = engine
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pie-watchdog", daemon=True)
        self._clock: tuple[int, ...] = ()
        self._moved_s = time.monotonic()
        self._has_warned = False
        self.num_reports = 0

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End; waits for the thread unless it is the one that calls."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        """Look several times per timeout, until stopped or the engine is dead."""
        shortest = min(self._settings.stall_timeout_s, self._settings.step_timeout_s)
        while not self._stop.wait(min(1.0, shortest / 8)) and self._engine.is_alive:
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Compare the clock with the last look, and act on what it says."""
        with self._engine.locked() as core:
            clock, has_work = _progress(core), bool(core.jobs)
            started = self._engine.step_started_s
        if clock != self._clock or not has_work:
            self._clock, self._moved_s, self._has_warned = clock, now_s, False
        # A step in flight is the device's own time: only its own limit applies to it.
        limit = self._settings.stall_timeout_s if started is None else self._settings.step_timeout_s
        waited = now_s - (self._moved_s if started is None else max(started, self._moved_s))
        if not has_work or waited < limit / 2:
            return
        if waited >= limit:
            self._act(waited, limit, is_device=started is not None)
        elif not self._has_warned:
            self._has_warned = True
            kind, error, _request = self._classify(waited, is_device=started is not None)
            self._alarm("warning", kind, error, None)

    def _act(self, waited_s: float, limit_s: float, *, is_device: bool) -> None:
        """End what stalls: the engine if the device hangs, else the one blocked request."""
        kind, error, request = self._classify(waited_s, is_device=is_device)
        self._moved_s, self._has_warned = time.monotonic(), False
        self._alarm("failure", kind, error, request)
        if is_device:
            self._engine.kill(error)
            return
        with self._engine.locked() as core:
            job = core.jobs.get(request) if request is not None else next(iter(core.jobs.values()), None)
        if job is not None:
            self._engine.fail_request(job, error)

    def _classify(self, waited_s: float, *, is_device: bool) -> tuple[str, PieError, RequestId | None]:
        """Name the stall: device, leak, starved, or stalled where pages are not the cause."""
        if is_device:
            return "device", DeviceFailed(f"a step has not returned for {waited_s:.1f} s"), None
        with self._engine.locked() as core:
            head = self._engine.stepper.head
            leaked = leaked_pages(core)
            if leaked:
                return "leak", Leak(leaked, core.pool.num_pages), head.request if head else None
            if head is None:
                oldest = next(iter(core.jobs), None)
                return "stalled", Stalled(waited_s, "requests are there, but none was given a step"), oldest
            world = CoreWorld(core)
            cause = f"pinned contexts hold {world.num_pinned_pages()} pages; {head.why}"
            error = Starved(
                head.need_pages,
                world.free_pages,
                world.total_pages,
                cause,
                f"request {head.request}",
                world.holders(),
                tuple(self._engine.stepper.actions),
            )
            return "starved", error, head.request

    def _alarm(self, level: str, kind: str, error: PieError, request: RequestId | None) -> None:
        """Tell the listeners, and write the report once per stall."""
        report: dict[str, Fact] = {"schema": "pie-mlx.alarm/1", "level": level, "kind": kind, "error": dict(error.to_json())}
        self._engine.listeners.emit(Alarm(level, kind, error.message, request, report))
        folder = self._settings.report_dir
        if level == "failure" and folder is not None:
            self.num_reports += 1
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"alarm-{time.strftime('%Y%m%d-%H%M%S')}-{self.num_reports}.json"
            path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _progress(core: Core) -> tuple[int, ...]:
    """Return the progress clock: it differs from its last value iff something moved."""
    names = ("tokens_committed", "submitted", "completed", "failed", "cancelled", "preemptions", "evictions")
    return (*(core.counters[name] for name in names), core.pool.num_freed_ever)


def leaked_pages(core: Core) -> tuple[int, ...]:
    """Return pages that are held although no owner views them."""
    viewed = {page for page, _shown in core.views()}
    refs = core.pool.refs_by_page()
    return tuple(page for page in range(1, core.pool.num_pages + 1) if refs[page] and page not in viewed)

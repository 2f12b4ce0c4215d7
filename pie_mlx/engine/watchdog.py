"""The watchdog: its own thread, reading the engine's records, never the device.

A **progress clock** counts tokens committed, pages freed and requests that came, were admitted or ended.
The engine is stalled iff work is there and the clock stood still for ``stall_timeout_s``, the time of device
calls not counted. Those have limits of their own: a step ``step_timeout_s``, an errand its own, each since its
last heartbeat; whoever goes over it is a dead device. At half the time it warns, at the full time it ends the
one request that is blocked, or the engine if it is the device that hangs.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pie_mlx.engine.diagnosis import Finding, Waited, diagnose, hung_device, report
from pie_mlx.engine.job import Phase
from pie_mlx.engine.settings import EngineSettings
from pie_mlx.errors import Fact
from pie_mlx.events import Alarm

if TYPE_CHECKING:
    from pie_mlx.engine.books import Books
    from pie_mlx.engine.core import Core


@dataclass(frozen=True, slots=True)
class _Stall:
    """What one look found, ready to be told."""

    level: str
    finding: Finding
    report: dict[str, Fact]


class Watchdog:
    """Watches one engine until it is stopped."""

    def __init__(self, books: Books, settings: EngineSettings) -> None:
        """Prepare to watch; :meth:`start` begins."""
        self._books = books
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pie-watchdog", daemon=True)
        self._clock: tuple[int, ...] = ()
        self._moved_s = time.monotonic()
        self._busy_s = 0.0
        self._warned_of: object = None
        self.num_reports = 0

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End; waits for the thread unless it is the one that calls."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        """Look several times per timeout, until stopped or the engine is dead."""
        shortest = min(self._settings.stall_timeout_s, self._settings.step_timeout_s)
        while not self._stop.wait(min(1.0, shortest / 8)) and self._books.is_alive:
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Compare the clock with the last look, act on what it says, then tell."""
        with self._books.locked() as core:
            stall = self._judge(core, now_s)
        if stall is not None:
            self._tell(stall)

    def _judge(self, core: Core, now_s: float) -> _Stall | None:
        """Decide and act in one go, so that what is ended is what was seen; the lock is held."""
        if self._books.death is not None:
            return None
        books, clock = self._books, _progress(core)
        call, stepper = books.call, books.stepper
        if clock != self._clock or not core.jobs:
            self._clock, self._moved_s, self._busy_s = clock, now_s, books.busy_s
        # A call that is out is the device's own time, and new requests are no sign of life of a device.
        limit = self._settings.stall_timeout_s if call is None else call.limit_s
        waited = now_s - (self._moved_s + books.busy_s - self._busy_s if call is None else call.alive_s)
        # One warning a call, or a state of the clock.
        subject: object = (clock, None) if call is None else (call.started_s, call.alive_s)
        is_over = waited >= limit
        if (call is None and not core.jobs) or waited < limit / 2 or (self._warned_of == subject and not is_over):
            return None
        finding = diagnose(core, stepper.head, stepper.actions, waited) if call is None else hung_device(waited, limit)
        level = "failure" if is_over else "warning"
        stall = _Stall(level, finding, report(core, finding, Waited(level, waited, limit), stepper))
        self._warned_of = subject
        if is_over:
            self._moved_s, self._busy_s, self._warned_of = now_s, books.busy_s, None
            self._end(core, finding)
        return stall

    def _end(self, core: Core, finding: Finding) -> None:
        """End what stalls: the engine if the device hangs, else the one blocked request."""
        if finding.kind == "device":
            self._books.die(finding.error)
        elif finding.request is not None:
            core.end(core.jobs[finding.request], Phase.FAILED, error=finding.error)

    def _tell(self, stall: _Stall) -> None:
        """Tell the listeners; write a failure's report, once per stall."""
        finding = stall.finding
        self._books.listeners.emit(
            Alarm(stall.level, finding.kind, finding.error.message, finding.request, stall.report)
        )
        folder = self._settings.report_dir
        if stall.level == "failure" and folder is not None:
            try:
                self._write(folder, stall.report)
            except OSError as error:
                # The request has its error all the same; a full disk must not end the watch.
                text = f"the report could not be written: {error}"
                self._books.listeners.emit(Alarm("warning", "report", text, finding.request, stall.report))

    def _write(self, folder: Path, facts: dict[str, Fact]) -> None:
        """Write a report under a name that sorts by time."""
        self.num_reports += 1
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"alarm-{time.strftime('%Y%m%d-%H%M%S')}-{self.num_reports}.json"
        path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _progress(core: Core) -> tuple[int, ...]:
    """Return the progress clock: it differs from its last value iff something moved."""
    names = ("tokens_committed", "submitted", "completed", "failed", "cancelled", "preemptions", "evictions")
    return (*(core.counters[name] for name in names), core.pool.num_freed_ever)

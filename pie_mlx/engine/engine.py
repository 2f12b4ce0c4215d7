"""The engine: one thread that owns the device, one lock around the bookkeeping, many callers.

Callers submit, cancel, fork and close under the lock, in microseconds; the thread holds it to plan and to
commit, never while the device works. Pages that are freed during a step are handed out by the next plan
at the earliest, which follows the step on the same device queue: nothing can be overwritten too early.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

from pie_mlx.backend.base import Backend, BackendFacts
from pie_mlx.engine.context import Context
from pie_mlx.engine.core import Core
from pie_mlx.engine.errand import Errand
from pie_mlx.engine.job import GenerateGoal, Goal, Job, Phase
from pie_mlx.engine.listening import Listeners, Subscription
from pie_mlx.engine.looking import read_core, read_pages
from pie_mlx.engine.readings import PageReading, Readings
from pie_mlx.engine.request import Request
from pie_mlx.engine.scheduler import Limits
from pie_mlx.engine.settings import EngineSettings
from pie_mlx.engine.sizing import pages_by_memory
from pie_mlx.engine.snapshots import Restored, restore, saved_part
from pie_mlx.engine.stepping import Stepper, StepWork
from pie_mlx.engine.text import Codec, StoppingText
from pie_mlx.engine.watchdog import Watchdog
from pie_mlx.errors import Cancelled, DeviceFailed, EngineDead, PieError
from pie_mlx.events import EngineEnded, StepDone
from pie_mlx.ids import ContextId
from pie_mlx.kv.pool import PagePool
from pie_mlx.kv.snapshot import Arrays, SnapshotFacts, SnapshotStore

T = TypeVar("T")

PoolSizer = Callable[[BackendFacts, EngineSettings], int]
"""Chooses the number of pages once the model is known."""


def _close_left_open(engine: weakref.ref[Engine]) -> None:
    """Close an engine that its owner left open, at the end of the process."""
    if (left := engine()) is not None:
        left.close()


class Engine:
    """A loaded model over a page pool. Make one with :meth:`start`, close it, or use it in ``with``."""

    def __init__(self, settings: EngineSettings, codec: Codec | None, pool_sizer: PoolSizer) -> None:
        """Prepare; :meth:`start` is the way in."""
        self.settings = settings
        self.codec = codec
        self._pool_sizer = pool_sizer
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._dropped: deque[ContextId] = deque()
        self._errands: deque[Errand[Any]] = deque()
        self._listeners = Listeners()
        self._is_stopping = False
        self._death: PieError | None = None
        self._step_started_s: float | None = None
        self._backend: Backend | None = None
        self._core: Core | None = None
        self._stepper: Stepper | None = None
        self._watchdog: Watchdog | None = None

    @classmethod
    def start(
        cls,
        make_backend: Callable[[], Backend],
        settings: EngineSettings | None = None,
        codec: Codec | None = None,
        *,
        pool_sizer: PoolSizer = pages_by_memory,
    ) -> Engine:
        """Load the model on the engine's own thread and wait until it is ready.

        Raises:
            PieError: whatever ``make_backend`` raised, with its type.
        """
        engine = cls(settings or EngineSettings(), codec, pool_sizer)
        ready: SimpleQueue[PieError | None] = SimpleQueue()
        engine._thread = threading.Thread(target=engine._main, args=(make_backend, ready), name="pie-engine", daemon=True)
        engine._thread.start()
        error = ready.get()
        if error is not None:
            raise error
        engine._watchdog = Watchdog(engine, engine.settings)
        engine._watchdog.start()
        # A device that is still open when the interpreter ends can abort the process.
        atexit.register(_close_left_open, weakref.ref(engine))
        return engine

    _thread: threading.Thread

    def __enter__(self) -> Self:
        """Return the engine itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it."""
        self.close()

    # --- what owners call ------------------------------------------------------------------

    @property
    def facts(self) -> BackendFacts:
        """The model's and the device's facts."""
        assert self._backend is not None, "a started engine has a backend"
        return self._backend.facts

    @property
    def backend(self) -> Backend:
        """The backend; only the engine's thread may call it."""
        assert self._backend is not None, "a started engine has a backend"
        return self._backend

    @property
    def is_alive(self) -> bool:
        """Whether requests can run."""
        return self._death is None and not self._is_stopping

    def context(self, tokens: Sequence[int] = (), *, name: str = "") -> Context:
        """Open a context; computes nothing and takes no page yet."""
        with self.locked() as core:
            sequence = core.open(tokens, name)
        return Context(self, sequence.id, name)

    def submit(self, context: ContextId, goal: Goal, *, stop: Sequence[str] = (), extra: Sequence[int] = ()) -> Request:
        """Register a request and wake the engine; :class:`Context` has the friendly forms."""
        text = None
        if isinstance(goal, GenerateGoal) and self.codec is not None:
            text = StoppingText(self.codec, stop)
        with self.locked() as core:
            if not self.is_alive:
                raise self._dead()
            job = core.submit(context, goal, text=text, extra=extra)
            self._wake.notify_all()
        return Request(job, lambda: self._cancel(job))

    def _cancel(self, job: Job) -> None:
        """End a request at its owner's wish."""
        with self.locked() as core:
            core.end(job, Phase.CANCELLED, error=Cancelled())

    def drop(self, context: ContextId) -> None:
        """Close a context whose handle was garbage-collected; safe at any moment, in any thread."""
        # A finalizer can run inside our own locked section, so it must never wait for the lock.
        self._dropped.append(context)
        if self._lock.acquire(blocking=False):
            try:
                self._close_dropped()
                self._wake.notify_all()
            finally:
                self._lock.release()

    def listen(self) -> Subscription:
        """Return a queue of the engine's events from now on; close it when done."""
        return self._listeners.subscribe()

    def readings(self) -> Readings:
        """Return one consistent reading of pages, contexts and requests."""
        with self.locked() as core:
            started = self._step_started_s
            step_s = None if started is None else time.monotonic() - started
            head = self._stepper.head if self._stepper is not None else None
            return read_core(core, head=head, is_alive=self.is_alive, step_s=step_s)

    def page_map(self) -> list[PageReading]:
        """Return every held page with its owners."""
        with self.locked() as core:
            return read_pages(core)

    def save(self, context: ContextId, name: str, store: SnapshotStore) -> SnapshotFacts:
        """Save a context under ``name``; :meth:`Context.save` is the friendly form.

        Raises:
            SnapshotError: it could not be written.
            ContextClosed, EngineDead: as their names say.
        """

        def read() -> tuple[list[int], Arrays]:
            with self.locked() as core:
                tokens, slots = saved_part(core, context)
            # Pages freed meanwhile keep their content until the next step, which this errand precedes.
            return tokens, {} if self.facts.has_state or not len(slots) else self.backend.read_slots(slots)

        tokens, arrays = self.run_errand(read)
        facts = self.facts
        return store.save(name, model=facts.model, fingerprint=facts.fingerprint, tokens=tokens, arrays=arrays)

    def open_context(self, name: str, store: SnapshotStore) -> tuple[Context, Restored]:
        """Open a context from the snapshot ``name``; says what was resident, loaded, and left to recompute.

        Raises:
            SnapshotMissing, SnapshotCorrupt, SnapshotVersion, SnapshotMismatch, EngineDead.
        """
        snapshot = store.load(name, fingerprint=self.facts.fingerprint)

        def fill() -> tuple[ContextId, Restored]:
            with self.locked() as core:
                sequence, restored = restore(core, self.backend, snapshot, name)
                return sequence.id, restored

        context, restored = self.run_errand(fill)
        return Context(self, context, name), restored

    def run_errand(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the engine's thread between two steps and return what it returns.

        Raises:
            EngineDead: the engine ended first.
            Exception: whatever ``work`` raised.
        """
        future: Future[T] = Future()
        with self.locked():
            if not self.is_alive:
                raise self._dead()
            self._errands.append(Errand(work, future))
        return future.result()

    def _dead(self) -> EngineDead:
        """Return the error of a call that comes too late."""
        return EngineDead(self._death.message if self._death is not None else "it was closed")

    def clear_cache(self) -> int:
        """Drop every prefix entry; return the pages that became free."""
        with self.locked() as core:
            return core.index.clear()

    def check(self) -> None:
        """Assert the invariants of pool, contexts and requests."""
        with self.locked() as core:
            core.check()

    def close(self) -> None:
        """End every request as cancelled, free the model, join the thread. Idempotent."""
        if self._watchdog is not None:
            self._watchdog.stop()
        with self.locked() as core:
            self._is_stopping = True
            for job in list(core.jobs.values()):
                core.end(job, Phase.CANCELLED, error=Cancelled("shutdown"))
            for context in list(core.sequences):
                core.close(context)
            self._wake.notify_all()
        # A hung device never returns; the thread is a daemon, so the process can still end.
        self._thread.join(timeout=None if self._death is None else 0.2)

    @contextlib.contextmanager
    def locked(self) -> Iterator[Core]:
        """Hold the bookkeeping lock; dropped handles are closed first and last."""
        with self._lock:
            assert self._core is not None, "a started engine has a core"
            self._close_dropped()
            try:
                yield self._core
            finally:
                self._close_dropped()
                self._wake.notify_all()

    def _close_dropped(self) -> None:
        """Close contexts whose handles are gone; the lock is held."""
        while self._dropped:
            context = self._dropped.popleft()
            if self._core is not None:
                self._core.close(context)

    def kill(self, error: PieError) -> None:
        """Mark the engine dead, ending every request with ``error``: the device will not be asked again."""
        with self.locked() as core:
            if self._death is not None:
                return
            self._death = error
            core.fail_all(lambda _job: error)
            self._wake.notify_all()
            while self._errands:
                self._errands.popleft().future.set_exception(self._dead())
        self._listeners.emit(EngineEnded(error.message))

    def fail_request(self, job: Job, error: PieError) -> None:
        """End one request with ``error``; the others go on."""
        with self.locked() as core:
            core.end(job, Phase.FAILED, error=error)

    @property
    def stepper(self) -> Stepper:
        """The stepper; look at it only under the lock."""
        assert self._stepper is not None, "a started engine has a stepper"
        return self._stepper

    @property
    def step_started_s(self) -> float | None:
        """When the step in flight began (monotonic seconds); None if none is."""
        return self._step_started_s

    @property
    def listeners(self) -> Listeners:
        """Everybody who listens."""
        return self._listeners

    # --- the engine's thread ---------------------------------------------------------------

    def _main(self, make_backend: Callable[[], Backend], ready: SimpleQueue[PieError | None]) -> None:
        """Load, serve, end: the thread's whole life."""
        try:
            self._load(make_backend)
        except PieError as error:
            ready.put(error)
            return
        except Exception as error:  # the thread's outer edge: the caller must get an answer, whatever it was
            failure = DeviceFailed(f"loading failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            ready.put(failure)
            return
        ready.put(None)
        try:
            self._serve()
        except Exception as error:  # the thread's outer edge: callers must not wait for a thread that is gone
            self.kill(EngineDead(f"{type(error).__name__}: {error}"))
            raise
        finally:
            self.backend.close()
        if self._death is None:
            self._listeners.emit(EngineEnded(None))

    def _load(self, make_backend: Callable[[], Backend]) -> None:
        """Make backend, pool and core."""
        backend = make_backend()
        facts, settings = backend.facts, self.settings
        pool = PagePool(self._pool_sizer(facts, settings), settings.page_size)
        backend.allocate(pool.num_pages, pool.page_size)
        cached = int(pool.num_pages * settings.prefix_cache_share) if settings.prefix_cache else 0
        if facts.has_state:
            cached = 0  # a page without the recurrent state at its end cannot be continued
        self._backend = backend
        self._core = Core(
            pool,
            context_tokens=facts.context_tokens,
            vocab_size=facts.vocab_size,
            max_cached_pages=cached,
            emit=self._listeners.emit,
        )
        limits = Limits(settings.page_size, settings.max_batch, settings.prefill_chunk, facts.max_batch_rows)
        self._stepper = Stepper(self._core, limits)

    def _serve(self) -> None:
        """Plan, run, commit, until shutdown."""
        while (work := self._plan()) is not None:
            if isinstance(work, Errand):
                work.run()
            else:
                self._run_step(work)
        with self.locked():
            while self._errands:
                self._errands.popleft().future.set_exception(self._dead())

    def _plan(self) -> StepWork | Errand[Any] | None:
        """Wait until a step or an errand can run and return it; None is shutdown or death."""
        with self.locked():
            while not self._is_stopping and self._death is None:
                if self._errands:
                    return self._errands.popleft()
                work = self.stepper.next_step()
                if work is not None:
                    self._step_started_s = time.monotonic()
                    return work
                self._wake.wait()
                self._close_dropped()
        return None

    def _run_step(self, work: StepWork) -> None:
        """Run one step on the device and commit what came back."""
        started = time.perf_counter()
        failure: PieError | None = None
        outcomes = []
        try:
            outcomes = self.backend.step(work.segments)
        except PieError as error:
            failure = error
        except Exception as error:  # the device's edge: any fault there becomes a typed error of these requests
            failure = DeviceFailed(f"{type(error).__name__}: {error}", self.stepper.num_steps)
            failure.__cause__ = error
        device_s = time.perf_counter() - started
        with self.locked() as core:
            self._step_started_s = None
            if failure is None:
                num_failed = self.stepper.commit(work, outcomes)
            else:
                num_failed = len(work.jobs)
                self.stepper.fail_step(work, failure)
            core.counters["steps"] += 1
            pages = core.page_counts() if self._listeners.is_heard else None
        if pages is not None:
            host_s = time.perf_counter() - started - device_s
            self._listeners.emit(
                StepDone(
                    self.stepper.num_steps, work.decode_rows, work.prefill_tokens, num_failed, device_s, host_s, pages
                )
            )

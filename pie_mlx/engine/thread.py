"""The engine's thread: it loads the model, then plans, runs and commits steps until it is told to end.

It holds the lock to plan and to commit, never while the device works. Pages that are freed during a step
are handed out by the next plan at the earliest, which follows the step on the same device queue: nothing
can be overwritten too early.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from pie_mlx.backend.base import Backend, BackendFacts, Outcome, Segment
from pie_mlx.engine.asking import Limits
from pie_mlx.engine.books import Books
from pie_mlx.engine.core import Core
from pie_mlx.engine.errand import Errand
from pie_mlx.engine.settings import EngineSettings
from pie_mlx.engine.sizing import PoolSize
from pie_mlx.engine.stepping import Stepper, StepWork
from pie_mlx.errors import DeviceFailed, EngineDead, PieError
from pie_mlx.events import EngineEnded, StepDone
from pie_mlx.kv.pool import PagePool
from pie_mlx.kv.window import Window

PoolSizer = Callable[[BackendFacts, EngineSettings], PoolSize]
"""Chooses the pool's size once the model is known."""


class EngineThread:
    """The one thread that calls the device."""

    def __init__(self, books: Books, settings: EngineSettings, pool_sizer: PoolSizer) -> None:
        """Prepare; :meth:`start` begins."""
        self._books = books
        self._settings = settings
        self._pool_sizer = pool_sizer
        self._backend: Backend | None = None
        self._pool_size: PoolSize | None = None
        self._thread: threading.Thread | None = None

    @property
    def backend(self) -> Backend:
        """The backend; only this thread may call it."""
        assert self._backend is not None, "a started engine has a backend"
        return self._backend

    @property
    def pool_size(self) -> PoolSize:
        """How large the pool is, and why."""
        assert self._pool_size is not None, "a started engine has a pool"
        return self._pool_size

    @property
    def is_here(self) -> bool:
        """Whether the caller is on this thread."""
        return threading.current_thread() is self._thread

    def start(self, make_backend: Callable[[], Backend]) -> None:
        """Load the model on the thread and wait until it is ready.

        Raises:
            PieError: whatever ``make_backend`` raised, with its type.
        """
        ready: SimpleQueue[PieError | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, args=(make_backend, ready), name="pie-engine", daemon=True)
        self._thread.start()
        error = ready.get()
        if error is not None:
            raise error

    def join(self, limit_s: float) -> bool:
        """Wait up to ``limit_s`` for the thread's end; return whether it has ended."""
        assert self._thread is not None, "only a started thread ends"
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _main(self, make_backend: Callable[[], Backend], ready: SimpleQueue[PieError | None]) -> None:
        """Load, serve, end: the thread's whole life."""
        try:
            self._load(make_backend)
        except PieError as error:
            ready.put(error)
            return
        except Exception as error:  # noqa: BLE001  (the thread's outer edge: the caller must get an answer)
            failure = DeviceFailed(f"loading failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            ready.put(failure)
            return
        ready.put(None)
        books = self._books
        try:
            self._serve()
        except BaseException as error:  # the thread's outer edge: callers must not wait for a thread that is gone
            with books.locked():
                books.die(EngineDead(f"{type(error).__name__}: {error}"))
            raise
        finally:
            self.backend.close()
        if books.death is None:
            books.listeners.emit(EngineEnded(None))

    def _load(self, make_backend: Callable[[], Backend]) -> None:
        """Make backend, pool and core; a backend for which there is no pool is closed again."""
        self._backend = backend = make_backend()
        try:
            self._enter(backend)
        except BaseException:
            backend.close()
            raise

    def _enter(self, backend: Backend) -> None:
        """Make pool and core for a backend."""
        facts, settings = backend.facts, self._settings
        self._pool_size = self._pool_sizer(facts, settings)
        pool = PagePool(self._pool_size.num_pages, settings.page_size)
        backend.allocate(pool.num_pages, pool.page_size)
        cached = int(pool.num_pages * settings.prefix_cache_share) if settings.prefix_cache else 0
        if facts.has_state:
            cached = 0  # a page without the recurrent state at its end cannot be continued
        core = Core(
            pool,
            context_tokens=facts.context_tokens,
            vocab_size=facts.vocab_size,
            max_cached_pages=cached,
            window=None if facts.window is None else Window(facts.window, settings.prefill_chunk),
            emit=self._books.listeners.emit,
        )
        limits = Limits(settings.page_size, settings.max_batch, settings.prefill_chunk, facts.max_batch_rows)
        self._books.enter(core, Stepper(core, limits))

    def _serve(self) -> None:
        """Plan, run, commit, until shutdown."""
        while (work := self._plan()) is not None:
            if isinstance(work, Errand):
                self._run_errand(work)
            else:
                self._run_step(work)
        with self._books.locked():
            self._books.fail_errands()

    def _plan(self) -> StepWork | Errand[Any] | None:
        """Wait until a step or an errand can run and return it; None is shutdown or death."""
        books = self._books
        while True:
            with books.planning():
                if not books.is_alive:
                    return None
                books.errand = books.errands.popleft() if books.errands else None
                work = books.errand or books.stepper.next_step()
                if work is not None:
                    books.begin_call(work.limit_s if isinstance(work, Errand) else self._settings.step_timeout_s)
                    return work
                books.lie_down()
            books.sleep()

    def _run_errand(self, errand: Errand[Any]) -> None:
        """Run an errand; it may call the device, so the watchdog times it like a step, with its own limit."""
        errand.run()
        with self._books.locked():
            self._books.end_call()

    def _foresee(self, work: StepWork) -> list[Segment]:
        """Guess the step after one that is on the device."""
        with self._books.locked():
            return [] if self._books.errands else self._books.stepper.foresee(work)

    def _run_step(self, work: StepWork) -> None:
        """Run one step on the device and commit what came back."""
        started = time.perf_counter()
        failure: PieError | None = None
        outcomes: list[Outcome] = []
        stepper = self._books.stepper
        try:
            outcomes = self.backend.step(work.segments, lambda: self._foresee(work))
        except PieError as error:
            failure = error
        except Exception as error:  # noqa: BLE001  (the device's edge: any fault there is a typed error of these requests)
            failure = DeviceFailed(f"{type(error).__name__}: {error}", stepper.num_steps)
            failure.__cause__ = error
        device_s = time.perf_counter() - started
        with self._books.locked() as core:
            self._books.end_call()
            num_failed = stepper.commit(work, outcomes) if failure is None else stepper.fail_step(work, failure)
            if self._books.listeners.is_heard:
                host_s = time.perf_counter() - started - device_s
                rows, tokens = work.decode_rows, work.prefill_tokens
                done = StepDone(stepper.num_steps, rows, tokens, num_failed, device_s, host_s, core.page_counts())
                self._books.listeners.emit(done)

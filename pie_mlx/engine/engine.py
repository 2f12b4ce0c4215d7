"""The engine: one thread that owns the device, one lock around the bookkeeping, many callers.

Callers submit, cancel, fork and close under the lock, in microseconds; the thread holds it to plan and to
commit, never while the device works. Pages that are freed during a step are handed out by the next plan
at the earliest, which follows the step on the same device queue: nothing can be overwritten too early.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self, TypeVar

from pie_mlx.backend.base import Backend, BackendFacts
from pie_mlx.engine.books import Books
from pie_mlx.engine.context import Context
from pie_mlx.engine.core import Core
from pie_mlx.engine.errand import Errand
from pie_mlx.engine.job import GenerateGoal, Goal, Job, Phase
from pie_mlx.engine.listening import Subscription
from pie_mlx.engine.looking import read_core, read_pages
from pie_mlx.engine.readings import PageReading, Readings
from pie_mlx.engine.request import Request
from pie_mlx.engine.settings import EngineSettings
from pie_mlx.engine.sizing import PoolSize, pool_by_memory
from pie_mlx.engine.snapshots import Restored, restore, saved_part
from pie_mlx.engine.text import Codec, StoppingText
from pie_mlx.engine.thread import EngineThread, PoolSizer
from pie_mlx.engine.watchdog import Watchdog
from pie_mlx.errors import Cancelled, PieError, StepTimeout, UsageError
from pie_mlx.ids import ContextId
from pie_mlx.kv.snapshot import Arrays, SnapshotFacts, SnapshotStore

T = TypeVar("T")


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
        self._books = Books()
        self._thread = EngineThread(self._books, settings, pool_sizer)
        self._watchdog = Watchdog(self._books, settings)

    @classmethod
    def start(
        cls,
        make_backend: Callable[[], Backend],
        settings: EngineSettings | None = None,
        codec: Codec | None = None,
        *,
        pool_sizer: PoolSizer = pool_by_memory,
    ) -> Engine:
        """Load the model on the engine's own thread and wait until it is ready.

        Raises:
            PieError: whatever ``make_backend`` raised, with its type.
        """
        engine = cls(settings or EngineSettings(), codec, pool_sizer)
        engine._thread.start(make_backend)
        engine._watchdog.start()
        # A device that is still open when the interpreter ends can abort the process.
        atexit.register(_close_left_open, weakref.ref(engine))
        return engine

    def __enter__(self) -> Self:
        """Return the engine itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    # --- what owners call ------------------------------------------------------------------

    @property
    def facts(self) -> BackendFacts:
        """The model's and the device's facts."""
        return self._thread.backend.facts

    @property
    def backend(self) -> Backend:
        """The backend; only the engine's thread may call it."""
        return self._thread.backend

    @property
    def pool_size(self) -> PoolSize:
        """How large the pool is, and why: as asked, or by what memory was free."""
        return self._thread.pool_size

    @property
    def is_alive(self) -> bool:
        """Whether requests can run."""
        return self._books.is_alive

    def context(self, tokens: Sequence[int] = (), *, name: str = "") -> Context:
        """Open a context; computes nothing and takes no page yet."""
        # The handle is made under the lock: an interrupt between the two would leave a context without one.
        with self.locked() as core:
            return Context(self, core.open(tokens, name).id, name)

    def has_context(self, context: ContextId) -> bool:
        """Return whether a context is open."""
        return context in self._books.core.sequences

    def submit(self, owner: Context, goal: Goal, *, stop: Sequence[str] = (), extra: Sequence[int] = ()) -> Request:
        """Register a request and wake the engine; :class:`Context` has the friendly forms."""
        text = None
        if isinstance(goal, GenerateGoal) and self.codec is not None:
            text = StoppingText(self.codec, stop)
        elif stop:
            raise UsageError("stop strings need a tokenizer, and this engine has none")
        with self.locked() as core:
            if not self.is_alive:
                raise self._books.dead()
            job = core.submit(owner.id, goal, text=text, extra=extra)
        return Request(job, lambda: self._cancel(job), owner)

    def _cancel(self, job: Job) -> None:
        """End a request at its owner's wish."""
        with self.locked() as core:
            core.end(job, Phase.CANCELLED, error=Cancelled())

    def close_context(self, context: ContextId) -> int:
        """Close an idle context by its id, whoever holds its handle; return the pages that became free.

        Raises:
            ContextClosed: no context with this id is open.
            ContextBusy: a request runs on it; cancel that first.
        """
        with self.locked() as core:
            return core.close(core.get_idle(context).id)

    def watch(self, context: Context) -> None:
        """Close a context when its handle is garbage-collected; the lock is held."""
        self._books.watch(context)

    def listen(self) -> Subscription:
        """Return a queue of the engine's events from now on; close it when done."""
        return self._books.listeners.subscribe()

    def readings(self) -> Readings:
        """Return one consistent reading of pages, contexts and requests."""
        with self.locked() as core:
            call = self._books.call
            step_s = None if call is None else time.monotonic() - call.started_s
            return read_core(core, head=self._books.stepper.head, is_alive=self.is_alive, step_s=step_s)

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

        def fill() -> tuple[Context, Restored]:
            with self.locked() as core:
                sequence, restored = restore(core, self.backend, snapshot, name)
                return Context(self, sequence.id, name), restored

        return self.run_errand(fill)

    def run_errand(self, work: Callable[[], T], *, limit_s: float | None = None) -> T:
        """Run ``work`` on the engine's thread between two steps and return what it returns.

        Without a :meth:`heartbeat` for ``limit_s`` (None: ``errand_timeout_s``) the device counts as hung.

        Raises:
            EngineDead: the engine ended first.
            StepTimeout: it ran over its limit; the engine is dead.
            Exception: whatever ``work`` raised.
        """
        future: Future[T] = Future()
        with self.locked():
            if not self.is_alive:
                raise self._books.dead()
            self._books.errands.append(Errand(work, future, limit_s or self.settings.errand_timeout_s))
        return future.result()

    def heartbeat(self) -> None:
        """Say, on the engine's thread, that a long errand or step is alive: its limit counts anew from now."""
        call = self._books.call
        if call is not None and self._thread.is_here:
            call.alive_s = time.monotonic()

    def clear_cache(self) -> int:
        """Drop every prefix entry; return the pages that became free."""
        with self.locked() as core:
            return core.index.clear()

    def check(self) -> None:
        """Assert the invariants of pool, contexts and requests."""
        with self.locked() as core:
            core.check()

    def close(self) -> None:
        """End every request as cancelled, free the model, join the thread. Idempotent.

        A device call that is still out is waited for, but not longer than ``step_timeout_s``.
        """
        self._watchdog.stop()
        with self.locked() as core:
            self._books.is_stopping = True
            for job in list(core.jobs.values()):
                core.end(job, Phase.CANCELLED, error=Cancelled("shutdown"))
            for context in list(core.sequences):
                core.close(context)
        # A hung device never returns; the thread is a daemon, so the process can still end.
        limit_s = self.settings.step_timeout_s if self._books.death is None else 0.2
        began_s = time.monotonic()
        if not self._thread.join(limit_s):
            self.kill(StepTimeout(waited_s=time.monotonic() - began_s, limit_s=limit_s))

    def locked(self) -> AbstractContextManager[Core]:
        """Hold the bookkeeping lock; dropped handles are closed first and last."""
        return self._books.locked()

    def kill(self, error: PieError) -> None:
        """Mark the engine dead, ending every request with ``error``: the device will not be asked again."""
        with self.locked():
            self._books.die(error)

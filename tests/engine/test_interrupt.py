"""Ctrl-C between any two instructions: the bookkeeping is whole, no page is lost, nobody waits for ever."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest

from pie_mlx.engine import Context, Engine
from pie_mlx.engine.lock import ShieldedLock

StartEngine = Callable[..., Engine]
PRESSES = 100


def press() -> None:
    """Press Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def test_interrupt_waits_until_the_lock_is_free() -> None:
    """Pressed while the lock is held, Ctrl-C arrives right behind it, and the lock is free then."""
    lock, done = ShieldedLock(), []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  (the point is what happens before the exit)
        with lock:
            press()
            done.append("section")
        done.append("never")
    assert done == ["section"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with lock:
        pass


def test_own_handler_is_called_once_and_kept() -> None:
    """A program's own handler is asked behind the section, and is installed again."""
    calls: list[int] = []
    lock = ShieldedLock()

    def handler(number: int, _frame: object) -> None:
        calls.append(number)

    before = signal.signal(signal.SIGINT, handler)
    try:
        with lock:
            press()
            assert calls == []
        assert calls == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with lock:
            press()
        assert calls == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone() -> None:
    """Only the main thread can be interrupted, so only it puts the signal off."""
    lock, seen = ShieldedLock(), []

    def hold() -> None:
        with lock:
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join(20)
    assert seen == [signal.default_int_handler]


def test_storm_of_interrupts_loses_nothing(start: StartEngine) -> None:
    """Hundreds of Ctrl-C at random moments of fork, submit, cancel and close: everything is given back."""
    engine = start(64, prefix_cache=False)
    root = engine.context([1, 2, 3] * 20, name="root")
    root.prefill().result(20)
    armed = threading.Event()
    main = threading.main_thread().ident
    assert main is not None
    rng = random.Random(4)

    def storm() -> None:
        for _ in range(PRESSES):
            armed.wait(20)
            armed.clear()
            time.sleep(rng.random() * 0.002)
            signal.pthread_kill(main, signal.SIGINT)

    presser = threading.Thread(target=storm)
    contexts: list[Context] = []
    presser.start()
    for _ in range(PRESSES):
        try:
            # Exactly one Ctrl-C comes for each time this is set, and the loop does not end without it.
            armed.set()
            while True:
                contexts.append(root.fork())
                contexts[-1].submit(max_tokens=5)
                contexts.pop(0).close() if len(contexts) > 5 else engine.readings()
        except KeyboardInterrupt:
            continue
    presser.join(20)
    contexts.clear()
    gc.collect()
    engine.check()
    assert [reading.name for reading in engine.readings().contexts] == ["root"]
    assert engine.readings().pages.private == root.pages.total
    assert root.generate(max_tokens=3).completion_tokens == 3

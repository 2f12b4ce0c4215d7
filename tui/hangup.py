"""Leave in order when the terminal is gone, or when the program is asked to end."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
from collections.abc import Callable

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a workbench that was asked to end."""


def leave_when_terminated(leave: Callable[[], object]) -> None:
    """Call ``leave`` in the running loop at the first SIGTERM; the next one does what it did before.

    A handler that raises in the middle of the loop leaves tasks behind, for which the loop waits, now and then for
    ever. Where the loop does not run on the main thread it gets no signals, and nothing is changed.
    """
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)

    def first() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        leave()

    if threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGTERM, first)


def watch_terminal(leave: Callable[[], object]) -> None:
    """Call ``leave``, from a thread that sleeps until then, once the terminal of the standard input hangs up.

    Else the end of its input would be read for ever. A session that has a controlling terminal gets a signal; one
    that was started without (by a service, or by a program that only lends a terminal) does not. Where a terminal
    cannot be polled (macOS), nothing is watched.
    """
    if not hasattr(select, "poll") or not sys.__stdin__ or not sys.__stdin__.isatty():
        return
    # A descriptor of its own: the number of the standard input may be another file's by the time of the end.
    threading.Thread(
        target=_wait, args=(os.dup(sys.__stdin__.fileno()), leave), name="pie-tui-hangup", daemon=True
    ).start()


def _wait(file: int, leave: Callable[[], object]) -> None:
    """Sleep until the terminal hangs up; a poll for no event is woken by that alone."""
    poll = select.poll()
    poll.register(file, 0)
    happened = poll.poll()
    os.close(file)
    if any(mask & select.POLLHUP for _file, mask in happened):
        leave()

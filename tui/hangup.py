"""Notice that the terminal is gone: where no signal says so, its end of input would be read for ever."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable


def watch_terminal(leave: Callable[[], object]) -> None:
    """Call ``leave``, from a thread that sleeps until then, once the terminal of the standard input hangs up.

    A session that has a controlling terminal gets a signal; one that was started without (by a service, or by a
    program that only lends a terminal) does not. Where a terminal cannot be polled (macOS), nothing is watched.
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

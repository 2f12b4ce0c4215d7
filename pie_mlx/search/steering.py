"""Steering: what a user does to a run while it runs.

Verbs may be called from any thread; they are checked at once, and the run carries them out between two of its
own events. Each is an event of the trace, and a resumed run repeats it in the same place.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pie_mlx.errors import Cancelled, PieError
from pie_mlx.search.node import NodeId
from pie_mlx.search.trace_events import (
    Accepted,
    Edited,
    Event,
    FinishReason,
    Inserted,
    Locked,
    Noticed,
    Pruned,
)

BY_USER = "by the user"
"""The reason of a prune that a user asked for."""

_EXPAND_AGAIN = re.compile(r"expand again: breadth (\d+), seed (\d+)")


class RunEndedError(Exception):
    """The run ends here: passes from wherever it was working to the one place that finishes it."""

    def __init__(
        self, reason: FinishReason, *, why: str = "", node: NodeId | None = None, error: PieError | None = None
    ) -> None:
        """End with ``reason``; ``node`` is an answer that the user accepted."""
        super().__init__(why or str(reason))
        self.reason = reason
        self.why = why
        self.node = node
        self.error = error


def expand_notice(node: NodeId, breadth: int, seed: int) -> Noticed:
    """Return the event that tells a wish for more children."""
    return Noticed(node=node, text=f"expand again: breadth {breadth}, seed {seed}")


def read_expand_notice(event: Noticed) -> tuple[int, int] | None:
    """Return breadth and seed of :func:`expand_notice`, None for any other notice."""
    match = _EXPAND_AGAIN.fullmatch(event.text)
    return None if match is None else (int(match[1]), int(match[2]))


def is_users(event: Event) -> bool:
    """Whether an event is a user's doing, so that a replay must repeat it by itself."""
    if isinstance(event, Pruned):
        return event.reason.startswith(BY_USER)
    if isinstance(event, Accepted):
        return event.by == "user"
    return isinstance(event, Edited | Inserted | Locked) or (isinstance(event, Noticed) and event.node is not None)


@dataclass(frozen=True, slots=True)
class Command:
    """One wish, and what carries it out on the run's thread."""

    name: str
    carry_out: Callable[[], None]
    is_long: bool = False
    """Whether it writes thoughts itself, and must wait until an action is over."""


class Steering:
    """The run's mailbox and its brake."""

    def __init__(self) -> None:
        """Start with the brake off."""
        self._changed = threading.Condition()
        self._commands: deque[Command] = deque()
        self._is_paused = False
        self._steps = 0
        self._cancelled: Cancelled | None = None

    def post(self, command: Command) -> None:
        """Leave a wish for the run."""
        with self._changed:
            self._commands.append(command)
            self._changed.notify_all()

    def pause(self) -> None:
        """Stop before the next action; running thoughts end first."""
        with self._changed:
            self._is_paused, self._steps = True, 0
            self._changed.notify_all()

    def resume(self) -> None:
        """Go on."""
        with self._changed:
            self._is_paused = False
            self._changed.notify_all()

    def step(self) -> None:
        """Let one action pass and stop again."""
        with self._changed:
            self._is_paused = True
            self._steps += 1
            self._changed.notify_all()

    def cancel(self, by: str) -> None:
        """End the run; what is running is cancelled."""
        with self._changed:
            self._cancelled = self._cancelled or Cancelled(by)
            self._changed.notify_all()

    @property
    def is_paused(self) -> bool:
        """Whether the brake is on."""
        return self._is_paused

    @property
    def cancelled(self) -> Cancelled | None:
        """Who cancelled; None where nobody has."""
        return self._cancelled

    def take(self, *, long_too: bool) -> Command | None:
        """Return the oldest wish, None where there is none; wishes are kept in order, so a long one blocks."""
        with self._changed:
            if not self._commands or (self._commands[0].is_long and not long_too):
                return None
            return self._commands.popleft()

    def take_step(self) -> bool:
        """Whether one action may pass with the brake on; it is then used up."""
        with self._changed:
            if self._steps == 0:
                return False
            self._steps -= 1
            return True

    def wait(self) -> float:
        """Wait until something changes; return the seconds waited."""
        started = time.monotonic()
        with self._changed:
            while self._is_paused and not (self._steps or self._commands or self._cancelled):
                self._changed.wait()
        return time.monotonic() - started

    def doze(self, seconds: float) -> None:
        """Wait for a change, at most ``seconds``."""
        with self._changed:
            if not (self._commands or self._cancelled):
                self._changed.wait(seconds)

"""What the screens share: where events come from, and what is known so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pie_mlx.chat import ChatSession
from pie_mlx.engine import Engine
from pie_mlx.search.run import Run
from pie_mlx.search.trace_events import Event
from pie_mlx.tui.alarms import AlarmNote
from pie_mlx.tui.bridge import Bridge
from pie_mlx.tui.gauges import Gauges
from pie_mlx.tui.remote import RemoteServer
from pie_mlx.tui.story import RunStory


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the workbench looks; whatever is None is not there."""

    engine: Engine | None = None
    run: Run | None = None
    """A search that :attr:`Desk.bridge` listens to; it is started once the screen is up."""
    trace: Path | None = None
    """A trace file to read."""
    live: bool = False
    """Whether the trace is still being written, and is followed to its end."""
    remote: RemoteServer | None = None
    """A server elsewhere that is looked at in place of ``engine``."""
    open_chat: Callable[[], ChatSession] | None = None
    """Opens the conversation when its screen is first shown."""
    open_search: Callable[[str, Callable[[Event], None]], Run] | None = None
    """Prepares a search for a question; the run tells the listener of its events once it is started."""


@dataclass(slots=True)
class Desk:
    """Sources, bridge and everything that was heard."""

    sources: Sources
    bridge: Bridge
    story: RunStory = field(default_factory=RunStory)
    gauges: Gauges = field(default_factory=Gauges)
    alarms: list[AlarmNote] = field(default_factory=list)
    chat: ChatSession | None = None
    run: Run | None = field(init=False)
    """The search that is shown: the one it began with, or the latest that was begun here."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Begin with the source's run."""
        self.run = self.sources.run

    @property
    def is_steerable(self) -> bool:
        """Whether there is a run that can be steered."""
        return self.run is not None and not self.run.is_over

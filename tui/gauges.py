"""The engine's life as the engine screen tells it: rates and curves from steps, who owns which page, what is fresh."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pie_mlx.engine.readings import ContextReading, PageReading, Readings
from pie_mlx.events import ContextEvicted, EngineEnded, Event, RequestEnded, StepDone
from pie_mlx.ids import ContextId, PageId

HISTORY = 240
"""Steps that the curves remember."""
_RATE_STEPS = 32
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended, for the list of the last ones."""

    request: int
    reason: str
    tokens: int


class Gauges:
    """What is known of the engine: the last readings, the last page map, and the curves."""

    def __init__(self) -> None:
        """Start with nothing read."""
        self.readings: Readings | None = None
        self.pages: list[PageReading] = []
        self.fresh: frozenset[PageId] = frozenset()
        """Pages that nobody viewed at the reading before."""
        self.freed: frozenset[PageId] = frozenset()
        """Pages that were given back since the reading before."""
        self.steps: deque[StepDone] = deque(maxlen=HISTORY)
        self.endings: deque[Ending] = deque(maxlen=64)
        self.num_evictions = 0
        self.ended: EngineEnded | None = None
        self._ranks: dict[ContextId, int] = {}

    def feed(self, events: list[Event], readings: Readings | None, pages: list[PageReading] | None) -> None:
        """Take a batch in."""
        for event in events:
            if isinstance(event, StepDone):
                self.steps.append(event)
            elif isinstance(event, RequestEnded):
                self.endings.append(Ending(event.request, event.reason, event.completion_tokens))
            elif isinstance(event, ContextEvicted):
                self.num_evictions += 1
            elif isinstance(event, EngineEnded):
                self.ended = event
        if readings is not None:
            self.readings = readings
            self._rank(readings.contexts)
        if pages is not None:
            before, now = {page.page for page in self.pages}, {page.page for page in pages}
            # The first map has nothing to differ from.
            self.fresh = frozenset(now - before) if self.pages else frozenset()
            self.freed = frozenset(before - now)
            self.pages = pages

    def settle(self) -> bool:
        """Let fresh and freed pages be like the others; whether there were any."""
        had = bool(self.fresh or self.freed)
        self.fresh = self.freed = frozenset()
        return had

    def _rank(self, contexts: tuple[ContextReading, ...]) -> None:
        """Give each context its own small number, the lowest that is free, for as long as it lives."""
        alive = {context.id for context in contexts}
        self._ranks = {owner: rank for owner, rank in self._ranks.items() if owner in alive}
        taken = set(self._ranks.values())
        free = (rank for rank in range(len(contexts) + len(taken) + 1) if rank not in taken)
        for context in contexts:
            if context.id not in self._ranks:
                self._ranks[context.id] = next(free)

    def rank(self, context: ContextId) -> int:
        """Return a context's small number, which decides its letter and hue."""
        return self._ranks.get(context, 0)

    def letter(self, context: ContextId) -> str:
        """Return a context's letter; past the alphabet they share one."""
        rank = self.rank(context)
        return _LETTERS[rank] if rank < len(_LETTERS) else "&"

    def name(self, context: ContextId) -> str:
        """Return a context's name; a number where it has none."""
        reading = next((c for c in self.readings.contexts if c.id == context), None) if self.readings else None
        return (reading.name if reading is not None else "") or f"context {context}"

    # --- curves -------------------------------------------------------------------------------

    @property
    def decode_tps(self) -> float | None:
        """Tokens a second over the last steps, from the steps' own times; None before any."""
        last = list(self.steps)[-_RATE_STEPS:]
        spent = sum(step.device_s + step.host_s for step in last)
        return sum(step.decode_rows for step in last) / spent if spent > 0 else None

    def rates(self) -> list[float]:
        """Return tokens a second, step by step."""
        return [step.decode_rows / max(step.device_s + step.host_s, 1e-9) for step in self.steps]

    def widths(self) -> list[float]:
        """Return how many rows decoded together, step by step."""
        return [float(step.decode_rows) for step in self.steps]

    def durations(self) -> list[float]:
        """Return seconds a step."""
        return [step.device_s + step.host_s for step in self.steps]

    def held(self) -> list[float]:
        """Return held pages, step by step."""
        return [float(step.pages.held) for step in self.steps]

    def sharing(self, pages: int) -> str:
        """Return the glyph for a page that ``pages`` contexts view."""
        return str(pages) if pages < 10 else "+"

    def waiting(self) -> dict[str, int]:
        """Return how many requests wait, by their reason in words."""
        out: dict[str, int] = {}
        for request in self.readings.requests if self.readings else ():
            if request.phase in ("waiting", "preempted", "restoring"):
                why = request.waits_for or f"its turn ({request.phase})"
                out[why] = out.get(why, 0) + 1
        return out

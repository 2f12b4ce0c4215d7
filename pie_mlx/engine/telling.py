"""One reading of an engine as plain facts: what ``top`` shows, of a server or of a process on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from pie_mlx.engine.engine import Engine
from pie_mlx.errors import Fact
from pie_mlx.events import Alarm

SCHEMA = "pie-mlx.pages/1"


def tell(engine: Engine, alarms: Iterable[Alarm] = ()) -> dict[str, Fact]:
    """Return pages, contexts, requests and counters as they are now, and ``alarms``."""
    readings = engine.readings()
    counts = readings.pages
    page_size = engine.settings.page_size
    return {
        "schema": SCHEMA,
        "model": engine.facts.model,
        "is_alive": readings.is_alive,
        "step_s": readings.step_s,
        "page_size": page_size,
        "page_bytes": page_size * engine.facts.kv_bytes_per_token,
        "pages": {**asdict(counts), "held": counts.held, "sharing_ratio": counts.sharing_ratio},
        "contexts": [asdict(context) for context in readings.contexts],
        "requests": [asdict(request) for request in readings.requests],
        "counters": dict(readings.counters),
        "alarms": [
            {"level": alarm.level, "kind": alarm.kind, "message": alarm.message, "request": alarm.request}
            for alarm in alarms
        ],
    }

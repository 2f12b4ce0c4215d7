"""Idle costs nothing: no timer, no message, no frame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.timer import Timer

from pie_mlx.engine import Engine
from pie_mlx.tui.app import Workbench
from pie_mlx.tui.desk import Sources
from pie_mlx.tui.widgets.frame.line_view import LineView


def timers(app: Workbench) -> list[Timer]:
    """Return every timer that runs for the app, its screens or their widgets."""
    pumps = [app, *(screen for stack in app._screen_stacks.values() for screen in stack)]
    pumps += [widget for pump in pumps[1:] for widget in pump.walk_children()]
    return [timer for pump in pumps for timer in pump._timers if timer._active.is_set()]


async def stays_still(app: Workbench, pilot: Pilot[None]) -> None:
    """Assert that half a second draws nothing and wakes nothing."""
    await asyncio.sleep(0.3)
    await pilot.pause()
    updates: list[object] = []
    display = app._display

    def count(screen: Any, renderable: Any) -> None:
        updates.append(renderable)
        display(screen, renderable)

    app._display = count  # type: ignore[method-assign]
    lines = LineView.num_drawn
    await asyncio.sleep(0.5)
    assert LineView.num_drawn == lines
    assert [each for each in updates if each is not None] == []


def test_a_finished_trace_stands_still(trace_file: Path, open_app: Any, drive: Any) -> None:
    """Nothing runs once a trace is shown."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        await stays_still(app, pilot)
        assert [timer for timer in timers(app) if "auto_refresh" not in str(timer.name)] == []

    drive(app, scenario)


def test_an_idle_engine_stands_still(start_engine: Callable[..., Engine], open_app: Any, drive: Any) -> None:
    """Fresh pages settle once; then nothing moves until the next event."""
    engine = start_engine(64)
    app = open_app(Sources(engine=engine))

    async def scenario(pilot: Pilot[None]) -> None:
        with engine.context(list(range(1, 40)), name="x") as context:
            context.generate(max_tokens=4)
        await asyncio.sleep(1.3)
        await stays_still(app, pilot)

    drive(app, scenario)

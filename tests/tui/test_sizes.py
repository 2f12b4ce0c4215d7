"""Any window: what does not fit is said, and nothing crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from pie_mlx.tui.desk import Sources
from pie_mlx.tui.widgets.frame.bars import TooSmall


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (59, 40), (200, 15)])
def test_a_small_window_says_so_and_recovers(
    size: tuple[int, int], trace_file: Path, open_app: Any, drive: Any
) -> None:
    """Below 60x16 each screen shows the notice; keys do no harm; a larger window shows the screen again."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        for mode in ("2", "3", "f2"):
            await pilot.press(mode)
            assert app.screen.query_one(TooSmall).display
            assert not app.screen.query_one("#middle").display
        await pilot.press("f3", "j", "v", "question_mark", "escape", "w", "escape", "slash", "escape")
        await pilot.resize_terminal(100, 30)
        await pilot.pause()
        assert not app.screen.query_one(TooSmall).display
        assert app.screen.query_one("#middle").display
        app.export_screenshot()

    drive(app, scenario, size=size)


def test_sixty_by_sixteen_is_enough(trace_file: Path, open_app: Any, drive: Any) -> None:
    """The least window shows every screen."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        for mode in ("2", "3", "f2"):
            await pilot.press(mode)
            assert not app.screen.query_one(TooSmall).display

    drive(app, scenario, size=(60, 16))


def test_resizing_through_every_size_survives(trace_file: Path, open_app: Any, drive: Any) -> None:
    """Shrinking and growing never raises, whatever view is open."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        for size in ((160, 50), (61, 17), (3, 2), (1, 1), (300, 100), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.press("f3", "v")
            await pilot.press("f4")
            await pilot.press("f2")
            assert app.screen.query_one(TooSmall).display == (size[0] < 60 or size[1] < 16)

    drive(app, scenario)

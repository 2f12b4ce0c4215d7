"""A pool that is too small: the alarm is on every screen in words, what helps is a button, and the run ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from pie_mlx.engine import Context, Engine
from pie_mlx.search.node import NodeId
from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace import Event, Finished, FinishReason, NodeStarted, RunStarted
from pie_mlx.tui.alarms import note_of, report_lines
from pie_mlx.tui.app import Workbench
from pie_mlx.tui.bridge import Bridge
from pie_mlx.tui.desk import Sources
from pie_mlx.tui.handover import begin_search
from pie_mlx.tui.screens.page import Page
from pie_mlx.tui.widgets.frame.bars import AlarmBanner, TitleBar

SMALL = SearchParams(max_tokens=12, answer_tokens=12, breadth=2, beam=2)
POOL, PINNED = 120, 96


def banner(app: Workbench) -> str:
    """Return the words of the banner of the screen that is shown, empty where it shows none."""
    page = next(screen for screen in reversed(app.screen_stack) if isinstance(screen, Page))
    shown = page.query_one(AlarmBanner)
    return "".join(text for text, _style in shown.pieces()) if shown.display else ""


def holder(engine: Engine, pages: int) -> Context:
    """Return a pinned context that holds so many pages."""
    held = engine.context([1 + at % 40 for at in range(pages * 8)], name="saved thought")
    held.prefill().result(20)
    held.pin()
    return held


def test_the_starvation_drill(
    start_engine: Any, open_app: Any, drive: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The banner names waiter, need, total and holder on every screen; closing the holder lets the run end."""
    monkeypatch.setattr("pie_mlx.tui.screens.report.IDLE_S", 0.0)
    engine = start_engine(POOL, stall_timeout_s=4.0)
    held = holder(engine, PINNED)
    bridge = Bridge(pace_s=0.0)
    run = Run(engine, Free("Why?", depth=3), SMALL, listen=bridge.offer)
    app = open_app(Sources(engine=engine, run=run), bridge=bridge)

    async def scenario(pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: any(note.kind == "starved" for note in app.desk.alarms))
        for key in ("f2", "f3", "f4"):
            await pilot.press(key)
            assert "STARVED" in banner(app)
            assert "waited for 1 pages with 0 free of 120" in banner(app)
        await pilot.press("w")
        words = str(app.screen.query_one("#reports").render())
        assert "saved thought (context 1): 96 pages" in " ".join(words.split())
        assert "close or unpin saved thought" in words
        assert "grow the pool: --pool-pages 121 or more" in words
        await pilot.click("#close-idle")
        question = str(app.screen.query_one("Static").render())
        assert "Close 1 context (saved thought)? 1 of them pinned" in question, "the run's own are spared"
        await pilot.press("y")
        await wait_until(pilot, lambda: app.desk.story.is_over)
        assert app.desk.story.tree.outcome is not None
        assert app.desk.story.tree.outcome.reason == FinishReason.ANSWER

    drive(app, scenario, size=(220, 40))
    run.result(20)
    assert held.closed


def test_a_run_that_no_pool_page_can_end_says_why(
    start_engine: Any, open_app: Any, drive: Any, wait_until: Any
) -> None:
    """A pool that is smaller than the question: the run ends, the banner says so, and the report what helps."""
    engine = start_engine(12)
    bridge = Bridge(pace_s=0.0)
    run = Run(engine, Free("Why?", depth=3), SMALL, listen=bridge.offer)
    app = open_app(Sources(engine=engine, run=run), bridge=bridge)

    async def scenario(pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: app.desk.story.is_over and bridge.is_quiet)
        assert "the run has ended: " in banner(app)
        assert "12" in banner(app)
        assert app.screen.query_one(TitleBar).state[1] == "bad"
        await pilot.press("w")
        assert "--pool-pages" in str(app.screen.query_one("#reports").render())
        await pilot.press("escape")
        begin_search(app.desk, Run(engine, Free("How?", depth=1), SMALL, listen=lambda _event: None))
        assert not app.desk.alarms, "another run has not ended that way"

    drive(app, scenario, size=(160, 40))


@pytest.mark.parametrize(
    ("reason", "role", "is_alarm"),
    [
        (FinishReason.ANSWER, "good", False),
        (FinishReason.BUDGET, "warn", False),
        (FinishReason.CANCELLED, "warn", False),
        (FinishReason.STARVED, "bad", True),
        (FinishReason.FAILED, "bad", True),
    ],
)
def test_only_an_error_that_nobody_asked_for_is_an_alarm(
    reason: FinishReason,
    role: str,
    is_alarm: bool,
    new_teller: Any,
    *,
    save_trace: Any,
    tmp_path: Path,
    open_app: Any,
    drive: Any,
) -> None:
    """Who ends a run, or gives it a budget, is not told of an error."""
    teller = new_teller()
    teller.tell(RunStarted(question="Why?", strategy="beam", scorer="label"))
    teller.tell(NodeStarted(node=NodeId("0"), seed=1))
    end: Event = Finished(reason=reason, error=None if reason is FinishReason.ANSWER else "3 pages short")
    teller.tell(end)
    app = open_app(Sources(trace=save_trace(tmp_path / "run.jsonl", teller.events)))

    async def scenario(_pilot: Pilot[None]) -> None:
        assert app.screen.query_one(TitleBar).state[1] == role
        assert ("3 pages short" in banner(app)) is is_alarm

    drive(app, scenario)


def test_an_end_has_words_that_help() -> None:
    """The pool's size is fixed while the engine runs: the report says where it is set."""
    lines = list(report_lines(note_of(Finished(reason=FinishReason.STARVED, error="3 pages short"))))
    helps = [words for name, words in lines if name == "helps"]
    assert any("--beam" in words for words in helps)
    assert any("fixed while the engine runs" in words for words in helps)

"""A live run is steered with keys: each verb reaches the run, asks where work is lost, and can be taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot

from pie_mlx.search.node import NodeStatus
from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace import Accepted, Edited, Event, Inserted, Locked, Noticed, Paused, Pruned, Stepped
from pie_mlx.tui.app import Workbench
from pie_mlx.tui.bridge import Bridge
from pie_mlx.tui.desk import Sources
from pie_mlx.tui.screens.dialogs import AskText, Confirm
from pie_mlx.tui.screens.engine import EngineScreen
from pie_mlx.tui.screens.tree import TreeScreen
from pie_mlx.tui.widgets.engine.page_map import PageMap

SMALL = SearchParams(max_tokens=12, answer_tokens=12, breadth=2, beam=2)
Scenario = Callable[[Pilot[None], Workbench, Run], Any]


def steer(
    start_engine: Any, open_app: Any, drive: Any, wait_until: Any, scenario: Scenario, **more: Any
) -> list[Event]:
    """Start a paused run, let it take two steps, play the scenario; return all events of the run."""
    engine = start_engine(512)
    bridge = Bridge(pace_s=0.0)
    run = Run(engine, Free("Why?", depth=3), SMALL, listen=bridge.offer)
    run.pause()
    app = open_app(Sources(engine=engine, run=run, **more), bridge=bridge)

    async def play(pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: app.desk.story.tree.paused)
        await pilot.press("full_stop")
        await wait_until(pilot, lambda: len(app.desk.story.tree) >= 3)
        await pilot.press("full_stop")
        await wait_until(pilot, lambda: any(n.value is not None for n in app.desk.story.tree.nodes.values()))
        await scenario(pilot, app, run)
        run.cancel()
        await wait_until(pilot, lambda: app.desk.story.is_over)

    drive(app, play, size=(120, 40))
    run.result(20)
    told_events: list[Event] = app.desk.story.events
    return told_events


def told(app: Workbench, kind: type[Event]) -> list[Event]:
    """Return the events of a kind."""
    return [event for event in app.desk.story.events if isinstance(event, kind)]


def test_space_pauses_and_goes_on_and_the_point_steps(
    start_engine: Any, open_app: Any, drive: Any, wait_until: Any
) -> None:
    """A step is one action; space lets the run go to its end."""

    async def scenario(pilot: Pilot[None], app: Workbench, run: Run) -> None:
        steps = len(told(app, Stepped))
        assert steps == 2
        await pilot.press("space")
        await wait_until(pilot, lambda: app.desk.story.is_over)

    events = steer(start_engine, open_app, drive, wait_until, scenario)
    assert any(isinstance(event, Paused) for event in events)


def test_prune_asks_first_and_u_takes_it_back(start_engine: Any, open_app: Any, drive: Any, wait_until: Any) -> None:
    """No keeps the node, y prunes it, u makes it live again."""

    async def scenario(pilot: Pilot[None], app: Workbench, run: Run) -> None:
        tree = app.desk.story.tree
        await pilot.press("g", "j", "x")
        assert isinstance(app.screen, Confirm)
        await pilot.press("n")
        assert not told(app, Pruned)
        await pilot.press("x", "y")
        await wait_until(pilot, lambda: tree["0.0"].status is NodeStatus.PRUNED)  # type: ignore[index]
        await pilot.press("u")
        await wait_until(pilot, lambda: tree["0.0"].status is NodeStatus.OPEN)  # type: ignore[index]
        await wait_until(pilot, lambda: not tree["0.0"].locked)  # type: ignore[index]
        await pilot.press("g", "x")
        assert isinstance(app.screen, TreeScreen)

    steer(start_engine, open_app, drive, wait_until, scenario)


def test_lock_and_unlock(start_engine: Any, open_app: Any, drive: Any, wait_until: Any) -> None:
    """L holds a node, L again lets it go, u turns the last one round."""

    async def scenario(pilot: Pilot[None], app: Workbench, run: Run) -> None:
        tree = app.desk.story.tree
        await pilot.press("g", "j", "L")
        await wait_until(pilot, lambda: tree["0.0"].locked)  # type: ignore[index]
        await pilot.press("L")
        await wait_until(pilot, lambda: not tree["0.0"].locked)  # type: ignore[index]
        await pilot.press("u")
        await wait_until(pilot, lambda: tree["0.0"].locked)  # type: ignore[index]

    events = steer(start_engine, open_app, drive, wait_until, scenario)
    assert [event.locked for event in events if isinstance(event, Locked)] == [True, False, True]


def test_edit_and_insert_by_hand(start_engine: Any, open_app: Any, drive: Any, wait_until: Any) -> None:
    """One key rewrites a thought, another adds one below; both stand in the trace, literal."""

    async def scenario(pilot: Pilot[None], app: Workbench, run: Run) -> None:
        tree = app.desk.story.tree
        await pilot.press("g", "j", "i")
        assert isinstance(app.screen, AskText)
        await pilot.press("ctrl+a", "delete")
        field = app.screen.query_one("#field")
        field.load_text("a [better] thought")  # type: ignore[attr-defined]
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: tree["0.0"].text == "a [better] thought")  # type: ignore[index]
        await pilot.press("I", *"by hand", "ctrl+s")
        await wait_until(pilot, lambda: told(app, Inserted))
        await pilot.press("I", "escape")
        assert isinstance(app.screen, TreeScreen)

    events = steer(start_engine, open_app, drive, wait_until, scenario)
    assert [event.text for event in events if isinstance(event, Edited)] == ["a [better] thought"]
    assert [event.node for event in events if isinstance(event, Inserted)] == ["0.0.0"]


def test_expand_again_with_breadth_and_seed(start_engine: Any, open_app: Any, drive: Any, wait_until: Any) -> None:
    """The key asks for both numbers; the run says what it was asked."""

    async def scenario(pilot: Pilot[None], app: Workbench, run: Run) -> None:
        await pilot.press("g", "r", "ctrl+u", *"x y", "enter")
        assert not any("expand again" in event.text for event in told(app, Noticed))  # type: ignore[attr-defined]
        await pilot.press("r", *"3 9", "enter")
        await wait_until(pilot, lambda: any("breadth 3, seed 9" in e.text for e in told(app, Noticed)))  # type: ignore[attr-defined]

    steer(start_engine, open_app, drive, wait_until, scenario)


def test_accept_ends_the_run_with_this_answer(start_engine: Any, open_app: Any, drive: Any, wait_until: Any) -> None:
    """It asks, then the node is the answer."""

    async def scenario(pilot: Pilot[None], app: Workbench, run: Run) -> None:
        await pilot.press("g", "j", "a", "y")
        await wait_until(pilot, lambda: app.desk.story.is_over)

    events = steer(start_engine, open_app, drive, wait_until, scenario)
    assert [(event.node, event.by) for event in events if isinstance(event, Accepted)] == [("0.0", "user")]


def test_leaving_a_live_run_asks(start_engine: Any, open_app: Any, drive: Any, wait_until: Any) -> None:
    """Leaving asks before it cancels a run; S ends the run and stays."""

    async def scenario(pilot: Pilot[None], app: Workbench, run: Run) -> None:
        await pilot.press("q")
        assert isinstance(app.screen, Confirm)
        words = str(app.screen.query_one("Static").render())
        assert "resume" not in words, "a run that was cancelled has finished: it cannot be gone on with"
        await pilot.press("escape")
        assert not run.is_over
        await pilot.press("S", "y")
        await wait_until(pilot, lambda: app.desk.story.is_over)
        assert app.is_running

    steer(start_engine, open_app, drive, wait_until, scenario)


def test_following_moves_the_cursor_until_a_key_does(
    start_engine: Any, open_app: Any, drive: Any, wait_until: Any
) -> None:
    """The cursor follows what is written; a movement by hand ends it."""

    async def scenario(pilot: Pilot[None], app: Workbench, run: Run) -> None:
        assert isinstance(app.screen, TreeScreen)
        view = app.screen.tree_view
        assert view.follows
        await pilot.press("g")
        assert not view.follows
        await pilot.press("z")
        assert view.node is not None
        assert view.node.id == app.desk.story.latest

    steer(start_engine, open_app, drive, wait_until, scenario)


def test_pages_of_a_node_stand_out_on_the_engine_screen(
    start_engine: Any, open_app: Any, drive: Any, wait_until: Any
) -> None:
    """P goes to the page map, where the node's own context is marked."""

    async def scenario(pilot: Pilot[None], app: Workbench, run: Run) -> None:
        await pilot.press("g", "j", "P")
        assert isinstance(app.screen, EngineScreen)
        owner = app.screen.query_one(PageMap).owner
        assert owner is not None
        assert app.desk.gauges.name(owner).endswith("/0.0")

    steer(start_engine, open_app, drive, wait_until, scenario)


def test_a_refused_verb_is_said_and_changes_nothing(
    start_engine: Any, open_app: Any, drive: Any, wait_until: Any
) -> None:
    """A chat cannot be opened here: c says so and stays."""

    async def scenario(pilot: Pilot[None], app: Workbench, run: Run) -> None:
        await pilot.press("g", "j", "c")
        assert isinstance(app.screen, TreeScreen)
        assert any("no model to talk with" in note.message for note in app._notifications)

    steer(start_engine, open_app, drive, wait_until, scenario)

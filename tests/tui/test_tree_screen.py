"""The tree screen: every key does what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from pie_mlx.search.node import NodeId
from pie_mlx.search.trace import Event
from pie_mlx.tui.app import Workbench
from pie_mlx.tui.desk import Sources
from pie_mlx.tui.screens.diff import DiffScreen, diff_texts
from pie_mlx.tui.screens.help import HelpScreen
from pie_mlx.tui.screens.report import ReportScreen
from pie_mlx.tui.screens.tree import TreeScreen
from pie_mlx.tui.widgets.frame.bars import AlarmBanner, KeyBar
from pie_mlx.tui.widgets.frame.line_view import LineView, inks_of
from pie_mlx.tui.widgets.tree.detail import Detail, describe_node
from pie_mlx.tui.widgets.tree.find_bar import FindBar
from pie_mlx.tui.widgets.tree.views import best_path_lines, level_rows

Open = Callable[..., Workbench]


def tree_screen(app: Workbench) -> TreeScreen:
    """Return the tree screen."""
    assert isinstance(app.screen, TreeScreen)
    return app.screen


def here(app: Workbench) -> str:
    """Return the id under the cursor."""
    node = tree_screen(app).tree_view.node
    assert node is not None
    return node.id


MOVES = [
    (["j"], "0.0"), (["down", "j"], "0.0.0"), (["j", "j", "k"], "0.0"), (["j", "up"], "0"), (["G"], "0.2"),
    (["end", "home"], "0"), (["G", "g"], "0"), (["l"], "0.0"), (["right", "right", "right"], "0.0.0.0"),
    (["j", "j", "left", "h"], "0.0"), (["j", "J"], "0.1"), (["j", "J", "J", "J"], "0.2"), (["G", "K"], "0.1"),
    (["b"], "0.0.1.1"), (["pagedown"], "0.2"), (["G", "pageup"], "0"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "node"), MOVES)
def test_keys_move_the_cursor(keys: list[str], node: str, trace_file: Path, open_app: Open, drive: Any) -> None:
    """Arrows and hjkl walk the tree, J and K go among siblings, b to the best."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        await pilot.press(*keys)
        assert here(app) == node

    drive(app, scenario)


def test_folding_hides_what_is_below(trace_file: Path, open_app: Open, drive: Any) -> None:
    """The arrows: h folds and l unfolds; o folds what was given up, O unfolds all."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        view = tree_screen(app).tree_view
        whole = len(view.rows)
        await pilot.press("j", "h")
        assert len(view.rows) == whole - 7
        await pilot.press("l")
        assert len(view.rows) == whole
        await pilot.press("h", "O")
        assert len(view.rows) == whole

    drive(app, scenario)


def test_find_goes_round_and_into_folded_branches(trace_file: Path, open_app: Open, drive: Any) -> None:
    """/ finds text or an id, n and N go on and back, a miss is said."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        await pilot.press("j", "h", "slash", *"12", "enter")
        assert here(app) == "0.0.0"
        await pilot.press("n")
        assert here(app) == "0.0.0.0"
        await pilot.press("N")
        assert here(app) == "0.0.0"
        await pilot.press("slash", *"zzz", "enter")
        assert here(app) == "0.0.0"
        assert not app.screen.query_one(FindBar).display
        await pilot.press("slash", "escape")
        assert not app.screen.query_one(FindBar).display
        assert tree_screen(app).tree_view.has_focus

    drive(app, scenario)


def test_filter_shows_matches_and_escape_shows_all(trace_file: Path, open_app: Open, drive: Any) -> None:
    """It filters; esc takes the filter off; nonsense is refused."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        rows = tree_screen(app).tree_view.rows
        whole = len(rows)
        await pilot.press("f", *"score>0.8", "enter")
        assert [node.id for node in rows.nodes] == ["0", "0.0", "0.0.1", "0.0.1.1"]
        await pilot.press("f", *"status:x", "enter")
        assert len(rows) == 4
        await pilot.press("escape")
        assert len(rows) == whole

    drive(app, scenario)


def test_detail_opens_and_closes(trace_file: Path, open_app: Open, drive: Any) -> None:
    """Enter shows the pane where it is hidden, and hides it where it is shown."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        pane = app.screen.query_one(Detail)
        before = pane.display
        await pilot.press("enter")
        assert pane.display is not before
        await pilot.press("enter")
        assert pane.display is before

    drive(app, scenario, size=(100, 30))
    app = open_app(Sources(trace=trace_file))
    drive(app, scenario, size=(70, 20))


def test_views_show_the_same_tree_in_other_ways(trace_file: Path, open_app: Open, drive: Any) -> None:
    """It goes round: tree, best path, levels, flame."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        screen = tree_screen(app)
        seen = []
        for _ in range(4):
            seen.append(screen.view)
            await pilot.press("v")
        assert seen == ["tree", "best", "levels", "flame"]
        assert screen.view == "tree"
        text = "\n".join("".join(t for t, _ in line) for line in best_path_lines(app.desk.story, app, 60))
        assert "Answer: 24" in text
        assert "checked: right" in text
        assert [row[0][0] for row in level_rows(app.desk.story, app)] == ["0", "1", "2", "3"]

    drive(app, scenario)


def test_diff_marks_what_only_one_side_says(trace_file: Path, open_app: Open, drive: Any) -> None:
    """First it marks, d on another node compares; marks stand in the text, not only in colour."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        await pilot.press("j", "d", "d")
        assert not isinstance(app.screen, DiffScreen)
        await pilot.press("d", "j", "d")
        assert isinstance(app.screen, DiffScreen)
        left, right = diff_texts("one two three", "one 2 three", inks_of(app))
        assert (left.plain, right.plain) == ("one [-two-] three", "one {+2+} three")
        await pilot.press("escape")
        assert isinstance(app.screen, TreeScreen)

    drive(app, scenario)


def test_replay_goes_back_and_on_and_plays(
    trace_file: Path, run_events: list[Event], open_app: Open, drive: Any
) -> None:
    """[ and ] step, ( and ) jump, space plays to the end; a timer lives only while it plays."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        screen, story = tree_screen(app), app.desk.story
        await pilot.press("left_square_bracket", "left_square_bracket", "right_square_bracket")
        assert story.position == len(run_events) - 1
        await pilot.press("left_parenthesis")
        assert (story.position, len(screen.tree_view.rows)) == (0, 0)
        await pilot.press("right_curly_bracket", "right_curly_bracket", "left_curly_bracket")
        assert screen.speed == 2.0
        await pilot.press("space")
        assert screen.is_playing
        for _ in range(100):
            screen.play_on()
        assert story.at_end
        assert not screen.is_playing
        await pilot.press("left_parenthesis", "right_parenthesis")
        assert story.position == len(run_events)

    drive(app, scenario)


def test_export_writes_a_file_and_overwrites_none(
    trace_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_app: Open, drive: Any
) -> None:
    """It writes what was chosen; a second time it refuses."""
    monkeypatch.chdir(tmp_path)
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        await pilot.press("E", "down", "enter")
        assert (tmp_path / "run1.svg").read_text(encoding="utf-8").startswith("<svg")
        await pilot.press("E", "down", "enter")
        assert not isinstance(app.screen, TreeScreen)
        await pilot.press("escape")
        assert isinstance(app.screen, TreeScreen)

    drive(app, scenario)


def test_alarms_are_in_the_banner_and_in_the_report(trace_file: Path, open_app: Open, drive: Any) -> None:
    """The banner names the alarm on every screen, w opens the report, d takes it as read."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        assert app.screen.query_one(AlarmBanner).display
        await pilot.press("3")
        assert app.screen.query_one(AlarmBanner).display
        await pilot.press("2", "w")
        assert isinstance(app.screen, ReportScreen)
        await pilot.press("d")
        assert not app.desk.alarms
        assert not app.screen.query_one(AlarmBanner).display

    drive(app, scenario)


def test_help_names_every_key_of_the_screen(trace_file: Path, open_app: Open, drive: Any) -> None:
    """Each binding with a description is in the help; the key bar always leads there."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        assert app.screen.query_one(KeyBar).pieces()[-1][0] == " help"
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        shown = "\n".join(str(each.render()) for each in app.screen.query("Static"))
        wanted = [b.description for b in TreeScreen.BINDINGS if not isinstance(b, tuple)]
        assert [words for words in wanted if words not in shown] == []

    drive(app, scenario)


def test_steering_is_not_offered_without_a_run(trace_file: Path, open_app: Open, drive: Any) -> None:
    """A trace cannot be pruned: the keys are not in the bar, and do nothing."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        words = "".join(text for text, _style in app.screen.query_one(KeyBar).pieces())
        assert "prune" not in words
        await pilot.press("j", "x", "a", "i", "L", "r", "full_stop", "c", "u")
        assert isinstance(app.screen, TreeScreen)

    drive(app, scenario)


def test_detail_tells_an_unreadable_score_from_zero(trace_file: Path, open_app: Open, drive: Any) -> None:
    """None is said to be no value, low mass is named, a failure says why."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        story, inks = app.desk.story, inks_of(app)
        unread = describe_node(story.tree["0.0.0.1"], story, inks).plain  # type: ignore[index]
        assert "it is not 0" in unread
        assert "low" in unread
        assert "starved: request 9" in describe_node(story.tree["0.1.2"], story, inks).plain  # type: ignore[index]
        assert "same state as 0.0.0" in describe_node(story.tree["0.1.1"], story, inks).plain  # type: ignore[index]

    drive(app, scenario)


def test_a_key_draws_a_bounded_number_of_lines(
    new_teller: Any, save_trace: Any, tmp_path: Path, open_app: Open, drive: Any
) -> None:
    """In a tree of 20,000 nodes a step of the cursor draws two lines, a jump one window."""
    from pie_mlx.search.trace import NodeDone, NodeStarted

    teller = new_teller()
    for node in ("0", *(f"0.{n}" for n in range(20)), *(f"0.{n}.{m}" for n in range(20) for m in range(1000))):
        teller.tell(NodeStarted(node=NodeId(node)), after_s=0.001)
        teller.tell(NodeDone(node=NodeId(node), text=node), after_s=0.001)
    app = open_app(Sources(trace=save_trace(tmp_path / "big.jsonl", teller.events)))

    async def scenario(pilot: Pilot[None]) -> None:
        view = tree_screen(app).tree_view
        assert len(view.rows) == 20_021
        for key, most in (("j", 4), ("G", 3 * 30), ("k", 4), ("pageup", 3 * 30)):
            before = LineView.num_drawn
            await pilot.press(key)
            assert LineView.num_drawn - before <= most, key

    drive(app, scenario)

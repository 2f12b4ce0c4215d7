"""Live and replayed, a run's story is the same at every moment."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pie_mlx.search.replay import replay
from pie_mlx.search.trace import Event, NodeStarted, PagesRead, Pruned
from pie_mlx.search.tree import NodeId
from pie_mlx.tui.logbook import line_of
from pie_mlx.tui.story import RunStory


def told(story: RunStory) -> tuple[object, ...]:
    """Return what of a story the views show."""
    nodes = [(n.id, n.status, n.text, n.value, n.pages, n.selected, n.reason) for n in story.tree.walk()]
    levels = [[node.id for node in level] for level in story.levels]
    spans = [(node, span.started_ns, span.done_ns) for node, span in story.spans.items()]
    log = [line_of(event) for event in story.log]
    standing = [story.standing(depth) for depth in range(len(story.levels))]
    best = [(alive, None if node is None else node.value) for alive, node in standing]
    return best, nodes, levels, [*story.pool_history], story.peak_pages, story.freed_pages, log, spans, story.t_ns


def test_seek_shows_what_was_shown_then(run_events: list[Event]) -> None:
    """Going back to any event gives what a live view showed at that event."""
    live = RunStory()
    moments = []
    for event in run_events:
        live.feed([event])
        moments.append(told(live))
    again = RunStory()
    again.feed(run_events)
    for position in (len(run_events), 3, 17, 1, len(run_events) - 1):
        again.seek(position)
        assert told(again) == moments[position - 1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ways=st.lists(st.integers(0, 70), max_size=12))
def test_any_way_through_the_run_shows_what_was_shown_then(run_events: list[Event], ways: list[int]) -> None:
    """Steps back are taken back one by one, leaps are folded again: both lead to the same."""
    story, live = RunStory(), RunStory()
    story.feed(run_events)
    moments = [told(live)]
    for event in run_events:
        live.feed([event])
        moments.append(told(live))
    for way in ways:
        change = story.seek(way)
        assert told(story) == moments[story.position]
        assert not any(node.id in story.tree for node in change.removed)


def test_one_step_back_takes_one_event_back(run_events: list[Event]) -> None:
    """The tree is changed in place, not made again: what a step costs does not grow with the trace."""
    story = RunStory()
    story.feed(run_events)
    tree = story.tree
    for position in reversed(range(len(run_events))):
        change = story.seek(position)
        assert (change.rebuilt, change.num_events) == (False, 1)
        assert story.tree is tree
    assert not tree.nodes


def test_batches_do_not_matter(run_events: list[Event]) -> None:
    """However events are cut into batches, the story is the same, and its tree is that of a plain replay."""
    whole, pieces = RunStory(), RunStory()
    whole.feed(run_events)
    for at in range(0, len(run_events), 7):
        pieces.feed(run_events[at : at + 7])
    assert told(whole) == told(pieces)
    assert [n.status for n in whole.tree.walk()] == [n.status for n in replay(run_events).walk()]


def test_new_events_wait_while_the_past_is_shown(run_events: list[Event]) -> None:
    """A look back is not pulled forward by what arrives, and loses none of it."""
    story = RunStory()
    story.feed(run_events[:20])
    story.seek(10)
    change = story.feed(run_events[20:])
    assert change.num_events == 0
    assert story.position == 10
    story.seek(len(run_events))
    assert story.at_end
    assert story.is_over


@given(st.integers(0, 60), st.integers(0, 60))
def test_positions_outside_the_run_are_clipped(first: int, second: int) -> None:
    """There is nothing before the beginning or after the end."""
    story = RunStory()
    story.feed([NodeStarted(node=NodeId("0"), seq=1)])
    for position in (first - 30, second):
        story.seek(position)
        assert story.position in (0, 1)


def test_a_contradiction_is_said_and_ends_the_story(run_events: list[Event]) -> None:
    """A damaged trace shows what came before the damage, and why it goes no further."""
    story = RunStory()
    story.feed([*run_events[:5], replace(Pruned(node=NodeId("0.9.9")), seq=6), *run_events[5:]])
    assert story.fault is not None
    assert "event 6" in story.fault
    assert story.position == 5


def test_every_event_has_words(run_events: list[Event]) -> None:
    """The log can tell each kind of event."""
    lines = [line_of(event) for event in run_events if not isinstance(event, PagesRead)]
    assert all(line.words and line.glyph for line in lines)

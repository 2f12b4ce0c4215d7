"""The live tree fits its terminal, whatever the tree, and takes every text literally."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from pie_mlx.cli.render import make_console
from pie_mlx.cli.treeframe import Caption, draw_frame, pool_bar
from pie_mlx.cli.treerows import LOOKS, Canvas, draw_plain, elide, rows_of, score_bar
from pie_mlx.search.tree import ROOT, Node, NodeId, NodePages, NodeStatus, PoolCounts, Score, TokenCounts, Tree

HOSTILE = "\x1b[2J[/red][link=x]你好😀 \\[ \u202e\r\b"


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw a tree of up to forty nodes in all statuses, with texts of all kinds."""
    tree = Tree()
    tree.question = draw(st.sampled_from(["", "2 + 2?", HOSTILE]))
    tree.add(ROOT, status=NodeStatus.OPEN)
    for _ in range(draw(st.integers(0, 40))):
        alive = [node.id for node in tree.walk() if node.status in (NodeStatus.OPEN, NodeStatus.EXPANDING)]
        if not alive:
            break
        child = tree.next_child(parent := draw(st.sampled_from(alive)))
        assert parent in tree
        tree.add(child)
        _fill(draw, tree, tree[child])
    tree.pool = PoolCounts(*(draw(st.integers(0, 9)) for _ in range(6)))
    if draw(st.booleans()):
        tree.alarms.append(HOSTILE)
    return tree


def _fill(draw: st.DrawFn, tree: Tree, node: Node) -> None:
    """Give a node what its thought would."""
    node.text = draw(st.sampled_from(["", "4 * 6 = 24", HOSTILE, "long " * 50]))
    node.tokens, node.pages = TokenCounts(10, 5, 3), NodePages(3, 2)
    status = draw(st.sampled_from([None, NodeStatus.OPEN, NodeStatus.OPEN, NodeStatus.DONE, NodeStatus.INVALID]))
    if status is not None:
        tree.move(node.id, status)
        node.set_score(Score(draw(st.none() | st.floats(-5, 5)), "labels"))


@given(trees(), st.integers(1, 130), st.integers(1, 50), st.booleans())
def test_a_frame_never_exceeds_its_terminal(tree: Tree, width: int, height: int, unicode: bool) -> None:
    """No line is wider, and there are not more lines, than the terminal has: nothing flickers or repeats."""
    lines = draw_frame(tree, Caption(HOSTILE, 3.0), Canvas(width, height, unicode=unicode))
    assert len(lines) <= height
    assert all(cell_len(line.plain) <= width for line in lines)
    assert not any("\n" in line.plain or "\x1b" in line.plain for line in lines)


@given(trees(), st.integers(1, 40))
def test_rows_and_left_out_nodes_are_all_nodes(tree: Tree, height: int) -> None:
    """What is not shown is counted; the shown keep tree order; the root stays."""
    rows = rows_of(tree, Canvas(80, height))
    entries = elide(rows, tree, height)
    shown = [entry.node.id for entry in entries if not isinstance(entry, int)]
    assert len(shown) + sum(entry for entry in entries if isinstance(entry, int)) == len(tree)
    assert [node.id for node in tree.walk() if node.id in set(shown)] == shown
    assert len(entries) <= height
    if height >= 3:
        assert ROOT in shown


def test_the_best_path_outlives_the_pruned() -> None:
    """When rows are short, the way to the answer stays and pruned nodes go."""
    tree = Tree()
    tree.add(ROOT, status=NodeStatus.OPEN)
    for index in range(30):
        node = NodeId(f"0.{index}")
        tree.add(node)
        tree.move(node, NodeStatus.DONE if index == 17 else NodeStatus.OPEN)
        if index != 17:
            tree.prune(node)
    tree.accept(NodeId("0.17"))
    frame = "\n".join(line.plain for line in draw_frame(tree, Caption("t"), Canvas(80, 8)))
    assert "★ 0.17" in frame
    assert "more" in frame


def test_every_status_has_a_shape_of_its_own() -> None:
    """Colour is never needed to tell two statuses apart, in Unicode or ASCII."""
    assert set(LOOKS) == set(NodeStatus)
    assert len({look.glyph for look in LOOKS.values()}) == len(LOOKS)
    assert len({look.ascii for look in LOOKS.values()}) == len(LOOKS)


@given(trees())
def test_ascii_frames_are_ascii(tree: Tree) -> None:
    """A terminal that has no Unicode gets none of ours."""
    for node in tree.nodes.values():
        node.text = ""
    tree.question = ""
    tree.alarms.clear()
    for line in draw_frame(tree, Caption("t"), Canvas(100, 60, unicode=False)):
        assert line.plain.isascii()


@given(trees())
def test_plain_rows_cut_nothing(tree: Tree) -> None:
    """In a pipe there is one line for each node, with its whole text."""
    lines = list(draw_plain(tree))
    assert len(lines) == len(tree)
    whole = ("long " * 50).strip()
    assert all(whole in line for line, node in zip(lines, tree.walk(), strict=True) if "long" in node.text)


@pytest.mark.parametrize(("value", "drawn"), [(None, "      "), (0.0, "──────"), (0.5, "━━━───"), (1.0, "━━━━━━")])
def test_a_missing_score_is_not_zero(value: float | None, drawn: str) -> None:
    """No value shows no bar; zero shows an empty one."""
    assert score_bar(value, 0.0, 1.0, unicode=True, dull=False).plain == drawn


@given(*(st.integers(0, 10_000),) * 4, st.integers(4, 60))
def test_the_pool_bar_is_as_long_as_asked(free: int, private: int, shared: int, cached: int, cells: int) -> None:
    """Every kind of page that is there shows, and the bar is full."""
    bar = pool_bar(PoolCounts(free, private, shared, cached), cells, unicode=True).plain
    if free + private + shared + cached:
        assert len(bar) == cells
    for glyph, count in zip("█▓▒", (shared, private, cached), strict=True):
        assert (glyph in bar) == (count > 0)


def test_hostile_text_is_drawn_literally() -> None:
    """Markup and escape sequences in a thought come out as characters, also with colour on."""
    tree = Tree()
    tree.question = HOSTILE
    tree.add(ROOT, status=NodeStatus.OPEN)
    stream = io.StringIO()
    console: Console = make_console(stream, "always")
    for line in draw_frame(tree, Caption("t"), Canvas(80, 10)):
        console.print(line)
    assert "[/red][link=x]你好😀" in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()
    assert "\u202e" not in stream.getvalue()

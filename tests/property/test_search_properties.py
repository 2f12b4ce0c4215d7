"""Searches for what we missed: arithmetic against an independent evaluator, labels against brute force, escaping."""

from __future__ import annotations

import ast
import itertools
import json
import re
import xml.etree.ElementTree as ET
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pie_mlx.search.errors import TraceError
from pie_mlx.search.export import export
from pie_mlx.search.metrics import auc
from pie_mlx.search.tasks.base import Rejected
from pie_mlx.search.tasks.expression import ExpressionError, check_equation, parse_expression
from pie_mlx.search.tasks.game24 import Game24
from pie_mlx.search.tasks.solver24 import as_state, can_reach
from pie_mlx.search.trace import Header, NodeDone, NodeStarted, RunStarted, Trace, TraceWriter, read_trace
from pie_mlx.search.tree import MOVES, ROOT, NodeId, NodeStatus, Tree

numbers = st.integers(0, 30).map(str)
expressions = st.recursive(
    numbers,
    lambda inner: st.builds(
        "{}{}{}{}{}".format,
        st.sampled_from(["", "("]).map(lambda _: "("),
        inner,
        st.sampled_from([" + ", "-", " * ", "/"]),
        inner,
        st.just(")"),
    ),
    max_leaves=6,
)


def _by_python(text: str) -> Fraction:
    """Evaluate with Python's own parser: an implementation that shares nothing with ours."""

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant):
            return Fraction(node.value)  # type: ignore[arg-type]
        assert isinstance(node, ast.BinOp)
        left, right = value(node.left), value(node.right)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case _:
                return left / right

    return value(ast.parse(text, mode="eval").body)


@given(st.lists(expressions, min_size=1, max_size=3), st.sampled_from(["+", "-", "*", "/"]))
def test_our_evaluator_agrees_with_pythons(parts: list[str], sign: str) -> None:
    """Same value, or both divide by zero; precedence and associativity included."""
    text = sign.join(parts)
    if len(text) > 100:
        return
    try:
        expected = _by_python(text)
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="div-zero"):
            parse_expression(text)
        return
    found = parse_expression(text)
    assert found.value == expected
    assert list(found.numbers) == [int(number) for number in re.findall(r"\d+", text)]


@given(st.text(alphabet="0123456789+-*/() =!^.x\n４×", max_size=40))
def test_whatever_is_called_solved_is_solved(text: str) -> None:
    """No text passes the checker unless Python agrees that it uses the numbers and makes 24."""
    check = check_equation(text, (4, 6), 24)
    if check.solved:
        left = next(line for line in reversed(text.splitlines()) if "=" in line).split("=")[0]
        assert _by_python(left.strip()) == 24
        assert sorted(re.findall(r"\d+", left)) == ["4", "6"]


@given(st.text(max_size=200))
def test_no_text_breaks_a_checker_or_a_move(text: str) -> None:
    """Any text is a step, a rejection or a check with a reason: never an exception."""
    task = Game24(4, 4, 6, 8)
    assert task.check(text).reason
    step = task.step(task.start(), text)
    assert isinstance(step, Rejected) or len(step) == 3


def _brute_force(values: tuple[Fraction, ...]) -> bool:
    """Try every order, operator and bracketing of four numbers, as five fixed shapes."""

    def apply(sign: str, a: Fraction | None, b: Fraction | None) -> Fraction | None:
        if a is None or b is None or (sign == "/" and b == 0):
            return None
        return {"+": a + b, "-": a - b, "*": a * b}[sign] if sign != "/" else a / b

    for a, b, c, d in set(itertools.permutations(values)):
        for x, y, z in itertools.product("+-*/", repeat=3):
            shapes = (
                apply(z, apply(y, apply(x, a, b), c), d),
                apply(z, apply(x, a, apply(y, b, c)), d),
                apply(x, a, apply(z, apply(y, b, c), d)),
                apply(x, a, apply(y, b, apply(z, c, d))),
                apply(y, apply(x, a, b), apply(z, c, d)),
            )
            if 24 in shapes:
                return True
    return False


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 13), min_size=4, max_size=4))
def test_solver_labels_agree_with_brute_force(puzzle: list[int]) -> None:
    """The memoised solver and an exhaustive search of five shapes give one label."""
    assert can_reach(as_state(puzzle)) == _brute_force(as_state(puzzle))


def _trace(folder: Path, text: str) -> Trace:
    """Record a one-node run of this text."""
    path = folder / "fuzz.jsonl"
    path.unlink(missing_ok=True)
    with TraceWriter.create(path, Header(text, text, text, 0, text)) as writer:
        writer.write(RunStarted(question=text, strategy=text, scorer=text))
        writer.write(NodeStarted(node=ROOT))
        writer.write(NodeDone(node=ROOT, text=text, reason=text))
        writer.write(NodeStarted(node=NodeId("0.0")))
        writer.write(NodeDone(node=NodeId("0.0"), text=text, reasoning=text, terminal=True))
    return read_trace(path)


marks = "<>&\"'/\\`]-!{}#;%()[]\n\x00\ud800\u2028scriptyle"
any_text = st.text(st.characters(), max_size=60) | st.text(marks, max_size=60)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=any_text)
def test_no_text_leaves_its_place_in_an_export(text: str, tmp_path: Path) -> None:
    """Element counts of page and picture do not depend on the texts; JSON and quotes stay whole."""
    trace = _trace(tmp_path, text)
    html, svg, dot, mermaid = (export(trace, name) for name in ("html", "svg", "dot", "mermaid"))
    as_json, profile = (json.loads(export(trace, name)) for name in ("json", "speedscope"))
    reference = export(_trace(tmp_path, "plain"), "html")
    if text:
        assert _elements(html) == _elements(reference)
    assert set(_elements(html)) <= set(_elements(reference))
    embedded = re.search(r'id="run">(.*?)</script>', html, flags=re.DOTALL)
    assert embedded is not None
    assert len(json.loads(embedded[1])["nodes"]) == 2
    ET.fromstring(svg)
    assert '"' not in re.sub(r'"(?:\\.|[^"\\])*"', "", dot)
    assert mermaid.count('"') == 4
    assert as_json["nodes"][1]["text"] == text
    assert len(profile["shared"]["frames"]) == 2


def _elements(page: str) -> list[str]:
    """Return the names of a page's tags in order, whatever stands in its own style and scripts left out."""
    outer = re.sub(r"<(style|script)\b[^>]*>.*?</\1>", "", page, flags=re.DOTALL)
    return re.findall(r"<(/?[a-zA-Z!][a-zA-Z0-9-]*)", outer)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1), junk=st.binary(max_size=20), cut=st.booleans())
def test_a_damaged_trace_is_read_or_refused_by_name(at: float, junk: bytes, cut: bool, tmp_path: Path) -> None:
    """Bytes overwritten or cut anywhere give a shorter trace or a typed error: never another exception."""
    trace = _trace(tmp_path, "thought")
    content = trace.path.read_bytes()
    place = int(at * len(content))
    trace.path.write_bytes(content[:place] + junk + (b"" if cut else content[place + len(junk) :]))
    with suppress(TraceError):
        read = read_trace(trace.path)
        read.tree()
        assert len(read.events) <= len(trace.events)


@given(st.lists(st.tuples(st.integers(0, 8), st.sampled_from(list(NodeStatus))), max_size=60))
def test_any_order_of_legal_moves_keeps_the_tree_whole(moves: list[tuple[int, NodeStatus]]) -> None:
    """Parents count their children that are being written, and no status is reached but through the table."""
    tree = Tree()
    tree.add(ROOT)
    tree.move(ROOT, NodeStatus.OPEN)
    for index, status in moves:
        ids = list(tree.nodes)
        node = tree[ids[index % len(ids)]]
        if status is NodeStatus.WRITING and NodeStatus.EXPANDING in MOVES[node.status] | {node.status}:
            tree.add(tree.next_child(node.id))
        elif status in MOVES[node.status] and status is not NodeStatus.WRITING and node.num_writing == 0:
            tree.move(node.id, status)
        for one in tree.walk():
            writing = sum(tree[child].status is NodeStatus.WRITING for child in one.children)
            assert one.num_writing == writing
            if writing:
                assert one.status in (NodeStatus.EXPANDING, NodeStatus.PRUNED)
    assert sum(tree.counts().values()) == len(tree) == len(list(tree.walk()))


@given(st.lists(st.tuples(st.none() | st.integers(0, 5).map(float), st.booleans()), min_size=1, max_size=30))
def test_auc_is_the_share_of_ordered_pairs(pairs: list[tuple[float | None, bool]]) -> None:
    """The rank formula equals counting all pairs."""
    low = [-1.0 if value is None else value for value, _ in pairs]
    good = [v for v, (_, label) in zip(low, pairs, strict=True) if label]
    bad = [v for v, (_, label) in zip(low, pairs, strict=True) if not label]
    found = auc([value for value, _ in pairs], [label for _, label in pairs])
    if not good or not bad:
        assert found is None
        return
    wins = sum((g > b) + 0.5 * (g == b) for g in good for b in bad)
    assert found == pytest.approx(wins / (len(good) * len(bad)))

"""A task as a run plays it: what a thought means, what follows, what is answered."""

from __future__ import annotations

import pytest

from pie_mlx.search.dialogue import join_line
from pie_mlx.search.node import ROOT, NodeId, plain
from pie_mlx.search.rules import Rules, without_echo
from pie_mlx.search.tasks.arith import Arith
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.tasks.game24 import Game24
from pie_mlx.search.trace_events import Verdict


@pytest.mark.parametrize(
    ("lead", "text", "clean"),
    [
        ("\nStep 2:", "Step 2: go on", "go on"),
        ("\nStep 2:", "**Step 2:** go on", "go on"),
        ("\nStep 2:", "Step 2: Step 2: go on", "go on"),
        ("\nStep 2:", "Step 3: go on", "Step 3: go on"),
        ("\nStep 2:", "go on to step 2: now", "go on to step 2: now"),
        ("\nAnswer:", "Answer: 42", "42"),
        ("\n2.", "2. go on", "go on"),
        ("\n2.", "2.5 km are left", "2.5 km are left"),
        ("", "Step 1: x", "Step 1: x"),
    ],
)
def test_a_lead_that_is_said_again_is_dropped(lead: str, text: str, clean: str) -> None:
    """Small models like to repeat the lead; only its own words go."""
    assert without_echo(lead, text) == clean


@pytest.mark.parametrize(
    ("lead", "line"), [("Step 1:", "Step 1: go"), ("Step 1: ", "Step 1: go"), ("\n", "\ngo"), ("", "go")]
)
def test_a_line_has_one_blank_behind_its_lead(lead: str, line: str) -> None:
    """A blank before the word, as tokenizers want it, and none at a line's start."""
    assert join_line(lead, "go") == line


def test_near_duplicates_are_equal() -> None:
    """Case, blanks and punctuation do not make another thought."""
    assert plain("The sky,  is BLUE!") == plain("the sky is blue")
    assert plain("the sky is red") != plain("the sky is blue")


def test_thoughts_lead_to_an_answer_written_from_them() -> None:
    """After the last thought the answer is asked for; behind the answer nothing follows."""
    rules = Rules(Free("Why?", depth=1), None)
    reading = rules.read(ROOT, " light ")
    assert reading.position is not None
    assert not reading.position.terminal
    rules.place(NodeId("0.0"), reading.position)
    assert rules.writes_answer(NodeId("0.0"))
    answer = rules.read(NodeId("0.0"), "because\nof light")
    assert answer.position is not None
    rules.place(NodeId("0.0.0"), answer.position)
    assert answer.position.answer == "because\nof light"
    assert not rules.may_grow(NodeId("0.0.0"))
    assert rules.path_lines(NodeId("0.0.0")) == [reading.position.text, answer.position.text]
    assert rules.path_text(NodeId("0.0.0")).endswith(" because\nof light")


def test_a_shallower_search_writes_its_answer_earlier() -> None:
    """The depth of the run cuts the task's own."""
    rules = Rules(Free("Why?", depth=5), 1)
    reading = rules.read(ROOT, "light")
    assert reading.position is not None
    rules.place(NodeId("0.0"), reading.position)
    assert rules.writes_answer(NodeId("0.0"))


def test_empty_and_illegal_thoughts_have_no_position() -> None:
    """Form and content are told apart, with the task's reason."""
    rules = Rules(Game24(4, 4, 6, 8), None)
    assert rules.read(ROOT, "  ").verdict is Verdict.UNPARSED
    assert rules.read(ROOT, "no idea").verdict is Verdict.UNPARSED
    wrong = rules.read(ROOT, "5 + 5 = 10")
    assert (wrong.verdict, wrong.reason, wrong.position) == (Verdict.INVALID, "wrong-numbers", None)


def test_an_unreadable_node_cannot_grow() -> None:
    """A node without a position has no children and no verdict."""
    rules = Rules(Game24(4, 4, 6, 8), None)
    assert not rules.may_grow(NodeId("0.0"))
    assert rules.solved(NodeId("0.0")) is None
    assert rules.answer_key(NodeId("0.0")) is None


def test_a_check_by_a_known_answer_steers_only_on_purpose() -> None:
    """A task whose check knows the answer does not stop the search by it, unless the oracle is allowed."""

    class Known(Arith):
        """A task that says so."""

        check_knows_answer = True

    task = Known.generate(1)
    assert not Rules(task, None).steers_by_check
    assert Rules(task, None, use_truth=True).steers_by_check

"""The tree of turns: branches are names, and no turn ever becomes unreachable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.chat.drawing import draw_tree
from pie_mlx.chat.turns import Turn, TurnId, TurnTree, exchanges
from pie_mlx.errors import InvalidParameter, UsageError


def _exchange(tree: TurnTree, text: str) -> None:
    """Let the current branch grow by one message and its reply."""
    number = len(tree.turns) + 1
    tree.put(Turn(TurnId(number), tree.tip, "user", text))
    tree.put(Turn(TurnId(number + 1), TurnId(number), "assistant", f"re {text}"))
    tree.branches[tree.current] = TurnId(number + 1)


def _move(tree: TurnTree, tip: TurnId | None) -> None:
    """Move the current branch as a conversation does."""
    kept = tree.name_of_left(tip, tree.current)
    if kept is not None:
        tree.branches[kept] = tree.tip
    tree.branches[tree.current] = tip


@given(st.lists(st.sampled_from(["say", "undo", "fork", "switch", "retry"]), max_size=40))
def test_no_turn_becomes_unreachable(moves: list[str]) -> None:
    """Whatever a user does, every reply lies on some branch, and the drawing shows each once."""
    tree = TurnTree()
    for number, move in enumerate(moves):
        if move == "say":
            _exchange(tree, f"m{number}")
        elif move == "undo" and tree.tip is not None:
            _move(tree, tree.last_exchange()[0].parent)
        elif move == "retry" and tree.tip is not None:
            message = tree.last_exchange()[0]
            reply = Turn(TurnId(len(tree.turns) + 1), message.id, "assistant", f"again {number}")
            tree.put(reply)
            _move(tree, reply.id)
        elif move == "fork":
            name = tree.free_name(tree.current)
            tree.branches[name] = tree.tip
            tree.current = name
        elif move == "switch":
            tree.current = list(tree.branches)[number % len(tree.branches)]
    reached = {turn.id for tip in tree.branches.values() for turn in tree.path(tip)}
    assert reached == set(tree.turns)
    drawn = [line.turn for line in draw_tree(tree)]
    assert sorted(drawn) == sorted(turn.id for turn in tree.turns.values() if turn.role == "assistant")


def test_a_drawing_shows_branches_and_the_current_place() -> None:
    """A fork is drawn with its stems; where one stands is a mark, not a colour."""
    tree = TurnTree()
    _exchange(tree, "root")
    tree.branches["alt"] = tree.tip
    _exchange(tree, "one")
    tree.current = "alt"
    _exchange(tree, "two")
    assert [str(line) for line in draw_tree(tree)] == [
        "○ root → re root",
        "├─ ○ one → re one  [main]",
        "└─ ● two → re two  [alt]",
    ]


def test_a_long_conversation_is_drawn_without_recursion() -> None:
    """Depth is not limited by Python's stack."""
    tree = TurnTree()
    for number in range(3000):
        _exchange(tree, str(number))
    lines = draw_tree(tree)
    assert len(lines) == 3000
    assert lines[-1].stem == ""


def test_a_preview_is_one_line() -> None:
    """Line breaks and length of a message cannot break the drawing."""
    tree = TurnTree()
    _exchange(tree, "a\nb\t" + "x" * 100)
    (line,) = draw_tree(tree, preview=10)
    assert line.text == "a b xxxxx… → re a b xx…"


def test_a_preview_of_code_shows_the_code() -> None:
    """A reply that begins with a fence is known by what is in it."""
    tree = TurnTree()
    _exchange(tree, "```python\ndef add(a, b):\n```\nso")
    (line,) = draw_tree(tree)
    assert line.text.startswith("def add(a, b): so → ")


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 41, "a/b", ".x"])
def test_a_branch_name_is_a_plain_word(name: str) -> None:
    """Names are typed after /switch, so they hold no space and begin with a letter or digit."""
    with pytest.raises(InvalidParameter):
        TurnTree().check_new_name(name)


def test_a_branch_is_found_by_its_beginning_where_that_is_clear() -> None:
    """A unique beginning is enough; an unknown name meets the nearest."""
    tree = TurnTree(branches={"main": None, "idea": None, "main.2": None})
    assert tree.find_branch("main") == "main"
    assert tree.find_branch("id") == "idea"
    with pytest.raises(UsageError) as caught:
        tree.find_branch("iaed")
    assert caught.value.hint == "did you mean 'idea'?"
    with pytest.raises(UsageError):
        tree.find_branch("")
    with pytest.raises(UsageError, match="already"):
        tree.check_new_name("idea")


def test_free_names_count_from_the_stem() -> None:
    """Keeping main.2 gives main.3, not main.2.2."""
    tree = TurnTree(branches={"main": None, "main.2": None})
    assert tree.free_name("main.2") == "main.3"


def test_exchanges_pair_messages_with_replies() -> None:
    """A last message without a reply is paired with None."""
    path = [
        Turn(TurnId(1), None, "user", "a"),
        Turn(TurnId(2), TurnId(1), "assistant", "b"),
        Turn(TurnId(3), TurnId(2), "user", "c"),
    ]
    assert [(m.text, r and r.text) for m, r in exchanges(path)] == [("a", "b"), ("c", None)]

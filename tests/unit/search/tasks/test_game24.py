"""The game of 24: its puzzles, its moves, and a checker that cannot be tricked."""

from __future__ import annotations

import random

import pytest

from pie_mlx.search.errors import TaskError
from pie_mlx.search.tasks.base import Rejected
from pie_mlx.search.tasks.game24 import Game24
from pie_mlx.search.tasks.solver24 import (
    PUZZLES_SHA256,
    SPLITS,
    as_state,
    chance,
    puzzles_sha256,
    random_pass_at,
    solvable_puzzles,
    split_puzzles,
)
from pie_mlx.search.trace_events import Verdict

PUZZLE = Game24(4, 4, 6, 8)


def test_the_generated_list_is_the_canonical_one() -> None:
    """1,362 solvable puzzles, and the digest of their list."""
    assert len(solvable_puzzles()) == 1362
    assert puzzles_sha256() == PUZZLES_SHA256


def test_the_split_is_thirds_by_random_play() -> None:
    """Every puzzle is in one third of 454; no puzzle of an easier third is harder than one of the next."""
    thirds = [split_puzzles(split) for split in SPLITS]
    assert [len(third) for third in thirds] == [454, 454, 454]
    assert sorted(p for third in thirds for p in third) == list(solvable_puzzles())
    chances = [[chance(as_state(p)) for p in third] for third in thirds]
    assert min(chances[0]) >= max(chances[1])
    assert min(chances[1]) >= max(chances[2])


def test_null_baselines_are_those_that_are_published() -> None:
    """Random legal play, pass@1, 5, 25 and 100, in percent."""
    assert [round(100 * random_pass_at(k), 1) for k in (1, 5, 25, 100)] == [0.6, 2.9, 12.4, 34.3]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("(6 - 4) * (4 + 8) = 24", "ok"),
        ("We see it.\nAnswer: (6-4)*(4+8)=24\n", "ok"),
        ("(6 - 4) * (4 + 8)", "unparsable"),
        ("", "unparsable"),
        ("4! = 24", "bad-token"),
        ("4**2 + 8 + 6 - 4 = 24", "unparsable"),
        ("(6-4)^4 + 8 = 24", "bad-token"),
        ("44 - 6 * 8 = 24", "wrong-numbers"),
        ("4 4 + 6 + 8 = 24", "unparsable"),
        ("8 + 6 + 4 + 4 + 2 = 24", "wrong-numbers"),
        ("6 * 4 = 24", "wrong-numbers"),
        ("6 + 4 + 4 + 8 = 24", "not-24"),
        ("-4 + 4 + 6 * 8 = 24", "unparsable"),
        ("4 - -4 + 6 + 8 = 24", "unparsable"),
        ("+6 * 4 + 4 - 8 = 24", "unparsable"),
        ("6 / (4 - 4) + 8 = 24", "div-zero"),
        ("4.0 * 6 + 4 - 8 = 24", "bad-token"),
        ("04 * 6 + 4 - 8 = 24", "unparsable"),
        ("４ * 6 + 4 - 8 = 24", "bad-token"),
        ("4 × 6 + 4 - 8 = 24", "bad-token"),
        ("4 ∗ 6 + 4 - 8 = 24", "bad-token"),
        ("4\u00a0* 6 + 4 - 8 = 24", "bad-token"),
        ("__import__('os') = 24", "bad-token"),
        ("(4)(6) + 4 - 8 = 24", "unparsable"),
        ("() = 24", "unparsable"),
        ("4 6 = 24", "unparsable"),
        ("= 24", "unparsable"),
        ("(" * 10_000 + "4" + ")" * 10_000 + " = 24", "unparsable"),
        ("9" * 90 + " = 24", "wrong-numbers"),
    ],
)
def test_the_checker_gives_a_reason_and_evaluates_nothing(answer: str, reason: str) -> None:
    """Only integers, the four operations and parentheses count; each trick has its code."""
    check = PUZZLE.check(answer)
    assert check.reason == reason
    assert check.solved == (reason == "ok")


def test_a_move_computes_what_is_left_itself() -> None:
    """The model's own remainder is not believed; the lead states the true one."""
    state = PUZZLE.step(PUZZLE.start(), " 4 + 8 = 12 (left: 24)")
    assert not isinstance(state, Rejected)
    assert PUZZLE.key(state) == "4 6 12"
    assert PUZZLE.lead(state) == "\nleft: 4 6 12\nstep:"


@pytest.mark.parametrize("text", ["4+8=12", "4 + 8", "1. 4 + 8 = 12", "Step 1: 8 + 4 = 12", "- 4 + 8 = 12 hm"])
def test_a_move_may_be_written_in_several_ways(text: str) -> None:
    """List marks, missing blanks and a missing result do not matter."""
    state = PUZZLE.step(PUZZLE.start(), text)
    assert not isinstance(state, Rejected)
    assert PUZZLE.key(state) == "4 6 12"


@pytest.mark.parametrize(
    ("text", "verdict", "reason"),
    [
        ("Let me think", Verdict.UNPARSED, "no-move"),
        ("", Verdict.UNPARSED, "no-move"),
        ("4 + 8 + 6 = 18", Verdict.UNPARSED, "no-move"),
        ("４ + 8 = 12", Verdict.UNPARSED, "no-move"),
        ("4 + 9 = 13", Verdict.INVALID, "wrong-numbers"),
        ("6 + 6 = 12", Verdict.INVALID, "wrong-numbers"),
        ("4 + 8 = 13", Verdict.INVALID, "wrong-result"),
        ("4 + 8 = twelve", Verdict.INVALID, "wrong-result"),
        ("4 / 0 = 0", Verdict.INVALID, "wrong-numbers"),
        ("4 / 1/0 = 0", Verdict.UNPARSED, "no-move"),
    ],
)
def test_what_is_no_legal_move_is_told_apart(text: str, verdict: Verdict, reason: str) -> None:
    """A wrong form is unparsed, a wrong step is invalid."""
    assert PUZZLE.step(PUZZLE.start(), text) == Rejected(verdict, reason)


def test_division_by_zero_is_no_move() -> None:
    """It is refused when written, and not listed."""
    state = PUZZLE.step(PUZZLE.start(), "4 - 4 = 0")
    assert not isinstance(state, Rejected)
    assert PUZZLE.step(state, "6 / 0 = 0") == Rejected(Verdict.INVALID, "div-zero")
    assert not any("/ 0" in move for move in PUZZLE.legal_moves(state))


def test_fractions_and_negatives_are_exact_along_a_path() -> None:
    """3 3 8 8 needs 8 / (3 - 8/3); a negative operand is written in parentheses and read back."""
    task = Game24(3, 3, 8, 8)
    state = task.start()
    for move in ("8 / 3 = 8/3", "3 - 8/3 = 1/3", "8 / 1/3 = 24"):
        after = task.step(state, move)
        assert not isinstance(after, Rejected)
        state = after
    answer = task.answer(state)
    assert answer is not None
    assert task.check(answer).solved
    negative = PUZZLE.step(PUZZLE.start(), "4 - 6 = -2")
    assert not isinstance(negative, Rejected)
    assert "8 - (-2) = 10" in PUZZLE.legal_moves(negative)
    assert not isinstance(PUZZLE.step(negative, "8 - (-2) = 10"), Rejected)


def test_every_listed_move_is_legal_and_its_label_is_exact() -> None:
    """From solvable states some move stays solvable; a path along them ends in a right answer."""
    for seed in range(20):
        task = Game24.generate(seed, "hard")
        state, draw = task.start(), random.Random(seed)
        while not task.is_finished(state):
            after = [task.step(state, move) for move in task.legal_moves(state)]
            assert not any(isinstance(one, Rejected) for one in after)
            state = draw.choice([one for one in after if not isinstance(one, Rejected) and task.oracle(one)])
        answer = task.answer(state)
        assert answer is not None
        assert task.check(answer).solved, answer


@pytest.mark.parametrize("question", ["", "4 4 6", "4 4 6 14", "0 4 4 6", "4 4 6 x", "4 4 6 8 9", "４ 4 6 8"])
def test_what_is_no_puzzle_is_refused(question: str) -> None:
    """Four numbers from 1 to 13, in ASCII digits."""
    with pytest.raises(TaskError):
        Game24.from_question(question)

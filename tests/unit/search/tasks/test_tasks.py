"""What all tasks promise, and what each of the others adds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pie_mlx.errors import InvalidParameter
from pie_mlx.search.errors import TaskError
from pie_mlx.search.tasks import Rejected, Task, draw_test_set, make_task, task_class, task_names
from pie_mlx.search.tasks.arith import Arith
from pie_mlx.search.tasks.countdown import Countdown
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.tasks.sort import Sort
from pie_mlx.search.tasks.sudoku4 import Sudoku4
from pie_mlx.search.trace_events import Verdict

CHECKED = ("countdown", "arith", "sort", "sudoku4")


def _walk(task: Task[Any], draw: random.Random) -> Any:
    """Play legal moves along states that the oracle does not call lost; return the last state."""
    state = task.start()
    for _ in range(task.depth):
        if task.is_finished(state):
            break
        after = [task.step(state, move) for move in task.legal_moves(state)]
        assert after
        assert not any(isinstance(one, Rejected) for one in after)
        good = [one for one in after if task.oracle(one) is not False]
        state = draw.choice(good or after)
    return state


@pytest.mark.parametrize("name", CHECKED)
def test_a_seed_and_a_split_give_one_problem(name: str) -> None:
    """The same seed gives the same problem, its question makes it again, and others differ."""
    for split in (None, *task_class(name).splits):
        first = make_task(name, seed=5, split=split)
        assert make_task(name, seed=5, split=split).question == first.question
        assert make_task(name, first.question).question == first.question
        assert len({make_task(name, seed=s, split=split).question for s in range(8)}) > 4


@pytest.mark.parametrize("name", CHECKED)
def test_legal_play_along_the_oracle_reaches_a_finished_state(name: str) -> None:
    """Listed moves are legal, depth is enough, and an answer that the oracle calls right checks as right."""
    for seed in range(6):
        task = make_task(name, seed=seed)
        state = _walk(task, random.Random(seed))
        assert task.is_finished(state)
        answer = task.answer(state)
        assert answer is not None
        check = task.check(answer)
        assert check is not None
        assert check.solved == task.oracle(state)
        assert check.solved == (check.value == 1.0)


@pytest.mark.parametrize("name", task_names())
def test_prompts_hold_the_problem_and_leads_only_grow(name: str) -> None:
    """The prompt states the question; no lead is empty or ends in the blank that the gap gives."""
    task = make_task(name, "Why is the sky blue?") if name == "free" else make_task(name, seed=1)
    assert task.question.split(" = ")[0].split(" / ")[0] in task.prompt() or name == "countdown"
    lead = task.lead(task.start())
    assert lead
    assert not lead.endswith(" ")
    judging = task.judging(task.start())
    assert len({label[0] for label in judging.labels}) == len(judging.labels)


def test_countdown_grades_by_distance() -> None:
    """Exact is 1, within 5 is 0.7, within 10 is 0.5; each number at most once, not all needed."""
    task = Countdown.from_question("2 3 7 8 50 75 = 431")
    cases = {
        "8 * 50 + 7 * 3 + 75 = 431": ("off-by-65", 0.0),
        "(8 * 50) + 75 / 3 + 7 - 2 = 430": ("off-by-1", 0.7),
        "8 * 50 + 75 - 50 = 425": ("wrong-numbers", 0.0),
        "8 * 50 + 7 * 3 = 421": ("off-by-10", 0.5),
        "eight": ("unparsable", 0.0),
    }
    for answer, (reason, value) in cases.items():
        check = task.check(answer)
        assert (check.reason, check.value) == (reason, value), answer
    assert task.check("8 * 50 + 75 / 3 + 7 - 2 + 1 = 431").reason == "wrong-numbers"


def test_countdown_stays_in_positive_integers() -> None:
    """A fraction, zero or a negative result is an illegal step and is not listed."""
    task = Countdown.from_question("3 3 8 = 24")
    for text in ("3 - 8 = -5", "8 / 3 = 8/3", "3 - 3 = 0"):
        assert task.step(task.start(), text) == Rejected(Verdict.INVALID, "not-a-positive-integer")
    listed = ["3 + 3 = 6", "3 * 3 = 9", "3 / 3 = 1", "3 + 8 = 11", "8 - 3 = 5", "3 * 8 = 24"]
    assert task.legal_moves(task.start()) == listed
    assert task.oracle(task.start()) is True


def test_sort_counts_errors() -> None:
    """Falling neighbours and wrong counts are errors; the grade falls with them."""
    task = Sort(3, 1, 2, 0)
    assert task.check("0 1 2 3").solved
    assert (task.check("0 2 1 3").reason, task.check("0 2 1 3").value) == ("errors-1", 0.75)
    assert task.check("0 1 2").reason == "errors-1"
    assert task.check("done").reason == "unparsable"


@pytest.mark.parametrize(
    ("text", "reason"), [("0 1 1 2", "ok"), ("9 9 9 9", "wrong-numbers"), ("0 1", "wrong-count"), ("a b", "no-move")]
)
def test_sort_takes_only_digits_that_are_left(text: str, reason: str) -> None:
    """A chunk has the right length and uses what is left."""
    task = Sort(3, 1, 2, 0, 9, 1, 5, 3)
    state = task.step(task.start(), text)
    assert (state.reason if isinstance(state, Rejected) else "ok") == reason


def test_sudoku_refuses_a_clash_and_a_filled_cell() -> None:
    """A digit may stand once in row, column and box; given cells stay."""
    task = Sudoku4.from_question("12.. / 34.. / 21.. / 43..")
    start = task.start()
    assert task.step(start, "r1c3 = 1") == Rejected(Verdict.INVALID, "clash")
    assert task.step(start, "r1c1 = 1") == Rejected(Verdict.INVALID, "filled")
    assert task.step(start, "r5c1 = 1") == Rejected(Verdict.UNPARSED, "no-move")
    assert task.check("1234/3412/2143/4321").solved
    assert task.check("1234/3412/2143/4312").reason == "clash"
    assert task.check("2134/3412/2143/4321").reason == "changed-given"


def test_arith_follows_the_story() -> None:
    """A right equation that the story does not tell is legal but lost; the answer is compared as an integer."""
    story = "A shop has 12 apples. Then 30 more arrive. Then 2 are sold. How many apples are there?"
    task = Arith(story)
    right = task.step(task.start(), " 12 + 30 = 42")
    wrong = task.step(task.start(), " 12 - 2 = 10")
    assert not isinstance(right, Rejected)
    assert not isinstance(wrong, Rejected)
    assert (task.oracle(right), task.oracle(wrong)) == (True, False)
    assert task.step(right, "42 - 2 = 41") == Rejected(Verdict.INVALID, "wrong-result")
    assert task.step(right, "42 - 30 = 12") == Rejected(Verdict.INVALID, "wrong-numbers")
    assert task.check("step: answer: 40").solved
    assert task.check("400").reason == "wrong-answer"
    with pytest.raises(TaskError, match="only the stories"):
        Arith("How many roads must a man walk down?")


def test_free_merges_equal_thoughts_and_claims_nothing() -> None:
    """Case and spacing do not make two states; there is no check; an empty thought is none."""
    task = Free("Why?")
    one, two = task.step((), " Because  it is."), task.step((), "because it IS")
    assert not isinstance(one, Rejected)
    assert not isinstance(two, Rejected)
    assert task.key(one) == task.key(two)
    assert task.check("anything") is None
    assert task.step((), "  \n") == Rejected(Verdict.UNPARSED, "empty")
    assert task.synthesis(one) is not None
    with pytest.raises(TaskError):
        Free("  ")


def test_a_test_set_has_different_problems() -> None:
    """As many as asked for, each once, the same every time; more than there are is refused."""
    drawn = [task.question for task in draw_test_set("sudoku4", 12, seed=3, split="easy")]
    assert len(set(drawn)) == 12
    assert drawn == [task.question for task in draw_test_set("sudoku4", 12, seed=3, split="easy")]
    with pytest.raises(InvalidParameter):
        draw_test_set("sort", 0)
    with pytest.raises(TaskError, match="no test set"):
        draw_test_set("free", 1)


def test_unknown_names_are_answered_with_the_nearest() -> None:
    """A misspelt task and a split that is not there say what there is."""
    with pytest.raises(TaskError) as caught:
        make_task("gmae24")
    assert caught.value.hint == "did you mean 'game24'?"
    with pytest.raises(TaskError, match="easy, medium, hard"):
        make_task("game24", split="impossible")
    with pytest.raises(TaskError, match="exclude"):
        make_task("sort", "3 1 2", split="8")


CUSTOM = """
from pie_mlx.search.tasks.base import Task

class Echo(Task[str]):
    name = "echo"
    question = "say it"
    depth = 1
    @classmethod
    def from_question(cls, question): return cls()
    def prompt(self): return "Say it."
    def start(self): return ""
    def step(self, state, text): return state + text
    def is_finished(self, state): return bool(state)
    def answer(self, state): return state

class Half(Task[str]):
    name = "half"

class Stranger: ...
"""


def test_a_users_task_is_loaded_from_its_file(tmp_path: Path) -> None:
    """A complete subclass of Task is used like any other."""
    path = tmp_path / "mine.py"
    path.write_text(CUSTOM)
    task = make_task(f"{path}:Echo", "anything")
    assert task.answer(task.step(task.start(), "hello")) == "hello"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("mine.py", CUSTOM, "names no class"),
        ("mine.py:Missing", CUSTOM, "no class 'Missing'"),
        ("mine.py:Stranger", CUSTOM, "not a subclass"),
        ("mine.py:Half", CUSTOM, "lacks answer, depth"),
        ("mine.py:Echo", "def broken(:", "SyntaxError"),
        ("mine.py:Echo", "import nothing_of_this_name", "ModuleNotFoundError"),
        ("mine.py:Echo", "1 / 0", "ZeroDivisionError"),
        ("other.py:Echo", CUSTOM, "no such file"),
    ],
)
def test_what_is_wrong_with_a_users_file_is_said(tmp_path: Path, name: str, content: str, says: str) -> None:
    """Each way to fail has its own message, before any model is loaded."""
    (tmp_path / "mine.py").write_text(content)
    with pytest.raises(TaskError, match=says):
        make_task(str(tmp_path / name), "q")

"""The game of 24: four numbers from 1 to 13, each used once, with + − × ÷ over exact rationals, make 24."""

from __future__ import annotations

import random
import re
from fractions import Fraction
from typing import ClassVar, Self

from pie_mlx.search.errors import TaskError
from pie_mlx.search.tasks import solver24
from pie_mlx.search.tasks.base import Check, Judging, Rejected, Task, as_words, refuse_split, yes_or_no
from pie_mlx.search.tasks.expression import check_equation, last_equation
from pie_mlx.search.tasks.moves import Term, all_moves, list_moves, make_terms, move_text, read_move, show

State = tuple[Term, ...]

_RULES = """\
Use the four numbers and + - * / to make 24. Each number is used exactly once.
Work in three steps. Each step takes two of the numbers that are left, combines them, and puts the result back.

Example: 4 4 6 8
left: 4 4 6 8
step: 4 + 8 = 12
left: 4 6 12
step: 6 - 4 = 2
left: 2 12
step: 2 * 12 = 24
left: 24

Now do the same. Numbers: {numbers}"""


class Game24(Task[State]):
    """Four integers make 24; every state has an exact label, so scorers can be measured."""

    name: ClassVar[str] = "game24"
    summary: ClassVar[str] = "four numbers make 24; exact check and exact labels"
    splits: ClassVar[tuple[str, ...]] = solver24.SPLITS
    has_check: ClassVar[bool] = True
    has_legal_moves: ClassVar[bool] = True
    depth: ClassVar[int] = 3

    def __init__(self, *numbers: int) -> None:
        """Set the puzzle.

        Raises:
            TaskError: there are not four numbers from 1 to 13.
        """
        if len(numbers) != 4 or not all(1 <= number <= 13 for number in numbers):
            raise TaskError(f"game24 takes four numbers from 1 to 13, not {as_words(numbers)!r}", "'4 4 6 8'")
        self.numbers = tuple(sorted(numbers))

    @classmethod
    def from_question(cls, question: str) -> Self:
        """Read four numbers, with blanks or commas between them."""
        parts = [part for part in re.split(r"[\s,]+", question.strip()) if part]
        if not all(re.fullmatch(r"[0-9]{1,3}", part, re.ASCII) for part in parts):
            raise TaskError(f"game24 takes four numbers from 1 to 13, not {question[:40]!r}", "'4 4 6 8'")
        return cls(*map(int, parts))

    @classmethod
    def generate(cls, seed: int, split: str | None = None) -> Self:
        """Draw a solvable puzzle, of one third by difficulty where ``split`` names it."""
        refuse_split(cls, split)
        puzzles = solver24.solvable_puzzles() if split is None else solver24.split_puzzles(split)
        return cls(*random.Random(seed).choice(puzzles))  # noqa: S311

    @property
    def question(self) -> str:
        """The four numbers."""
        return as_words(self.numbers)

    def prompt(self) -> str:
        """Return the rules, an example and the numbers."""
        return _RULES.format(numbers=self.question)

    def start(self) -> State:
        """Return the four numbers as terms."""
        return make_terms(self.numbers)

    def lead(self, state: State) -> str:
        """State what is truly left, then ask for a step."""
        before = "" if len(state) == 4 else "\n"
        return f"{before}left: {_left(state)}\nstep:"

    def legal_moves(self, state: State) -> list[str]:
        """List every different move."""
        return [move_text(move) for move in list_moves([term.value for term in state])]

    def plays(self, state: State) -> list[str]:
        """List the moves of every pair: equal numbers count as often as they are there."""
        return [move_text(move) for move in all_moves([term.value for term in state])]

    def chance(self, state: State) -> float:
        """Return the chance of random legal play, exactly."""
        return float(solver24.chance(tuple(term.value for term in state)))

    def step(self, state: State, text: str) -> State | Rejected:
        """Apply ``a op b = c``."""
        return read_move(state, text)

    def is_finished(self, state: State) -> bool:
        """Whether one number is left."""
        return len(state) == 1

    def answer(self, state: State) -> str | None:
        """Return the whole equation of a finished state."""
        return f"{_bare(state[0].text)} = {show(state[0].value)}" if len(state) == 1 else None

    def key(self, state: State) -> str:
        """Return the numbers left."""
        return _left(state)

    def answer_key(self, answer: str) -> str:
        """Return the left side without blanks."""
        return "".join((last_equation(answer) or answer).split())

    def check(self, answer: str) -> Check:
        """Check the last equation: numbers, value, and nothing but integers and ``+ - * / ( )``."""
        return check_equation(answer, self.numbers, solver24.TARGET)

    def score(self, state: State) -> float:
        """Estimate by closeness of the sum: 1 / (1 + |Σ − 24|), a null baseline."""
        return float(1 / (1 + abs(sum((term.value for term in state), Fraction(0)) - solver24.TARGET)))

    def oracle(self, state: State) -> bool:
        """Whether 24 can still be reached, exactly."""
        return solver24.can_reach(tuple(term.value for term in state))

    def judging(self, state: State) -> Judging:
        """Ask whether the numbers left can reach 24."""
        return yes_or_no("Can these make 24?", f"left: {_left(state)}")


def _left(state: State) -> str:
    """Write the numbers left, smallest first."""
    return as_words([show(term.value) for term in sorted(state, key=lambda term: term.value)])


def _bare(text: str) -> str:
    """Take the outer parentheses off a joined term."""
    return text[1:-1] if text.startswith("(") else text

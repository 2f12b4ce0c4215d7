"""Countdown: with some of six numbers and + − × ÷ in positive integers, make a target; graded by closeness."""

from __future__ import annotations

import random
import re
from collections import Counter
from fractions import Fraction
from functools import cache
from typing import ClassVar, Self

from pie_mlx.search.errors import TaskError
from pie_mlx.search.tasks.base import Check, Judging, Rejected, Task, as_words, refuse_split, yes_or_no
from pie_mlx.search.tasks.expression import ExpressionError, last_equation, parse_expression
from pie_mlx.search.tasks.moves import Term, all_moves, list_moves, make_terms, move_text, read_move, show
from pie_mlx.search.trace_events import Verdict

State = tuple[Term, ...]

_LARGE = (25, 50, 75, 100)
_SMALL = tuple(range(1, 11)) * 2
_SPLITS = {"large-0": 0, "large-1": 1, "large-2": 2, "large-3": 3, "large-4": 4}
_GRADES = ((0, 1.0), (5, 0.7), (10, 0.5))
"""Distance to the target, and what it is worth: 10, 7 and 5 points of 10."""
_ORACLE_MAX_NUMBERS = 5

_RULES = """\
Make {target} from the numbers below with + - * /. Each number is used at most once, not all are needed, and every \
result is a positive whole number. Each step takes two of the numbers that are left and puts the result back.

Example: make 58 from 2 4 6 8 10 50
left: 2 4 6 8 10 50
step: 50 + 8 = 58

Now do the same. Make {target} from: {numbers}"""


class Countdown(Task[State]):
    """Six numbers make a three-digit target, or come close."""

    name: ClassVar[str] = "countdown"
    summary: ClassVar[str] = "six numbers make a three-digit target; graded by closeness"
    splits: ClassVar[tuple[str, ...]] = tuple(_SPLITS)
    has_check: ClassVar[bool] = True
    has_legal_moves: ClassVar[bool] = True

    def __init__(self, target: int, *numbers: int) -> None:
        """Set the puzzle.

        Raises:
            TaskError: the target is not 1 to 999, or there are not 2 to 6 numbers from 1 to 100.
        """
        if not 1 <= target <= 999 or not 2 <= len(numbers) <= 6 or not all(1 <= n <= 100 for n in numbers):
            raise TaskError("countdown takes 2 to 6 numbers from 1 to 100 and a target up to 999", _EXAMPLE)
        self.target = target
        self.numbers = tuple(sorted(numbers))

    @classmethod
    def from_question(cls, question: str) -> Self:
        """Read ``numbers = target`` or ``numbers -> target``."""
        match = re.fullmatch(r"\s*([0-9]{1,3}(?:[\s,]+[0-9]{1,3})*)\s*(?:=|->)\s*([0-9]{1,3})\s*", question, re.ASCII)
        if match is None:
            raise TaskError(f"countdown takes 'numbers = target', not {question[:40]!r}", _EXAMPLE)
        return cls(int(match[2]), *map(int, re.split(r"[\s,]+", match[1])))

    @classmethod
    def generate(cls, seed: int, split: str | None = None) -> Self:
        """Draw numbers and a target that some legal play makes; ``split`` says how many numbers are large."""
        refuse_split(cls, split)
        draw = random.Random(seed)  # noqa: S311
        while True:
            large = draw.randrange(5) if split is None else _SPLITS[split]
            numbers = draw.sample(_LARGE, large) + draw.sample(_SMALL, 6 - large)
            target = _play(draw, numbers)
            if target is not None:
                return cls(target, *numbers)

    @property
    def question(self) -> str:
        """The numbers and the target."""
        return f"{as_words(self.numbers)} = {self.target}"

    @property
    def depth(self) -> int:
        """One step fewer than there are numbers."""
        return len(self.numbers) - 1

    def prompt(self) -> str:
        """Return the rules, an example and the puzzle."""
        return _RULES.format(target=self.target, numbers=as_words(self.numbers))

    def start(self) -> State:
        """Return the numbers as terms."""
        return make_terms(self.numbers)

    def lead(self, state: State) -> str:
        """State what is truly left, then ask for a step."""
        before = "" if len(state) == len(self.numbers) else "\n"
        return f"{before}left: {self.key(state)}\nstep:"

    def legal_moves(self, state: State) -> list[str]:
        """List every different move whose result is a positive integer."""
        return [move_text(move) for move in list_moves([t.value for t in state]) if _is_natural(move[3])]

    def plays(self, state: State) -> list[str]:
        """List the moves of every pair whose result is a positive integer."""
        return [move_text(move) for move in all_moves([t.value for t in state]) if _is_natural(move[3])]

    def step(self, state: State, text: str) -> State | Rejected:
        """Apply ``a op b = c``."""
        moved = read_move(state, text)
        if not isinstance(moved, Rejected) and not all(_is_natural(term.value) for term in moved):
            return Rejected(Verdict.INVALID, "not-a-positive-integer")
        return moved

    def is_finished(self, state: State) -> bool:
        """Whether the target is there, or one number is left."""
        return len(state) == 1 or any(term.value == self.target for term in state)

    def answer(self, state: State) -> str | None:
        """Return the equation of the number closest to the target."""
        best = min(state, key=lambda term: (abs(term.value - self.target), term.text))
        text = best.text[1:-1] if best.text.startswith("(") else best.text
        return f"{text} = {show(best.value)}"

    def key(self, state: State) -> str:
        """Return the numbers left."""
        return as_words([show(term.value) for term in sorted(state, key=lambda term: term.value)])

    def answer_key(self, answer: str) -> str:
        """Return the left side without blanks."""
        return "".join((last_equation(answer) or answer).split())

    def check(self, answer: str) -> Check:
        """Check the last equation and grade it by its distance to the target.

        Reason codes: ok, off-by-<n>, bad-token, unparsable, div-zero, wrong-numbers.
        """
        left = last_equation(answer)
        try:
            found = parse_expression(left or "")
        except ExpressionError as error:
            return Check(solved=False, value=0.0, reason=error.code)
        if Counter(found.numbers) - Counter(self.numbers):
            return Check(solved=False, value=0.0, reason="wrong-numbers")
        off = abs(found.value - self.target)
        value = next((grade for within, grade in _GRADES if off <= within), 0.0)
        return Check(solved=off == 0, value=value, reason="ok" if off == 0 else f"off-by-{off}")

    def score(self, state: State) -> float:
        """Estimate by the number closest to the target: 1 / (1 + distance)."""
        return float(1 / (1 + min(abs(term.value - self.target) for term in state)))

    def oracle(self, state: State) -> bool | None:
        """Whether the target can be made exactly; not known for more than five numbers, where it takes too long."""
        if len(state) > _ORACLE_MAX_NUMBERS:
            return None
        return _reaches(tuple(sorted(int(term.value) for term in state)), self.target)

    def judging(self, state: State) -> Judging:
        """Ask whether the numbers left can make the target."""
        return yes_or_no(f"Can these make {self.target}?", f"left: {self.key(state)}")


_EXAMPLE = "'2 3 7 8 50 75 = 431'"


def _is_natural(value: Fraction) -> bool:
    """Whether the value is a positive integer."""
    return value > 0 and value.denominator == 1


def _play(draw: random.Random, numbers: list[int]) -> int | None:
    """Play legal moves at random; return the last three-digit result that is not given already, None without one."""
    left, found = sorted(numbers), None
    while len(left) > 1:
        high, low = sorted(draw.sample(left, 2), reverse=True)
        results = [high + low, high * low, *([high - low] if high > low else [])]
        results += [high // low] if high % low == 0 else []
        result = draw.choice(results)
        left.remove(high)
        left.remove(low)
        left.append(result)
        if 100 <= result <= 999 and result not in numbers:
            found = result
    return found


@cache
def _reaches(numbers: tuple[int, ...], target: int) -> bool:
    """Whether the target is there, or some play makes it."""
    if target in numbers:
        return True
    for i, low in enumerate(numbers):
        for j in range(i + 1, len(numbers)):
            high = numbers[j]
            rest = (*numbers[:i], *numbers[i + 1 : j], *numbers[j + 1 :])
            results = {high + low, high * low, high - low} - {0}
            results |= {high // low} if high % low == 0 else set()
            if any(_reaches(tuple(sorted((*rest, result))), target) for result in results):
                return True
    return False

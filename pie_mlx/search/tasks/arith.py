"""Word problems from templates: a chain of integer operations, told as a story, with one integer answer."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import ClassVar, Self

from pie_mlx.search.errors import TaskError
from pie_mlx.search.tasks.base import Check, Judging, Rejected, Task, refuse_split, yes_or_no
from pie_mlx.search.trace_events import Verdict

_SPLITS = {"2": 2, "4": 4, "6": 6}
"""Operations of the chain."""
_EQUATION = re.compile(
    r"\s*(?:step:\s*)?(-?[0-9]{1,9})\s*([-+*/×÷−x])\s*(-?[0-9]{1,9})\s*=\s*(-?[0-9]{1,12})(?![0-9.])", re.ASCII
)
_SIGNS = {"×": "*", "x": "*", "÷": "/", "−": "-"}
_ANSWER = re.compile(r"\s*(?:step:\s*)?answer\s*[:=]\s*(-?[0-9]{1,12})\s*\.?\s*$", re.IGNORECASE | re.ASCII)
_STORY = re.compile(r"(A|The|Then|At|How)\b.*", re.ASCII)

_PLACES = ("A shop", "A farm", "A library", "A bakery", "A school")
_THINGS = ("apples", "books", "boxes", "eggs", "tickets")
_SENTENCES = {
    "+": ("Then {n} more arrive.", "Then {n} are added."),
    "-": ("Then {n} are taken away.", "Then {n} are sold."),
    "*": ("Then the number grows to {n} times as many.",),
    "/": ("Then they are shared evenly between {n} places, and one place's part is kept.",),
}

_RULES = """\
Solve the problem in steps. Each step is one equation, such as 12 + 30 = 42. When you know the result, write \
answer: and the number.

Example: A shop has 12 apples. Then 30 more arrive. Then 2 are sold. How many apples are there?
step: 12 + 30 = 42
step: 42 - 2 = 40
step: answer: 40

Now do the same. {story}"""


@dataclass(frozen=True, slots=True)
class State:
    """Quantities that may still be used, the last result, and the answer once it is given."""

    left: tuple[int, ...]
    last: int | None = None
    answer: int | None = None


@dataclass(frozen=True, slots=True)
class _Chain:
    """A chain of operations read from a story."""

    first: int
    operations: tuple[tuple[str, int], ...]

    @property
    def result(self) -> int:
        value = self.first
        for sign, number in self.operations:
            value = _compute(value, sign, number) or 0
        return value


class Arith(Task[State]):
    """A story of a few operations."""

    name: ClassVar[str] = "arith"
    summary: ClassVar[str] = "multi-step word problems from templates; integer answer"
    splits: ClassVar[tuple[str, ...]] = tuple(_SPLITS)
    has_check: ClassVar[bool] = True
    check_knows_answer: ClassVar[bool] = True
    has_legal_moves: ClassVar[bool] = True

    def __init__(self, story: str) -> None:
        """Set the problem from its story.

        Raises:
            TaskError: the story is not of the templates, so that its answer is not known.
        """
        self.story = " ".join(story.split())
        self._chain = _read_story(self.story)

    @classmethod
    def from_question(cls, question: str) -> Self:
        """Read a story as :meth:`generate` tells it; for any other question there is the task ``free``."""
        return cls(question)

    @classmethod
    def generate(cls, seed: int, split: str | None = None) -> Self:
        """Draw a story; ``split`` is its number of operations (4 without one)."""
        refuse_split(cls, split)
        draw = random.Random(seed)  # noqa: S311
        value = draw.randrange(5, 60)
        thing = draw.choice(_THINGS)
        story = [f"{draw.choice(_PLACES)} has {value} {thing}."]
        for _ in range(_SPLITS[split or "4"]):
            sign, number = draw.choice(_options(draw, value))
            story.append(draw.choice(_SENTENCES[sign]).format(n=number))
            value = _compute(value, sign, number) or 0
        return cls(" ".join([*story, f"How many {thing} are there?"]))

    @property
    def question(self) -> str:
        """The story."""
        return self.story

    @property
    def depth(self) -> int:
        """One step an operation, and one for the answer."""
        return len(self._chain.operations) + 1

    def prompt(self) -> str:
        """Return the rules, an example and the story."""
        return _RULES.format(story=self.story)

    def start(self) -> State:
        """Return the story's numbers, none used."""
        return State((self._chain.first, *(number for _, number in self._chain.operations)))

    def lead(self, state: State) -> str:
        """Ask for a step."""
        return "step:" if state == self.start() else "\nstep:"

    def legal_moves(self, state: State) -> list[str]:
        """List the exact operations on the last result and a number that is left, and the answer."""
        first = self.start().left[0] if state.last is None else state.last
        left = list(state.left)
        if state.last is None:
            left.remove(first)
        found = [
            f"{first} {sign} {number} = {result}"
            for number in dict.fromkeys(left)
            for sign in "+-*/"
            if (result := _compute(first, sign, number)) is not None
        ]
        return found if state.last is None else [*found, f"answer: {state.last}"]

    def step(self, state: State, text: str) -> State | Rejected:
        """Apply an equation or the answer; reason codes: no-move, wrong-numbers, wrong-result, inexact."""
        answer = _ANSWER.match(text)
        if answer is not None:
            return State(state.left, state.last, int(answer[1]))
        match = _EQUATION.match(text)
        if match is None:
            return Rejected(Verdict.UNPARSED, "no-move")
        left = [*state.left, *([] if state.last is None else [state.last])]
        for number in (int(match[1]), int(match[3])):
            if number not in left:
                return Rejected(Verdict.INVALID, "wrong-numbers")
            left.remove(number)
        result = _compute(int(match[1]), _SIGNS.get(match[2], match[2]), int(match[3]))
        if result is None:
            return Rejected(Verdict.INVALID, "inexact")
        if result != int(match[4]):
            return Rejected(Verdict.INVALID, "wrong-result")
        return State(tuple(left), result)

    def is_finished(self, state: State) -> bool:
        """Whether the answer is given."""
        return state.answer is not None

    def answer(self, state: State) -> str | None:
        """Return the number."""
        return None if state.answer is None else str(state.answer)

    def key(self, state: State) -> str:
        """Return the numbers left, the last result and the answer."""
        return f"{' '.join(map(str, sorted(state.left)))}|{state.last}|{state.answer}"

    def check(self, answer: str) -> Check:
        """Compare the last line's integer; reason codes: ok, unparsable, wrong-answer."""
        line = next((line for line in reversed(answer.splitlines()) if line.strip()), "").strip()
        match = _ANSWER.match(line) or re.fullmatch(r"(-?[0-9]{1,12})\.?", line, re.ASCII)
        if match is None:
            return Check(solved=False, value=0.0, reason="unparsable")
        solved = int(match[1]) == self._chain.result
        return Check(solved=solved, value=float(solved), reason="ok" if solved else "wrong-answer")

    def oracle(self, state: State) -> bool:
        """Whether the results so far are those of the story's chain."""
        if state.answer is not None:
            return state.answer == self._chain.result
        used = len(self._chain.operations) + 1 - len(state.left)
        value = self._chain.first
        for sign, number in self._chain.operations[: max(used - 1, 0)]:
            value = _compute(value, sign, number) or 0
        return state.last is None or value == state.last

    def judging(self, state: State) -> Judging:
        """Ask whether the last step follows the story."""
        del state
        return yes_or_no("Do these steps follow the story?")


def _compute(left: int, sign: str, right: int) -> int | None:
    """Return the exact result, None where there is no integer one."""
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    return left // right if right and left % right == 0 else None


def _options(draw: random.Random, value: int) -> list[tuple[str, int]]:
    """Return one operation of each kind that keeps the number between 1 and some thousands."""
    options = [("+", draw.randrange(3, 50))]
    if value > 4:
        options.append(("-", draw.randrange(2, min(value - 1, 50))))
    if value < 400:
        options.append(("*", draw.randrange(2, 6)))
    divisors = [number for number in range(2, 10) if value % number == 0 and value > number]
    if divisors:
        options.append(("/", draw.choice(divisors)))
    return options


_FIRST = re.compile(r"(?:" + "|".join(_PLACES) + r") has ([0-9]{1,6}) (" + "|".join(_THINGS) + r")\.", re.ASCII)
_NEXT = tuple(
    (sign, re.compile(r" " + re.escape(sentence).replace(r"\{n\}", "([0-9]{1,6})"), re.ASCII))
    for sign, sentences in _SENTENCES.items()
    for sentence in sentences
)


def _read_story(story: str) -> _Chain:
    """Read a story's chain of operations."""
    first = _FIRST.match(story)
    operations: list[tuple[str, int]] = []
    at = first.end() if first else 0
    while first and (found := next(((s, m) for s, p in _NEXT if (m := p.match(story, at))), None)):
        operations.append((found[0], int(found[1][1])))
        at = found[1].end()
    if first is None or not operations or story[at:] != f" How many {first[2]} are there?":
        raise TaskError("arith reads only the stories that it tells itself", "for any other question: --task free")
    return _Chain(int(first[1]), tuple(operations))

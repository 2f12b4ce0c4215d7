"""Sort a list of digits, some at a time; errors are counted as in Graph of Thoughts (Besta et al. 2023)."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import pairwise
from typing import ClassVar, Self

from pie_mlx.search.errors import TaskError
from pie_mlx.search.tasks.base import Check, Judging, Rejected, Task, as_words, refuse_split, yes_or_no
from pie_mlx.search.trace_events import Verdict

State = tuple[int, ...]
"""The digits written so far."""

CHUNK = 4
"""Digits that a step writes."""
_SPLITS = {"8": 8, "16": 16, "32": 32}
"""Length of the list."""

_RULES = """\
Sort the digits from small to large. Each step writes the next {chunk} digits of the sorted list (fewer at the end).

Example: 3 1 2 0 9 1 5 3
left: 0 1 1 2 3 3 5 9
step: 0 1 1 2
left: 3 3 5 9
step: 3 3 5 9

Now do the same. Digits: {digits}"""


class Sort(Task[State]):
    """A list of digits, sorted in chunks; graded by its errors."""

    name: ClassVar[str] = "sort"
    summary: ClassVar[str] = "sort a list of digits, four a step; errors counted"
    splits: ClassVar[tuple[str, ...]] = tuple(_SPLITS)
    has_check: ClassVar[bool] = True
    has_legal_moves: ClassVar[bool] = True

    def __init__(self, *digits: int) -> None:
        """Set the list.

        Raises:
            TaskError: there are not 2 to 64 digits.
        """
        if not 2 <= len(digits) <= 64 or not all(0 <= digit <= 9 for digit in digits):
            raise TaskError("sort takes 2 to 64 digits from 0 to 9", "'3 1 2 0 9 1 5 3'")
        self.digits = digits

    @classmethod
    def from_question(cls, question: str) -> Self:
        """Read digits, with blanks or commas between them."""
        parts = [part for part in re.split(r"[\s,]+", question.strip("[] \t\n")) if part]
        if not all(re.fullmatch(r"[0-9]", part, re.ASCII) for part in parts):
            raise TaskError(f"sort takes single digits, not {question[:40]!r}", "'3 1 2 0 9 1 5 3'")
        return cls(*map(int, parts))

    @classmethod
    def generate(cls, seed: int, split: str | None = None) -> Self:
        """Draw a list; ``split`` is its length (16 without one)."""
        refuse_split(cls, split)
        draw = random.Random(seed)  # noqa: S311
        return cls(*(draw.randrange(10) for _ in range(_SPLITS[split or "16"])))

    @property
    def question(self) -> str:
        """The digits."""
        return as_words(self.digits)

    @property
    def depth(self) -> int:
        """Chunks of the list."""
        return -(-len(self.digits) // CHUNK)

    def prompt(self) -> str:
        """Return the rules, an example and the digits."""
        return _RULES.format(chunk=CHUNK, digits=self.question)

    def start(self) -> State:
        """Return nothing written."""
        return ()

    def lead(self, state: State) -> str:
        """Show what is truly left, in the order given, then ask for a step."""
        return f"{chr(10) if state else ''}left: {as_words(self._left(state))}\nstep:"

    def _left(self, state: State) -> list[int]:
        """Return the digits not written yet, in the order of the list."""
        written = Counter(state)
        left = []
        for digit in self.digits:
            if written[digit]:
                written[digit] -= 1
            else:
                left.append(digit)
        return left

    def legal_moves(self, state: State) -> list[str]:
        """List, for each different digit left, the chunk that goes on upwards from it."""
        left = sorted(self._left(state))
        size = min(CHUNK, len(left))
        starts = sorted({left.index(digit) for digit in left})
        return list(dict.fromkeys(as_words(left[min(at, len(left) - size) :][:size]) for at in starts))

    def step(self, state: State, text: str) -> State | Rejected:
        """Append a chunk; reason codes: no-move, wrong-count, wrong-numbers."""
        line = next((line for line in text.splitlines() if line.strip()), "")
        line = re.sub(r"^\s*step:", "", line, flags=re.IGNORECASE).strip(" \t[].")
        if not re.fullmatch(r"[0-9](?:[\s,]+[0-9])*", line, re.ASCII):
            return Rejected(Verdict.UNPARSED, "no-move")
        chunk = tuple(map(int, re.split(r"[\s,]+", line)))
        left = self._left(state)
        if len(chunk) != min(CHUNK, len(left)):
            return Rejected(Verdict.INVALID, "wrong-count")
        if Counter(chunk) - Counter(left):
            return Rejected(Verdict.INVALID, "wrong-numbers")
        return state + chunk

    def is_finished(self, state: State) -> bool:
        """Whether all digits are written."""
        return len(state) == len(self.digits)

    def answer(self, state: State) -> str | None:
        """Return the digits written."""
        return as_words(state) if self.is_finished(state) else None

    def key(self, state: State) -> str:
        """Return the digits written."""
        return as_words(state)

    def num_errors(self, digits: State) -> int:
        """Count falling neighbours, and digits that are too many or too few."""
        falls = sum(left > right for left, right in pairwise(digits))
        have, want = Counter(digits), Counter(self.digits)
        return falls + sum(abs(have[digit] - want[digit]) for digit in range(10))

    def check(self, answer: str) -> Check:
        """Count the errors of the last line; reason codes: ok, unparsable, errors-<n>."""
        line = next((line for line in reversed(answer.splitlines()) if line.strip()), "").strip(" \t[].")
        if not re.fullmatch(r"[0-9](?:[\s,]+[0-9])*", line, re.ASCII):
            return Check(solved=False, value=0.0, reason="unparsable")
        errors = self.num_errors(tuple(map(int, re.split(r"[\s,]+", line))))
        value = max(0.0, 1.0 - errors / len(self.digits))
        return Check(solved=errors == 0, value=value, reason="ok" if errors == 0 else f"errors-{errors}")

    def score(self, state: State) -> float:
        """Estimate by the share of written digits that stand where they belong."""
        right = sum(have == want for have, want in zip(state, sorted(self.digits), strict=False))
        return right / len(state) if state else 1.0

    def oracle(self, state: State) -> bool:
        """Whether all that is written is right."""
        return list(state) == sorted(self.digits)[: len(state)]

    def judging(self, state: State) -> Judging:
        """Ask whether what is written is right."""
        return yes_or_no("Is this the start of the sorted list?", f"written: {as_words(state)}")

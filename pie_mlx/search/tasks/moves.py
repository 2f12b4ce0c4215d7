"""Moves on a handful of numbers: ``a op b = c`` takes a and b away and puts c there.

The result is always computed here. A number is written as in :func:`show`: ``7``, ``-2`` or ``8/3``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from pie_mlx.search.tasks.base import Rejected
from pie_mlx.search.trace_events import Verdict

_MARKER = re.compile(r"^(?:(?:step\s*)?\d{1,2}[.):]\s+|[-*•]\s+|step:\s*)", re.IGNORECASE | re.ASCII)
_OPERATORS = {"+": "+", "-": "-", "*": "*", "/": "/", "×": "*", "÷": "/", "−": "-", "x": "*"}
_NUMBER = r"\(?(-?[0-9]{1,9}(?:/[0-9]{1,9})?)\)?"
_RIGHT = re.compile(r"^\s*" + _NUMBER, re.ASCII)
_OPERAND = re.compile(r"^\s*" + _NUMBER + r"\s*$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Term:
    """A number that is left, and the expression over the puzzle's numbers that made it."""

    value: Fraction
    text: str


def show(value: Fraction) -> str:
    """Write a number as the prompts and moves have it."""
    return str(value)


def combine(left: Fraction, sign: str, right: Fraction) -> Fraction | None:
    """Return ``left sign right``, None for a division by zero."""
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    return left / right if right else None


def make_terms(numbers: Sequence[int]) -> tuple[Term, ...]:
    """Return the puzzle's numbers as terms, smallest first."""
    return tuple(Term(Fraction(number), str(number)) for number in sorted(numbers))


def join(terms: Sequence[Term], left: Term, sign: str, right: Term) -> tuple[Term, ...] | None:
    """Replace two of ``terms`` by their combination; None for a division by zero."""
    value = combine(left.value, sign, right.value)
    if value is None:
        return None
    rest = list(terms)
    rest.remove(left)
    rest.remove(right)
    rest.append(Term(value, f"({left.text} {sign} {right.text})"))
    return tuple(sorted(rest, key=lambda term: (term.value, term.text)))


Move = tuple[Fraction, str, Fraction, Fraction]
"""A move ``(a, op, b, result)``."""


def all_moves(values: Sequence[Fraction]) -> list[Move]:
    """Return the moves of every pair of numbers: sum, product, both differences and both quotients.

    Equal numbers count as often as they are there, so drawing evenly from the list is random legal play.
    """
    found = []
    ordered = sorted(values)
    for i, low in enumerate(ordered):
        for high in ordered[i + 1 :]:
            found += [
                (low, "+", high, low + high),
                (high, "-", low, high - low),
                (low, "-", high, low - high),
                (low, "*", high, low * high),
            ]
            if low:
                found.append((high, "/", low, high / low))
            if high:
                found.append((low, "/", high, low / high))
    return found


def list_moves(values: Sequence[Fraction]) -> list[Move]:
    """Return the different moves of :func:`all_moves`, each once, in their order."""
    return list(dict.fromkeys(all_moves(values)))


def move_text(move: Move) -> str:
    """Write a move as a thought."""
    left, sign, right, result = move
    second = f"({show(right)})" if right < 0 else show(right)
    return f"{show(left)} {sign} {second} = {show(result)}"


def read_move(terms: Sequence[Term], text: str) -> tuple[Term, ...] | Rejected:
    """Apply the move that the first line of ``text`` writes; what follows the result is ignored.

    Reason codes: no-move (unparsed), wrong-numbers, div-zero, wrong-result, ambiguous.
    """
    line = _MARKER.sub("", next((line.strip() for line in text.splitlines() if line.strip()), ""))
    left_side, equals, right_side = line.partition("=")
    splits = _splits(left_side[:80])
    if not splits:
        return Rejected(Verdict.UNPARSED, "no-move")
    outcomes = [(split, pair) for split in splits if (pair := _find(terms, split[0], split[2])) is not None]
    if not outcomes:
        return Rejected(Verdict.INVALID, "wrong-numbers")
    if len(outcomes) > 1:
        return Rejected(Verdict.INVALID, "ambiguous")
    (_, sign, _), (left, right) = outcomes[0]
    joined = join(terms, left, sign, right)
    if joined is None:
        return Rejected(Verdict.INVALID, "div-zero")
    if equals:
        claimed = _RIGHT.match(right_side)
        if claimed is None or _fraction(claimed[1]) != combine(left.value, sign, right.value):
            return Rejected(Verdict.INVALID, "wrong-result")
    return joined


def _splits(side: str) -> list[tuple[Fraction, str, Fraction]]:
    """Return every way to read ``a op b``; ``8/3/2`` has two."""
    found = []
    for at, char in enumerate(side):
        sign = _OPERATORS.get(char)
        left, right = _OPERAND.match(side[:at]), _OPERAND.match(side[at + 1 :])
        if sign is None or left is None or right is None:
            continue
        first, second = _fraction(left[1]), _fraction(right[1])
        if first is not None and second is not None:
            found.append((first, sign, second))
    return found


def _fraction(text: str) -> Fraction | None:
    """Read a number; None for a zero denominator."""
    top, _, bottom = text.partition("/")
    return Fraction(int(top), int(bottom or 1)) if int(bottom or 1) else None


def _find(terms: Sequence[Term], first: Fraction, second: Fraction) -> tuple[Term, Term] | None:
    """Return two different terms with these values, None where they are not both there."""
    left = next((term for term in terms if term.value == first), None)
    if left is None:
        return None
    rest = list(terms)
    rest.remove(left)
    right = next((term for term in rest if term.value == second), None)
    return None if right is None else (left, right)

"""Arithmetic on exact rationals, read from text by recursive descent: nothing is evaluated by Python.

Tokens are decimal ASCII integers and ``+ - * / ( )``. There is no sign, power, factorial or implicit product, so
every number of the text is a number of the puzzle.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from pie_mlx.search.tasks.base import Check

MAX_CHARS = 100
_TOKEN = re.compile(r"[ \t]*(?:(0|[1-9][0-9]*)|([-+*/()]))", re.ASCII)
_LABEL = re.compile(r"^[A-Za-z ]{1,20}:\s*", re.ASCII)


class ExpressionError(ValueError):
    """A text is no expression; ``code`` is bad-token, unparsable or div-zero."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression's exact value, and the integers it uses in order."""

    value: Fraction
    numbers: tuple[int, ...]


def parse_expression(text: str) -> Expression:
    """Parse and evaluate an expression.

    Raises:
        ExpressionError: it has another token, is malformed or too long, or divides by zero.
    """
    if len(text) > MAX_CHARS:
        raise ExpressionError("unparsable")
    return _Parser(_tokens(text)).whole()


def _tokens(text: str) -> list[int | str]:
    """Cut the text into integers and operators."""
    tokens: list[int | str] = []
    at, text = 0, text.rstrip(" \t")
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError("bad-token")
        if match[1] and tokens and isinstance(tokens[-1], int):
            raise ExpressionError("unparsable")
        tokens.append(int(match[1]) if match[1] else match[2])
        at = match.end()
    return tokens


class _Parser:
    """Recursive descent: ``sum := product (± product)*``, ``product := atom (*/ atom)*``, ``atom := int | (sum)``."""

    def __init__(self, tokens: list[int | str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._numbers: list[int] = []

    def whole(self) -> Expression:
        value = self._sum()
        if self._at != len(self._tokens):
            raise ExpressionError("unparsable")
        return Expression(value, tuple(self._numbers))

    def _peek(self) -> int | str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _sum(self) -> Fraction:
        value = self._product()
        while (sign := self._peek()) in ("+", "-"):
            self._at += 1
            right = self._product()
            value = value + right if sign == "+" else value - right
        return value

    def _product(self) -> Fraction:
        value = self._atom()
        while (sign := self._peek()) in ("*", "/"):
            self._at += 1
            right = self._atom()
            if sign == "/" and right == 0:
                raise ExpressionError("div-zero")
            value = value * right if sign == "*" else value / right
        return value

    def _atom(self) -> Fraction:
        here = self._peek()
        self._at += 1
        if isinstance(here, int):
            self._numbers.append(here)
            return Fraction(here)
        if here != "(":
            raise ExpressionError("unparsable")
        value = self._sum()
        if self._peek() != ")":
            raise ExpressionError("unparsable")
        self._at += 1
        return value


def last_equation(text: str) -> str | None:
    """Return the left side of the last line with ``=``, without a label such as ``Answer:``; None without one."""
    line = next((line for line in reversed(text.splitlines()) if "=" in line), None)
    return None if line is None else _LABEL.sub("", line.partition("=")[0].strip(" \t"))


def check_equation(text: str, numbers: Sequence[int], target: int) -> Check:
    """Check that the last equation of ``text`` uses each of ``numbers`` once and makes ``target``.

    Reason codes: ok, bad-token, unparsable, div-zero, wrong-numbers, not-<target>.
    """
    left = last_equation(text)
    if left is None:
        return Check(solved=False, value=0.0, reason="unparsable")
    try:
        found = parse_expression(left)
    except ExpressionError as error:
        return Check(solved=False, value=0.0, reason=error.code)
    if Counter(found.numbers) != Counter(numbers):
        return Check(solved=False, value=0.0, reason="wrong-numbers")
    if found.value != target:
        return Check(solved=False, value=0.0, reason=f"not-{target}")
    return Check(solved=True, value=1.0)

"""The exact truth about the game of 24: which states can reach it, and how often random legal play does."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement

from pie_mlx.search.tasks.moves import Move, all_moves

TARGET = 24
PUZZLES_SHA256 = "98d6d8cfff7134b4036817c429f775e8bcfb5f2e05e533e6e70d09d92ba03a28"
"""Of the solvable puzzles: ascending tuples in order, numbers joined by blanks, each line ended by LF."""
SPLITS = ("easy", "medium", "hard")

State = tuple[Fraction, ...]
"""The numbers left, smallest first."""


def after(state: State, move: Move) -> State:
    """Return the state after a move."""
    rest = list(state)
    rest.remove(move[0])
    rest.remove(move[2])
    rest.append(move[3])
    return tuple(sorted(rest))


@cache
def chance(state: State) -> Fraction:
    """Return the chance that random legal play reaches 24: every move drawn evenly from :func:`all_moves`."""
    if len(state) == 1:
        return Fraction(int(state[0] == TARGET))
    moves = all_moves(state)
    if len(state) == 2:
        return Fraction(sum(move[3] == TARGET for move in moves), len(moves))
    return sum((chance(after(state, move)) for move in moves), Fraction(0)) / len(moves)


def can_reach(state: State) -> bool:
    """Whether any way of play reaches 24."""
    return chance(state) > 0


def as_state(numbers: Sequence[int]) -> State:
    """Return the state of a puzzle."""
    return tuple(Fraction(number) for number in sorted(numbers))


@cache
def solvable_puzzles() -> tuple[tuple[int, ...], ...]:
    """Return the 1,362 solvable multisets of four numbers from 1 to 13, ascending; takes some seconds, once."""
    every = combinations_with_replacement(range(1, 14), 4)
    return tuple(numbers for numbers in every if can_reach(as_state(numbers)))


def puzzles_sha256() -> str:
    """Return the digest of the generated list, to be compared with :data:`PUZZLES_SHA256`."""
    return hashlib.sha256("".join(f"{' '.join(map(str, p))}\n" for p in solvable_puzzles()).encode()).hexdigest()


@cache
def split_puzzles(split: str) -> tuple[tuple[int, ...], ...]:
    """Return a third of the solvable puzzles (split ``g24-gen-v1``): easy ones are those that random play solves most.

    ``split`` is one of :data:`SPLITS`; puzzles come in the order of falling chance, then ascending.
    """
    ordered = sorted(solvable_puzzles(), key=lambda numbers: (-chance(as_state(numbers)), numbers))
    third = len(ordered) // len(SPLITS)
    at = SPLITS.index(split) * third
    return tuple(ordered[at : at + third])


def random_pass_at(k: int, puzzles: Sequence[tuple[int, ...]] | None = None) -> float:
    """Return the null baseline pass@k: the share of puzzles that k random legal plays solve, in expectation."""
    chosen = solvable_puzzles() if puzzles is None else puzzles
    return sum(1.0 - (1.0 - float(chance(as_state(numbers)))) ** k for numbers in chosen) / len(chosen)

"""Sudoku on a 4×4 grid: each row, column and 2×2 box holds 1 to 4 once; one cell a step."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import ClassVar, Self

from pie_mlx.search.errors import TaskError
from pie_mlx.search.tasks.base import Check, Judging, Rejected, Task, refuse_split, yes_or_no
from pie_mlx.search.trace_events import Verdict

State = str
"""Sixteen characters by rows, ``.`` for an empty cell."""

_SPLITS = {"easy": 5, "medium": 8, "hard": 11}
"""Empty cells."""
_STEP = re.compile(r"\s*(?:step:\s*)?r([1-4])\s*c([1-4])\s*=\s*([1-4])(?![0-9])", re.IGNORECASE | re.ASCII)

_RULES = """\
Fill the 4x4 grid so that every row, every column and every 2x2 box holds 1, 2, 3 and 4 once. Fill one empty cell a \
step, written as rRcC = D (row, column, digit), starting with a cell that only one digit fits.

Example
grid: 12.. / 34.. / 21.. / 43..
step: r1c3 = 3

Now do the same.
grid: {grid}"""


class Sudoku4(Task[State]):
    """A 4×4 sudoku with one solution."""

    name: ClassVar[str] = "sudoku4"
    summary: ClassVar[str] = "4x4 sudoku, one cell a step; exact check and exact labels"
    splits: ClassVar[tuple[str, ...]] = tuple(_SPLITS)
    has_check: ClassVar[bool] = True
    has_legal_moves: ClassVar[bool] = True

    def __init__(self, grid: str) -> None:
        """Set the puzzle.

        Raises:
            TaskError: it is not sixteen of ``.1234`` with an empty cell, or a digit stands twice where it may once.
        """
        if not re.fullmatch(r"[.1-4]{16}", grid, re.ASCII) or "." not in grid or not _is_consistent(grid):
            raise TaskError("sudoku4 takes 16 cells of . and 1 to 4 without a clash", "'12../34../21../43..'")
        self.grid = grid

    @classmethod
    def from_question(cls, question: str) -> Self:
        """Read sixteen cells; blanks and slashes between them are skipped, 0 and _ are empty."""
        return cls(re.sub(r"[\s/|]", "", question).replace("0", ".").replace("_", "."))

    @classmethod
    def generate(cls, seed: int, split: str | None = None) -> Self:
        """Draw a puzzle with exactly one solution; ``split`` says how many cells are empty (8 without one)."""
        refuse_split(cls, split)
        draw = random.Random(seed)  # noqa: S311
        empty = _SPLITS[split or "medium"]
        while True:
            grid = _fill(draw)
            for cell in draw.sample(range(16), 16):
                if grid.count(".") == empty:
                    return cls(grid)
                without = _put(grid, cell, ".")
                grid = without if len(_solutions(without)) == 1 else grid
            if grid.count(".") == empty:
                return cls(grid)

    @property
    def question(self) -> str:
        """The rows, with slashes between them."""
        return _rows(self.grid)

    @property
    def depth(self) -> int:
        """One step an empty cell."""
        return self.grid.count(".")

    def prompt(self) -> str:
        """Return the rules, an example and the grid."""
        return _RULES.format(grid=_rows(self.grid))

    def start(self) -> State:
        """Return the grid."""
        return self.grid

    def lead(self, state: State) -> str:
        """Show the grid as it truly is, then ask for a step."""
        return f"{'' if state == self.grid else chr(10)}grid: {_rows(state)}\nstep:"

    def legal_moves(self, state: State) -> list[str]:
        """List the digits that fit the empty cell with fewest of them: every solution goes through one."""
        cell = _tightest(state)
        return [] if cell is None else [f"r{cell // 4 + 1}c{cell % 4 + 1} = {digit}" for digit in _fitting(state, cell)]

    def step(self, state: State, text: str) -> State | Rejected:
        """Apply ``rRcC = D``; reason codes: no-move, filled, clash."""
        match = _STEP.match(text)
        if match is None:
            return Rejected(Verdict.UNPARSED, "no-move")
        cell = (int(match[1]) - 1) * 4 + int(match[2]) - 1
        if state[cell] != ".":
            return Rejected(Verdict.INVALID, "filled")
        if match[3] not in _fitting(state, cell):
            return Rejected(Verdict.INVALID, "clash")
        return _put(state, cell, match[3])

    def is_finished(self, state: State) -> bool:
        """Whether no cell is empty."""
        return "." not in state

    def answer(self, state: State) -> str | None:
        """Return the full grid."""
        return _rows(state) if self.is_finished(state) else None

    def key(self, state: State) -> str:
        """Return the grid."""
        return state

    def answer_key(self, answer: str) -> str:
        """Return the digits."""
        return "".join(char for char in answer if char in "1234")

    def check(self, answer: str) -> Check:
        """Check a full grid; reason codes: ok, unparsable, changed-given, clash."""
        cells = re.sub(r"[\s/|]", "", answer)
        if not re.fullmatch(r"[1-4]{16}", cells, re.ASCII):
            return Check(solved=False, value=0.0, reason="unparsable")
        if any(given not in (".", cell) for given, cell in zip(self.grid, cells, strict=True)):
            return Check(solved=False, value=0.0, reason="changed-given")
        if not _is_consistent(cells):
            return Check(solved=False, value=0.0, reason="clash")
        return Check(solved=True, value=1.0)

    def score(self, state: State) -> float:
        """Estimate 0 where some empty cell fits no digit, else the share of filled cells."""
        stuck = any(not _fitting(state, cell) for cell in range(16) if state[cell] == ".")
        return 0.0 if stuck else 1.0 - state.count(".") / 16

    def oracle(self, state: State) -> bool:
        """Whether the grid can still be filled, exactly."""
        return bool(_solutions(state))

    def judging(self, state: State) -> Judging:
        """Ask whether the grid can still be filled."""
        return yes_or_no("Can this grid be completed?", f"grid: {_rows(state)}")


def _rows(grid: str) -> str:
    return " / ".join(grid[at : at + 4] for at in range(0, 16, 4))


def _put(grid: str, cell: int, char: str) -> str:
    return f"{grid[:cell]}{char}{grid[cell + 1 :]}"


def _box(cell: int) -> int:
    return cell // 8 * 2 + cell % 4 // 2


_PEERS = tuple(
    tuple(o for o in range(16) if o != c and (o // 4 == c // 4 or o % 4 == c % 4 or _box(o) == _box(c)))
    for c in range(16)
)


def _fitting(grid: str, cell: int) -> str:
    """Return the digits that no peer of the cell has."""
    return "".join(digit for digit in "1234" if all(grid[peer] != digit for peer in _PEERS[cell]))


def _is_consistent(grid: str) -> bool:
    return all(grid[cell] == "." or all(grid[peer] != grid[cell] for peer in _PEERS[cell]) for cell in range(16))


def _tightest(grid: str) -> int | None:
    """Return the empty cell that the fewest digits fit, the first of equals."""
    empty = [cell for cell in range(16) if grid[cell] == "."]
    return min(empty, key=lambda cell: (len(_fitting(grid, cell)), cell), default=None)


@cache
def _solutions(grid: str) -> tuple[str, ...]:
    """Return up to two solutions."""
    cell = _tightest(grid)
    if cell is None:
        return (grid,)
    found: tuple[str, ...] = ()
    for digit in _fitting(grid, cell):
        found += _solutions(_put(grid, cell, digit))
    return found[:2]


def _fill(draw: random.Random) -> str:
    """Draw a full grid."""
    grid = "." * 16
    while (cell := _tightest(grid)) is not None:
        options = [_put(grid, cell, digit) for digit in _fitting(grid, cell)]
        grid = draw.choice([option for option in options if _solutions(option)])
    return grid

"""What chance reaches: null baselines over a task's legal moves, without any model.

They stand beside every result on a task: a search that is not above them has shown nothing. Random play draws from
all ordered moves (:meth:`Task.plays`), so that equal numbers count as often as they are there; a beam merges equal
states, as the search does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pie_mlx.errors import Fact
from pie_mlx.sampling import derive_seed, uniform
from pie_mlx.search.tasks.base import Rejected, Task

TRIES = (1, 5, 25, 100)
"""Numbers of random rollouts whose success is told."""

BEAM = 5
_DRAWS = 5
"""Random beams a task, averaged: one alone is a coin."""


Value = Callable[[int, Task[Any], Any, int], float | None]
"""(index of the task, task, state, level) to value."""


@dataclass(frozen=True, slots=True)
class Baselines:
    """Shares of a set's tasks, 0 to 1."""

    random_pass: tuple[tuple[int, float], ...]
    """(k, share of the tasks solved by at least one of k random legal rollouts), in expectation where it is known."""
    beam: int
    """Nodes that the beams below keep a level."""
    beam_random: float | None
    """Beam over all legal moves, random values."""
    beam_estimate: float | None
    """The same with the task's own estimate; None where it has none."""
    beam_oracle: float | None
    """The same with the known truth; None where it is not known."""

    def to_json(self) -> dict[str, Fact]:
        """Return the shares as JSON."""
        return {
            "random_pass": {str(tries): share for tries, share in self.random_pass},
            "beam": self.beam,
            "beam_random": self.beam_random,
            "beam_estimate": self.beam_estimate,
            "beam_oracle": self.beam_oracle,
        }


def null_baselines(
    tasks: Sequence[Task[Any]], seed: int = 0, *, beam: int = BEAM, merge: bool = True
) -> Baselines | None:
    """Measure the baselines on ``tasks``; None where they have no legal moves or no check.

    ``beam`` nodes are kept a level; ``merge`` lets equal states share one place in it, as a search's ``dedup`` does.
    """
    if not tasks or not all(task.has_legal_moves and task.has_check for task in tasks):
        return None
    frame = _Frame(tasks, beam, merge)
    draws = [frame.share(_chance(derive_seed(seed, draw))) for draw in range(_DRAWS)]
    return Baselines(
        tuple((tries, pass_at(tasks, tries, seed)) for tries in TRIES),
        beam,
        sum(share for share in draws if share is not None) / _DRAWS,
        frame.share(lambda _at, task, state, _step: task.score(state)),
        frame.share(_truth),
    )


def pass_at(tasks: Sequence[Task[Any]], tries: int, seed: int = 0) -> float:
    """Return the share of ``tasks`` that random legal play solves in ``tries`` tries.

    It is the expectation where every task knows its own chance, else a measurement by ``seed``.
    """
    chances = [task.chance(task.start()) for task in tasks]
    known = [chance for chance in chances if chance is not None]
    if len(known) == len(tasks):
        return sum(1.0 - (1.0 - chance) ** tries for chance in known) / len(tasks)
    firsts = [first_success(task, derive_seed(seed, at), tries) for at, task in enumerate(tasks)]
    return sum(first is not None for first in firsts) / len(tasks)


def hash_key(state: object) -> int:
    """Return a number for a state that is the same in every process."""
    value = 0
    for char in repr(state):
        value = (value * 131 + ord(char)) % (1 << 61)
    return value


def _chance(seed: int) -> Value:
    """Return values that are drawn: by task, level and state alone."""
    return lambda at, _task, state, step: uniform(derive_seed(seed, at), step + hash_key(state))


def _truth(_at: int, task: Task[Any], state: object, _step: int) -> float | None:
    """Value a state by whether it can be solved."""
    truth = task.oracle(state)
    return None if truth is None else float(truth)


def first_success(task: Task[Any], seed: int, tries: int) -> int | None:
    """Return the index of the first random legal rollout that solves the task; None where none of ``tries`` does."""
    for attempt in range(tries):
        state = task.start()
        for depth in range(task.depth):
            moves = [] if task.is_finished(state) else task.plays(state)
            if not moves:
                break
            state = _step(task, state, moves[derive_seed(seed, attempt, depth) % len(moves)])
        if _is_solved(task, state):
            return attempt
    return None


def _step(task: Task[Any], state: object, move: str) -> Any:
    """Take a legal move."""
    after = task.step(state, move)
    assert not isinstance(after, Rejected), f"a legal move is a step: {move!r}"
    return after


def _is_solved(task: Task[Any], state: object) -> bool:
    """Whether a state is a right answer."""
    answer = task.answer(state) if task.is_finished(state) else None
    check = None if answer is None else task.check(answer)
    return check is not None and check.solved


class _Frame:
    """Beams over a set's legal moves; what follows a state is worked out once."""

    def __init__(self, tasks: Sequence[Task[Any]], beam: int, merge: bool) -> None:  # noqa: FBT001
        self._tasks = tasks
        self._beam = beam
        self._merge = merge
        self._after: dict[tuple[int, str], list[Any]] = {}

    def share(self, value: Value) -> float | None:
        """Return the share of the tasks that a beam solves; None where states have no value."""
        if any(value(at, task, task.start(), 0) is None for at, task in enumerate(self._tasks)):
            return None
        return sum(self._solves(at, task, value) for at, task in enumerate(self._tasks)) / len(self._tasks)

    def _solves(self, at: int, task: Task[Any], value: Value) -> bool:
        """Whether a beam finds a solution among its finished states."""
        frontier: list[Any] = [task.start()]
        for level in range(task.depth):
            found = [after for state in frontier for after in self._following(at, task, state)]
            if self._merge:
                merged: dict[str, Any] = {}
                for state in found:
                    merged.setdefault(task.key(state) or repr(state), state)
                found = list(merged.values())
            if any(_is_solved(task, state) for state in found):
                return True
            open_ = [state for state in found if not task.is_finished(state)]
            # Python's sort is stable: equal values keep the order of the moves, as in the search itself.
            ranked = sorted(open_, key=lambda state: -(value(at, task, state, level + 1) or 0.0))
            frontier = ranked[: self._beam]
        return False

    def _following(self, at: int, task: Task[Any], state: Any) -> list[Any]:
        """Return the states that follow a state."""
        key = (at, repr(state))
        if key not in self._after:
            self._after[key] = [_step(task, state, move) for move in task.legal_moves(state)]
        return self._after[key]

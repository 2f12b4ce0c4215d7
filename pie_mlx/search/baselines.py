"""What chance reaches: null baselines over a task's legal moves, without any model.

They stand beside every result on a task: a search that is not above them has shown nothing.
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


@dataclass(frozen=True, slots=True)
class Baselines:
    """Shares of a set's tasks, 0 to 1."""

    random_pass: tuple[tuple[int, float], ...]
    """(k, share of the tasks solved by at least one of k random legal rollouts)."""
    beam_random: float | None
    """Beam of :data:`BEAM` over all legal moves, random values."""
    beam_estimate: float | None
    """The same with the task's own estimate; None where it has none."""
    beam_oracle: float | None
    """The same with the known truth; None where it is not known."""

    def to_json(self) -> dict[str, Fact]:
        """Return the shares as JSON."""
        return {
            "random_pass": {str(tries): share for tries, share in self.random_pass},
            "beam_random": self.beam_random,
            "beam_estimate": self.beam_estimate,
            "beam_oracle": self.beam_oracle,
        }


def null_baselines(tasks: Sequence[Task[Any]], seed: int = 0) -> Baselines | None:
    """Measure the baselines on ``tasks``; None where they have no legal moves or no check."""
    if not tasks or not all(task.has_legal_moves and task.has_check for task in tasks):
        return None
    firsts = [_first_success(task, derive_seed(seed, at)) for at, task in enumerate(tasks)]
    shares = tuple((tries, sum(first < tries for first in firsts) / len(tasks)) for tries in TRIES)
    return Baselines(
        shares,
        _beam_share(tasks, lambda at, _task, state, step: uniform(derive_seed(seed, at), step + hash_key(state))),
        _beam_share(tasks, lambda _at, task, state, _step: task.score(state)),
        _beam_share(tasks, _truth),
    )


def hash_key(state: object) -> int:
    """Return a number for a state that is the same in every process."""
    value = 0
    for char in repr(state):
        value = (value * 131 + ord(char)) % (1 << 61)
    return value


def _truth(_at: int, task: Task[Any], state: object, _step: int) -> float | None:
    """Value a state by whether it can be solved."""
    truth = task.oracle(state)
    return None if truth is None else float(truth)


def _first_success(task: Task[Any], seed: int) -> int:
    """Return the index of the first random legal rollout that solves the task; the largest number of tries if none."""
    for attempt in range(TRIES[-1]):
        state = task.start()
        for depth in range(task.depth):
            moves = task.legal_moves(state)
            if not moves or task.is_finished(state):
                break
            state = _step(task, state, moves[derive_seed(seed, attempt, depth) % len(moves)])
        if _is_solved(task, state):
            return attempt
    return TRIES[-1]


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


Value = Callable[[int, Task[Any], Any, int], float | None]
"""(index of the task, task, state, level) to value."""


def _beam_share(tasks: Sequence[Task[Any]], value: Value) -> float | None:
    """Return the share of the tasks that a beam over all legal moves solves; None where states have no value."""
    if any(value(at, task, task.start(), 0) is None for at, task in enumerate(tasks)):
        return None
    return sum(_beam(at, task, value) for at, task in enumerate(tasks)) / len(tasks)


def _beam(at: int, task: Task[Any], value: Value) -> bool:
    """Whether a beam finds a solution among its finished states."""
    frontier: list[Any] = [task.start()]
    for level in range(task.depth):
        seen: dict[str, Any] = {}
        for state in frontier:
            for move in task.legal_moves(state):
                after = _step(task, state, move)
                seen.setdefault(task.key(after) or repr(after), after)
        if any(_is_solved(task, state) for state in seen.values()):
            return True
        open_ = [state for state in seen.values() if not task.is_finished(state)]
        # Python's sort is stable: equal values keep the order of the moves, as in the search itself.
        frontier = sorted(open_, key=lambda state: -(value(at, task, state, level + 1) or 0.0))[:BEAM]
    return False

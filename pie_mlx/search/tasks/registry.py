"""Which tasks there are, and how one is made from a name and a question, or drawn from its test set."""

from __future__ import annotations

import difflib
from typing import Any

from pie_mlx.errors import InvalidParameter
from pie_mlx.search.errors import TaskError
from pie_mlx.search.tasks.arith import Arith
from pie_mlx.search.tasks.base import Task
from pie_mlx.search.tasks.countdown import Countdown
from pie_mlx.search.tasks.custom import is_custom, load_task_class
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.tasks.game24 import Game24
from pie_mlx.search.tasks.sort import Sort
from pie_mlx.search.tasks.sudoku4 import Sudoku4

_TASKS: dict[str, type[Task[Any]]] = {task.name: task for task in (Free, Game24, Countdown, Arith, Sort, Sudoku4)}


def task_names() -> tuple[str, ...]:
    """Return the names of the built-in tasks."""
    return tuple(_TASKS)


def task_class(name: str) -> type[Task[Any]]:
    """Return the class of a task: a built-in name, or a user's ``path.py:MyTask``.

    Raises:
        TaskError: there is no such task.
    """
    if is_custom(name):
        return load_task_class(name)
    found = _TASKS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, _TASKS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(_TASKS)}, or path.py:MyTask"
        raise TaskError(f"there is no task {name[:60]!r}", hint)
    return found


def make_task(name: str, question: str | None = None, *, seed: int = 0, split: str | None = None) -> Task[Any]:
    """Make a task from a question; without one, draw a problem of its test set by ``seed`` and ``split``.

    Raises:
        TaskError: there is no such task or split, or the question does not state a problem of this kind.
    """
    found = task_class(name)
    if question is None:
        return found.generate(seed, split)
    if split is not None:
        raise TaskError("a question and a split exclude each other")
    return found.from_question(question)


def draw_test_set(name: str, count: int, *, seed: int = 0, split: str | None = None) -> list[Task[Any]]:
    """Draw ``count`` different problems; the same arguments give the same ones.

    Raises:
        TaskError: there is no such task or split, or not so many different problems.
        InvalidParameter: ``count`` is below 1.
    """
    if count < 1:
        raise InvalidParameter("count", count, "a whole number from 1 up")
    found = task_class(name)
    drawn: dict[str, Task[Any]] = {}
    for offset in range(50 * count):
        task = found.generate(seed * 1_000_003 + offset, split)
        drawn.setdefault(task.question, task)
        if len(drawn) == count:
            return list(drawn.values())
    raise TaskError(f"task {name!r} has fewer than {count} different problems here ({len(drawn)} found)")

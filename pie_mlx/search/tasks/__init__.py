"""Tasks: problems that a search solves, most of which check themselves."""

from pie_mlx.search.tasks.base import Check, Judging, Rejected, Task
from pie_mlx.search.tasks.registry import draw_test_set, make_task, task_class, task_names
from pie_mlx.search.trace_events import Verdict

__all__ = ["Check", "Judging", "Rejected", "Task", "Verdict", "draw_test_set", "make_task", "task_class", "task_names"]

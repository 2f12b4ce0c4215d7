"""A user's own task: a class in a Python file, named as ``path.py:MyTask``."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from pie_mlx.errors import PieError
from pie_mlx.search.errors import TaskError
from pie_mlx.search.tasks.base import Task


def is_custom(name: str) -> bool:
    """Whether a task's name means a file."""
    return ".py:" in name or name.endswith(".py")


def load_task_class(name: str) -> type[Task[Any]]:
    """Import ``path.py:MyTask`` and return the class. The file runs with the rights of this program.

    Raises:
        TaskError: the file is missing or fails, or the class is missing or is no complete task; says which.
    """
    path_text, _, class_name = name.rpartition(":")
    if not path_text.endswith(".py") or not class_name:
        raise TaskError(f"{name!r} names no class", "write it as path.py:MyTask")
    path = Path(path_text)
    if not path.is_file():
        raise TaskError(f"{path}: there is no such file")
    found = _run_file(path).get(class_name)
    if not inspect.isclass(found):
        raise TaskError(f"{path}: there is no class {class_name!r}")
    if not issubclass(found, Task):
        raise TaskError(f"{path}: {class_name} is not a subclass of pie_mlx.search.tasks.base.Task")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if not hasattr(found, "name"):
        missing.append("name")
    if missing:
        raise TaskError(f"{path}: {class_name} lacks {', '.join(missing)}")
    return found


def _run_file(path: Path) -> dict[str, Any]:
    """Run the file as a module and return its names."""
    module_name = f"pie_mlx_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except PieError:
        raise
    except Exception as error:  # a user's file may raise anything
        del sys.modules[module_name]
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        raise TaskError(f"{path}: {type(error).__name__}: {error}{line}") from error
    return vars(module)

"""Where traces lie: the default file of a new run, and the one that a command means."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from pie_mlx.config import folder
from pie_mlx.errors import UsageError


def traces_folder() -> Path:
    """Return the folder of the traces that were given no name."""
    return folder("state") / "traces"


def new_trace_path(task: str) -> Path:
    """Return the path of a new run's trace, in a folder that exists."""
    traces_folder().mkdir(parents=True, exist_ok=True)
    plain = "".join(sign if sign.isalnum() else "-" for sign in task)
    return traces_folder() / f"{time.strftime('%Y%m%d-%H%M%S')}-{plain}-{secrets.token_hex(2)}.jsonl"


def find_trace(path: Path | None) -> Path:
    """Return ``path``, or the latest trace without a name of its own.

    Raises:
        UsageError: there is none.
    """
    if path is not None:
        return path
    found = sorted(traces_folder().rglob("*.jsonl"), key=lambda trace: trace.stat().st_mtime_ns)
    if not found:
        raise UsageError("there is no trace yet", 'pie-mlx tot run "QUESTION", or name a trace file')
    return found[-1]

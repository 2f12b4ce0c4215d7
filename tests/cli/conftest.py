"""How the command line is run in tests: as its users do, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import TypeAlias

import pytest

Finished: TypeAlias = "subprocess.CompletedProcess[str]"
RunCli: TypeAlias = Callable[..., Finished]

PROGRAM = (sys.executable, "-m", "pie_mlx")


@pytest.fixture
def cli() -> RunCli:
    """Return a function that runs a command line in pipes, with stdin closed or as given."""

    def run(*args: str, stdin: str | None = None, env: dict[str, str] | None = None, timeout_s: float = 240) -> Finished:
        where = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        return subprocess.run(
            [*PROGRAM, *args],
            check=False,
            capture_output=True,
            encoding="utf-8",
            env={**os.environ, **(env or {})},
            timeout=timeout_s,
            **where,  # type: ignore[call-overload]
        )

    return run

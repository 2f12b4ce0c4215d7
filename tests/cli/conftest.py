"""How the command line is run in tests: as its users do, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

Finished: TypeAlias = "subprocess.CompletedProcess[str]"
RunCli: TypeAlias = Callable[..., Finished]

PROGRAM = (sys.executable, "-m", "pie_mlx")


@pytest.fixture
def cli() -> RunCli:
    """Return a function that runs a command line in pipes, with an empty stdin or one as given."""

    def run(*args: str, stdin: str | None = None, env: dict[str, str] | None = None) -> Finished:
        return subprocess.run(
            [*PROGRAM, *args],
            check=False,
            capture_output=True,
            encoding="utf-8",
            env={**os.environ, **(env or {})},
            timeout=240,
            input=stdin or "",
        )

    return run


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunCli:
    """Return a function that runs a command line in this process: quicker, and the same edge."""
    from pie_mlx.cli.main import invoke

    def run(*args: str) -> Finished:
        with Path(os.devnull).open(encoding="utf-8") as nothing:
            monkeypatch.setattr(sys, "stdin", nothing)
            code = invoke(args)
        captured = capsys.readouterr()
        return subprocess.CompletedProcess(args, code, captured.out, captured.err)

    return run

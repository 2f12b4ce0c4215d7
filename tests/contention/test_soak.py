"""The soak, in short: the same operations as the million of ``make contention``, in seconds."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest


def test_short_soak_loses_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Operations on four small pools: every kind of end occurs, and nothing is lost or wrong."""
    program = Path(__file__).with_name("soak.py")
    monkeypatch.setattr(sys, "argv", [str(program), "40000", "3"])
    runpy.run_path(str(program), run_name="__main__")
    told = capsys.readouterr().out
    for kind in ("Cancelled", "DeviceFailed", "Impossible", "length", "scored", "evictions", "preemptions"):
        assert f" {kind} " in told

"""Energy, where the system tells it: macOS has ``powermetrics``, which only root may read.

Where it cannot be read the report says so and has no figure: an estimate would be worse than none.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

_INTERVAL_MS = 200
_POWER = re.compile(r"Combined Power \(CPU \+ GPU(?: \+ ANE)?\):\s*(\d+)\s*mW")


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """Mean power while something ran, or why there is no figure."""

    watts: float | None
    why_not: str | None = None


def why_unreadable() -> str | None:
    """Return why energy cannot be read here, None where it can."""
    if sys.platform != "darwin":
        return "powermetrics is a tool of macOS"
    if shutil.which("powermetrics") is None:
        return "powermetrics is not installed"
    return None if os.geteuid() == 0 else "powermetrics needs root (sudo pie-mlx bench)"


def mean_watts(text: str) -> float | None:
    """Return the mean of the samples in what powermetrics wrote, None where it wrote no whole one."""
    samples = [int(found) / 1000 for found in _POWER.findall(text)]
    return statistics.fmean(samples) if samples else None


def measure_energy(work: Callable[[], object]) -> EnergyReading:
    """Run ``work`` and read the mean power meanwhile; it runs without a reading where that is impossible."""
    reason = why_unreadable()
    if reason is not None:
        work()
        return EnergyReading(None, reason)
    command = ["powermetrics", "--samplers", "cpu_power,gpu_power", "-i", str(_INTERVAL_MS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as meter:
        try:
            work()
        finally:
            meter.terminate()
        text, _ = meter.communicate()
    watts = mean_watts(text)
    return EnergyReading(watts, None if watts is not None else "powermetrics gave no sample in that time")

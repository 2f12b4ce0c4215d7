"""Interleaved trials: ours and the baseline take turns, so that a noisy minute hits both."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from pie_mlx.bench.report import Trials

Measure = Callable[[], float]
"""Runs one trial to its evaluated end and returns its figure."""


class PeakMeter(Protocol):
    """Reads the device's peak memory; reset before each trial, or a small case would show a large one's peak."""

    def reset(self) -> None:
        """Start a new peak."""
        ...

    def read(self) -> int:
        """Return the highest number of bytes since the last reset."""
        ...


def interleave(
    ours: Measure,
    theirs: Measure | None,
    *,
    num_trials: int,
    num_warmups: int = 1,
    delay_s: float = 0.0,
    meter: PeakMeter | None = None,
    on_trial: Callable[[int, int], None] | None = None,
) -> tuple[Trials, Trials | None]:
    """Run both sides in turn, swapping who goes first; warm-ups have the same shape and are dropped.

    ``on_trial`` is told of each pair before it begins: its number, 0 for a warm-up, and how many there are.
    """
    assert num_trials > 0, "at least one trial"
    sides = [ours] if theirs is None else [ours, theirs]
    values: list[list[float]] = [[] for _ in sides]
    peaks: list[int | None] = [None for _ in sides]
    for trial in range(-num_warmups, num_trials):
        if on_trial is not None:
            on_trial(max(trial + 1, 0), num_trials)
        order = list(range(len(sides)))
        for side in order if trial % 2 == 0 else order[::-1]:
            if delay_s:
                time.sleep(delay_s)
            if meter is not None:
                meter.reset()
            value = sides[side]()
            if trial < 0:
                continue
            values[side].append(value)
            if meter is not None:
                peaks[side] = max(meter.read(), peaks[side] or 0)
    mine, *others = (Trials(tuple(taken), peak) for taken, peak in zip(values, peaks, strict=True))
    return mine, others[0] if others else None

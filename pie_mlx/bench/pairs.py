"""Interleaved trials: ours and the baseline take turns, so that a noisy minute hits both."""

from __future__ import annotations

import time
from collections.abc import Callable

from pie_mlx.bench.report import Trials

Measure = Callable[[], float]
"""Runs one trial and returns its figure."""


def interleave(
    ours: Measure, theirs: Measure | None, *, num_trials: int, num_warmups: int = 1, delay_s: float = 0.0
) -> tuple[Trials, Trials | None]:
    """Run both sides in turn, swapping who goes first; warm-ups have the same shape and are dropped."""
    assert num_trials > 0, "at least one trial"
    our_values: list[float] = []
    their_values: list[float] = []
    for trial in range(-num_warmups, num_trials):
        sides = [(ours, our_values), *([(theirs, their_values)] if theirs is not None else [])]
        for measure, values in sides if trial % 2 == 0 else reversed(sides):
            if delay_s:
                time.sleep(delay_s)
            value = measure()
            if trial >= 0:
                values.append(value)
    return Trials(tuple(our_values)), Trials(tuple(their_values)) if theirs is not None else None

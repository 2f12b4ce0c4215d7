"""Trials: in turn, with a warm-up of the same shape that is dropped, and a peak of their own."""

from __future__ import annotations

import time

import pytest

from pie_mlx.bench.pairs import interleave
from pie_mlx.bench.report import Trials


class _Clock:
    """A side whose figures count up, written into one list that both sides share."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls
        self._value = 0.0

    def __call__(self) -> float:
        self._calls.append(self._name)
        self._value += 1.0
        return self._value


class _Meter:
    """The device's memory: a peak that only grows until it is reset."""

    def __init__(self) -> None:
        self.peak = 0

    def reset(self) -> None:
        self.peak = 0

    def read(self) -> int:
        return self.peak


def test_the_warm_up_is_run_like_a_trial_and_dropped() -> None:
    """The first value of each side, which pays for compiling and filling caches, is not reported."""
    calls: list[str] = []
    ours, theirs = interleave(_Clock("o", calls), _Clock("t", calls), num_trials=3)
    assert ours.values == (2.0, 3.0, 4.0)
    assert theirs is not None
    assert theirs.values == (2.0, 3.0, 4.0)
    assert len(calls) == 8, "one warm-up and three trials a side"


def test_sides_take_turns_and_swap_who_goes_first() -> None:
    """No side always runs on the warmer machine."""
    calls: list[str] = []
    interleave(_Clock("o", calls), _Clock("t", calls), num_trials=3)
    assert ["".join(calls[at : at + 2]) for at in range(0, 8, 2)] == ["to", "ot", "to", "ot"]


def test_without_a_baseline_only_our_side_runs() -> None:
    """Nothing is made up for a side that is not there."""
    calls: list[str] = []
    ours, theirs = interleave(_Clock("o", calls), None, num_trials=2)
    assert (ours.values, theirs, calls) == ((2.0, 3.0), None, ["o", "o", "o"])


def test_a_small_side_does_not_inherit_the_peak_of_a_large_one() -> None:
    """The peak is reset before every trial, the warm-up's peak is dropped, and the largest trial counts."""
    meter = _Meter()
    sizes = iter([900, 10, 30, 20])

    def small() -> float:
        meter.peak = max(meter.peak, next(sizes))
        return 1.0

    def large() -> float:
        meter.peak = max(meter.peak, 500)
        return 1.0

    ours, theirs = interleave(small, large, num_trials=3, meter=meter)
    assert ours.peak_bytes == 30
    assert theirs is not None
    assert theirs.peak_bytes == 500


def test_a_delay_stands_before_every_trial() -> None:
    """A machine that throttles gets the time that was asked for."""
    started = time.perf_counter()
    interleave(lambda: 1.0, lambda: 1.0, num_trials=2, delay_s=0.002)
    assert time.perf_counter() - started >= 6 * 0.002


def test_a_measurement_without_a_trial_is_refused() -> None:
    """There is no empty success."""
    with pytest.raises(AssertionError):
        interleave(lambda: 1.0, None, num_trials=0)
    with pytest.raises(AssertionError):
        Trials(())

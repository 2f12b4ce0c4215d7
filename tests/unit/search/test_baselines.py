"""Null baselines: what chance and the truth reach over legal moves."""

from __future__ import annotations

import pytest

from pie_mlx.search.baselines import null_baselines
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.tasks.game24 import Game24


def test_the_truth_solves_everything_and_chance_little() -> None:
    """The oracle's beam finds every solvable puzzle; more random tries solve more."""
    tasks = [Game24.generate(seed) for seed in range(12)]
    found = null_baselines(tasks, 1)
    assert found is not None
    assert found.beam_oracle == 1.0
    shares = [share for _, share in found.random_pass]
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert found.beam_estimate is not None
    assert found.beam_estimate <= 1.0


def test_baselines_repeat() -> None:
    """One seed, one measurement."""
    tasks = [Game24.generate(seed) for seed in range(3)]
    assert null_baselines(tasks, 5) == null_baselines(tasks, 5)


@pytest.mark.parametrize("tasks", [[], [Free("Why?")]])
def test_a_task_without_moves_or_check_has_no_baseline(tasks: list[Free]) -> None:
    """None, not zeros."""
    assert null_baselines(tasks) is None

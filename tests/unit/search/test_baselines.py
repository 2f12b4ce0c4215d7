"""Null baselines: what chance and the truth reach over legal moves."""

from __future__ import annotations

import math

import pytest

from pie_mlx.search.baselines import first_success, null_baselines, pass_at
from pie_mlx.search.tasks.countdown import Countdown
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.tasks.game24 import Game24
from pie_mlx.search.tasks.solver24 import random_pass_at, split_puzzles


def test_the_truth_solves_everything_and_chance_little() -> None:
    """The oracle's beam finds every solvable puzzle; more random tries solve more."""
    tasks = [Game24.generate(seed) for seed in range(12)]
    found = null_baselines(tasks, 1)
    assert found is not None
    assert found.beam_oracle == 1.0
    shares = [share for _, share in found.random_pass]
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert found.beam_random is not None
    assert found.beam_random < 1.0
    assert found.beam_estimate is not None
    assert found.beam_estimate <= 1.0


def test_a_task_that_knows_its_chance_is_told_it_exactly() -> None:
    """The baseline of random play is the expectation, equal to the solver's own."""
    puzzles = split_puzzles("easy")[:40]
    tasks = [Game24(*numbers) for numbers in puzzles]
    for tries in (1, 25):
        assert pass_at(tasks, tries) == pytest.approx(random_pass_at(tries, puzzles))


def test_random_play_draws_from_all_ordered_moves() -> None:
    """Played out by a seed, the share of solved puzzles is the expectation, within three standard errors."""
    puzzles, tries = split_puzzles("easy")[:120], 12
    firsts = [first_success(Game24(*numbers), seed, tries) for seed, numbers in enumerate(puzzles)]
    share = sum(first is not None for first in firsts) / len(puzzles)
    expected = random_pass_at(tries, puzzles)
    assert abs(share - expected) < 3 * math.sqrt(expected * (1 - expected) / len(puzzles))


def test_equal_numbers_count_as_often_as_they_are_there() -> None:
    """Three nines make three pairs: their sum is drawn three times as often as it is listed."""
    puzzle = Game24(9, 9, 9, 12)
    assert puzzle.legal_moves(puzzle.start()).count("9 + 9 = 18") == 1
    assert puzzle.plays(puzzle.start()).count("9 + 9 = 18") == 3
    assert set(puzzle.plays(puzzle.start())) == set(puzzle.legal_moves(puzzle.start()))


def test_a_task_without_a_known_chance_is_measured() -> None:
    """Countdown is played out; one seed, one measurement, and more tries solve no less."""
    tasks = [Countdown.generate(seed) for seed in range(3)]
    assert tasks[0].chance(tasks[0].start()) is None
    shares = [pass_at(tasks, tries, 5) for tries in (1, 20)]
    assert shares == [pass_at(tasks, tries, 5) for tries in (1, 20)]
    assert shares[0] <= shares[1]


def test_a_beam_that_merges_nothing_has_less_room() -> None:
    """Equal states take places of the beam where they are not merged: both ways are measured, the truth finds all."""
    tasks = [Game24(*numbers) for numbers in split_puzzles("medium")[:8]]
    merged, apart = null_baselines(tasks, merge=True), null_baselines(tasks, beam=2, merge=False)
    assert merged is not None
    assert apart is not None
    assert (merged.beam, apart.beam) == (5, 2)
    assert merged.beam_oracle == apart.beam_oracle == 1.0


def test_baselines_repeat() -> None:
    """One seed, one measurement."""
    tasks = [Game24.generate(seed) for seed in range(3)]
    assert null_baselines(tasks, 5) == null_baselines(tasks, 5)


@pytest.mark.parametrize("tasks", [[], [Free("Why?")]])
def test_a_task_without_moves_or_check_has_no_baseline(tasks: list[Free]) -> None:
    """None, not zeros."""
    assert null_baselines(tasks) is None
